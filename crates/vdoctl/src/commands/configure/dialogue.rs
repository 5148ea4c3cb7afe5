//! The questions of `vdoctl configure`. Ctrl-C or Esc ends the command, and nothing is written.

use api::{VDOConfig, VsphereCloudConfig};
use inquire::{
    Confirm, InquireError, MultiSelect, Password, PasswordDisplayMode, Select, Text,
    validator::Validation,
};
use kube::{Api, api::ListParams};
use operator::proof::{Store, VerifiedVcenter};

use super::{
    draft::{Access, Class, Draft, Drivers},
    proving::{Attempt, attempt, trust},
};
use crate::{
    cluster::Cluster,
    failure::{Doing as _, Failure, Outcome},
    screen::Screen,
};

/// Asks without blocking other tasks.
fn ask<T>(question: impl FnOnce() -> Result<T, InquireError>) -> Outcome<T> {
    Ok(tokio::task::block_in_place(question)?)
}

/// Asks whether to trust the certificate on the screen.
pub(super) fn confirm_certificate() -> Outcome {
    let trusts = ask(|| {
        Confirm::new("Trust this certificate?")
            .with_default(false)
            .with_help_message("VDO pins it and then accepts no other certificate")
            .prompt()
    })?;
    if trusts { Ok(()) } else { Err(Failure::Declined) }
}

pub(super) async fn configure(
    screen: &Screen,
    cluster: &Cluster,
    existing: Option<&VDOConfig>,
    known: &[VsphereCloudConfig],
) -> Outcome<Draft> {
    let mut all: Vec<Access> = Vec::new();
    let mut categories = std::collections::BTreeMap::new();
    let mut stores: Vec<Store> = Vec::new();
    let old = existing.map(|config| config.spec.vcenters().len()).unwrap_or_default();
    loop {
        let default = known.get(all.len()).map(|vcenter| vcenter.spec.vc_ip.0.as_str());
        let (mut access, proof) = vcenter(screen, cluster, known, all.len(), default).await?;
        access.datacenters = datacenters(&proof)?;
        for (category, tags) in proof.categories {
            categories.entry(category).or_insert_with(Vec::new).extend(tags);
        }
        stores.extend(proof.datastores.into_iter().filter(|store| store.shared));
        all.push(access);
        let more = all.len() < old;
        if !ask(|| {
            Confirm::new("Does the cluster use another vCenter?").with_default(more).prompt()
        })? {
            break;
        }
    }
    let fresh = tainted_nodes(cluster).await?;
    let default = existing.is_none_or(|config| config.spec.cloud_provider.is_some());
    let mut cloud = Confirm::new("Install the cloud provider?").with_default(default);
    let help = format!("{} for a cloud provider", waiting(fresh));
    cloud = cloud.with_help_message(if fresh > 0 {
        &help
    } else {
        "it sets the addresses, zones and provider IDs of nodes; without it, VDO installs only storage"
    });
    let cloud_provider = ask(|| cloud.prompt())?;
    let topology = zones(&categories, all.len())?;
    let class = class(existing, &stores)?;
    let drivers = Drivers { partial: false, cloud_provider, topology, class };
    let mut draft = Draft::new(&all, &drivers, &cluster.namespace, existing);
    draft.asked = true;
    draft.proven = true;
    Ok(draft)
}

/// Asks for one vCenter until the login succeeds.
async fn vcenter(
    screen: &Screen,
    cluster: &Cluster,
    known: &[VsphereCloudConfig],
    before: usize,
    default: Option<&str>,
) -> Outcome<(Access, VerifiedVcenter)> {
    let (mut address, mut user) = (String::new(), String::new());
    let mut thumbprint = None;
    loop {
        if address.is_empty() {
            address = ask_address(default)?;
            thumbprint = known
                .iter()
                .find(|vcenter| vcenter.spec.vc_ip.0 == address)
                .and_then(|vcenter| vcenter.spec.thumbprint.as_ref().map(|t| t.0.clone()));
        }
        if user.is_empty() {
            user = ask(|| {
                Text::new("User:")
                    .with_help_message("for example vdo@vsphere.local; it needs only the privileges of the drivers")
                    .with_validator(required)
                    .prompt()
            })?;
        }
        let password = ask(|| {
            Password::new("Password:")
                .without_confirmation()
                .with_display_mode(PasswordDisplayMode::Masked)
                .with_validator(required)
                .prompt()
        })?;
        let mut access = Access::named(&address, known, before);
        (access.user, access.password) = (user.clone(), password.into());
        access.thumbprint.clone_from(&thumbprint);
        match prove(&mut access, cluster, screen).await {
            Ok(proof) => return Ok((access, proof)),
            Err(Failure::Vcenter { source, address: at }) => {
                screen.complain(&format!("  {}\n", source.error_chain()));
                if matches!(*source, vsphere::Error::LoginRefused { .. }) {
                    screen.complain("  Several failed logins in a row can lock the account.\n");
                    thumbprint.clone_from(&access.thumbprint);
                    user = ask_user_again(&user)?;
                } else {
                    let question = format!("Try another address than {at}?");
                    if !ask(|| Confirm::new(&question).with_default(true).prompt())? {
                        return Err(Failure::Vcenter { source, address: at });
                    }
                    address.clear();
                }
            }
            Err(other) => return Err(other),
        }
    }
}

/// After a failed login, the user name can be wrong as well as the password.
fn ask_user_again(user: &str) -> Outcome<String> {
    ask(|| Text::new("User:").with_default(user).with_validator(required).prompt())
}

/// Logs in. Shows the certificate and asks whether to trust it, if that is necessary.
async fn prove(
    access: &mut Access,
    cluster: &Cluster,
    screen: &Screen,
) -> Outcome<VerifiedVcenter> {
    loop {
        let draft =
            Draft::new(std::slice::from_ref(access), &Drivers::default(), &cluster.namespace, None);
        let vcenter = access.config(&cluster.namespace)?;
        match attempt(&vcenter, &draft.objects, Some(cluster), screen).await {
            Ok(proof) => return Ok(proof),
            Err(Attempt::Failed(failure)) => return Err(failure),
            Err(Attempt::Untrusted(refused)) => {
                access.thumbprint = Some(trust(&vcenter, &refused, screen)?);
            }
        }
    }
}

fn ask_address(default: Option<&str>) -> Outcome<String> {
    let valid = |text: &str| {
        Ok(match text.parse::<vsphere::Address>() {
            Ok(_) => Validation::Valid,
            Err(error) => Validation::Invalid(error.to_string().into()),
        })
    };
    let question = Text::new("vCenter:")
        .with_help_message("host name or IP address, with :port if it is not 443")
        .with_validator(valid);
    let question = match default {
        Some(default) => question.with_default(default),
        None => question,
    };
    ask(|| question.prompt()).map(|address| address.trim().to_owned())
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a validator")]
fn required(text: &str) -> Result<Validation, inquire::CustomUserError> {
    Ok(if text.is_empty() {
        Validation::Invalid("a value is required".into())
    } else {
        Validation::Valid
    })
}

/// Asks which datacenters to use, if there are several.
fn datacenters(proof: &VerifiedVcenter) -> Outcome<Vec<String>> {
    if let [one] = proof.datacenters.as_slice() {
        return Ok(vec![one.clone()]);
    }
    let all: Vec<usize> = (0..proof.datacenters.len()).collect();
    ask(|| {
        MultiSelect::new("Datacenters with nodes or volumes:", proof.datacenters.clone())
            .with_default(&all)
            .prompt()
    })
}

/// Asks which tag categories stand for zones and regions, if there are tags.
fn zones(
    categories: &std::collections::BTreeMap<String, Vec<String>>,
    vcenters: usize,
) -> Outcome<Option<(String, String)>> {
    const NONE: &str = "no zones";
    if categories.len() < 2 {
        return Ok(None);
    }
    let guess = |word: &str| categories.keys().position(|name| name.to_lowercase().contains(word));
    let mut choices: Vec<String> = categories.keys().cloned().collect();
    let first = guess("zone").unwrap_or(choices.len());
    if vcenters == 1 {
        choices.push(NONE.to_owned());
    }
    let first = first.min(choices.len() - 1);
    let zone = ask(|| {
        Select::new("Tag category for zones:", choices.clone())
            .with_starting_cursor(first)
            .with_help_message("volumes are created in the zone of their pod")
            .prompt()
    })?;
    if zone == NONE {
        return Ok(None);
    }
    choices.retain(|name| *name != zone && name != NONE);
    let second =
        choices.iter().position(|name| name.to_lowercase().contains("region")).unwrap_or(0);
    let region = ask(|| {
        Select::new("Tag category for regions:", choices).with_starting_cursor(second).prompt()
    })?;
    Ok(Some((zone, region)))
}

/// Asks for a first StorageClass on a shared datastore. Keeps StorageClasses that the VDOConfig already has.
fn class(existing: Option<&VDOConfig>, stores: &[Store]) -> Outcome<Option<Class>> {
    const NONE: &str = "none";
    const ANY: &str = "on any matching datastore";
    let storage = existing.and_then(|config| config.spec.storage_provider.as_ref());
    if storage.is_some_and(|storage| !storage.storage_classes.is_empty()) || stores.is_empty() {
        return Ok(None);
    }
    let shown = |store: &Store| format!("on {} ({})", store.name, store.kind);
    let mut choices = vec![NONE.to_owned(), ANY.to_owned()];
    choices.extend(stores.iter().map(shown));
    let chosen = ask(|| {
        Select::new("Default StorageClass:", choices)
            .with_help_message("for volumes of claims without a StorageClass")
            .prompt()
    })?;
    let store = stores.iter().find(|store| shown(store) == chosen);
    Ok(match (chosen.as_str(), store) {
        (NONE, _) => None,
        (_, Some(store)) => Some(Class { datastore: Some(store.url.clone()) }),
        (_, None) => Some(Class { datastore: None }),
    })
}

fn waiting(nodes: usize) -> String {
    if nodes == 1 { "1 node waits".into() } else { format!("{nodes} nodes wait") }
}

async fn tainted_nodes(cluster: &Cluster) -> Outcome<usize> {
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(cluster.client.clone());
    let nodes = nodes.list(&ListParams::default()).await.doing("listing nodes")?;
    let is_tainted = |node: &&k8s_openapi::api::core::v1::Node| {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        taints.into_iter().flatten().any(|taint| taint.key == plan::names::UNINITIALIZED)
    };
    Ok(nodes.items.iter().filter(is_tainted).count())
}
