//! `vdoctl storage-class`

use api::{VDOConfig, vdo_config::StorageClassSpec};
use clap::Args;
use health::{Examination, storage_class};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use operator::writing;
use serde_json::{Value, json};

use super::{configure::VcenterFlags, doctor};
use crate::{
    cluster::Cluster,
    critical,
    failure::{Doing as _, Failure, Outcome, request},
    options::Global,
    progress::ProgressStep,
    screen::Screen,
    text::{STRONG, paint, wrap},
};

/// The annotation of the default StorageClass.
const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// Add a StorageClass that fits the cluster.
///
/// vdoctl chooses a datastore that all nodes share and explains the choice. With zones, the driver chooses a datastore in
/// the zone of each pod. With --tag, vdoctl creates a storage policy for the datastores with that tag, and with --policy
/// it uses yours. The StorageClass becomes the default only if the cluster has none. vdoctl asks before it changes
/// anything.
#[derive(Args, Debug)]
pub(crate) struct NewStorageClass {
    /// The name of the StorageClass.
    #[arg(default_value = "vsphere")]
    name: String,
    /// Use this storage policy.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Use the datastores with this vCenter tag: creates a storage policy for them.
    #[arg(long, value_name = "CATEGORY:TAG", conflicts_with = "policy", value_parser = tag)]
    tag: Option<Tag>,
    /// Show the StorageClass, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Debug)]
struct Tag {
    category: String,
    name: String,
}

impl Tag {
    /// The name of the policy for this tag.
    fn policy(&self) -> String {
        format!("VDO {}:{}", self.category, self.name)
    }
}

fn tag(text: &str) -> Result<Tag, String> {
    match text.split_once(':') {
        Some((category, name)) if !category.is_empty() && !name.is_empty() => {
            Ok(Tag { category: category.to_owned(), name: name.to_owned() })
        }
        _ => Err("write the tag as CATEGORY:TAG, for example k8s-storage:gold".to_owned()),
    }
}

impl NewStorageClass {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        let cluster = Cluster::connect(global).await?;
        let config = cluster.config().await?;
        let storage = config.spec.storage_provider.as_ref();
        let Some(storage) = storage else {
            return request(
                "the VDOConfig has no section storageProvider",
                "vdoctl configure adds one",
            );
        };
        let classes = Api::<StorageClass>::all(cluster.client.clone());
        let existing = classes.list(&ListParams::default()).await;
        let existing = existing.doing("listing the StorageClasses")?;
        let known = storage.storage_classes.iter().any(|class| class.name.0 == self.name);
        if known || existing.iter().any(|class| class.name_any() == self.name) {
            return request(
                format!("there is a StorageClass {} already", self.name),
                "choose another name",
            );
        }
        let is_default = |class: &StorageClass| {
            class.annotations().get(DEFAULT).is_some_and(|value| value == "true")
        };
        let default = existing.iter().find(|class| is_default(class)).map(ResourceExt::name_any);
        let planned = storage.storage_classes.iter().find(|class| class.default == Some(true));
        let default = default.or_else(|| planned.map(|class| class.name.0.clone()));
        let mut inspection =
            doctor::inspect(global, screen, &VcenterFlags::default(), false).await?;
        let outcome =
            Box::pin(self.with(&cluster, &config, default, &mut inspection, screen)).await;
        inspection.close().await;
        outcome
    }

    async fn with(
        &self,
        cluster: &Cluster,
        config: &VDOConfig,
        default: Option<String>,
        inspection: &mut doctor::Inspection,
        screen: &Screen,
    ) -> Outcome {
        let examination = Examination::run(std::mem::take(&mut inspection.facts));
        let mut reasons = Vec::new();
        let mut class = json!({"name": self.name, "default": default.is_none()});
        let mut missing = Vec::new();
        if let Some(policy) = self.policy.clone().or_else(|| self.tag.as_ref().map(Tag::policy)) {
            missing = self.without_policy(inspection, &policy).await?;
            reasons.push(match (&self.tag, missing.is_empty()) {
                (_, true) => format!("vCenter has the storage policy {policy}"),
                (Some(tag), false) => format!(
                    "vdoctl creates the storage policy {policy}: datastores with the tag {} of category {}",
                    tag.name, tag.category
                ),
                (None, false) => {
                    return request(
                        format!("{} has no storage policy {policy}", missing.join(" and ")),
                        "govc storage.policy.ls lists them; --tag CATEGORY:TAG creates one",
                    );
                }
            });
            class["storagePolicy"] = json!(policy);
        } else {
            let choice = storage_class::choose(&examination.view());
            let choice = choice.map_err(|text| Failure::Refused {
                text: format!("no StorageClass would work: {text}"),
                help: "vdoctl doctor shows the findings about storage".to_owned(),
            })?;
            if let Some((_, url)) = &choice.datastore {
                class["datastoreUrl"] = json!(url);
            }
            reasons.extend(choice.reasons);
        }
        reasons.push(match default {
            Some(default) => format!("{default} stays the default StorageClass"),
            None => "it becomes the default, because the cluster has none".to_owned(),
        });
        screen.print(&shown(&class, &reasons, screen.width))?;
        if self.dry_run {
            screen.note("Nothing was changed.");
            return Ok(());
        }
        screen.confirm(&format!("Add the StorageClass {}?", self.name))?;
        if let Some(tag) = &self.tag {
            for vcenter in missing {
                create_policy(inspection, &vcenter, tag, screen).await?;
            }
        }
        add(cluster, config, &class).await?;
        screen.note("VDO creates it now: vdoctl status --wait");
        Ok(())
    }

    /// The vCenters that lack a policy.
    async fn without_policy(
        &self,
        inspection: &doctor::Inspection,
        policy: &str,
    ) -> Outcome<Vec<String>> {
        let mut missing = Vec::new();
        for (name, vcenter) in &inspection.vcenters {
            let policies = vcenter.storage_policies().await.map_err(|source| Failure::Other {
                text: format!("the storage policies of {name} cannot be read"),
                source: source.into(),
            })?;
            if !policies.iter().any(|known| known.name == policy) {
                missing.push(name.clone());
            }
        }
        Ok(missing)
    }
}

fn shown(class: &Value, reasons: &[String], width: usize) -> String {
    let name = class["name"].as_str().unwrap_or_default();
    let mut text = format!("{}\n", paint(STRONG, &format!("StorageClass {name}")));
    for (key, label) in [("datastoreUrl", "datastore"), ("storagePolicy", "policy")] {
        if let Some(value) = class[key].as_str() {
            text.push_str(&wrap("  ", &format!("{label}: {value}"), width));
        }
    }
    for reason in reasons {
        text.push_str(&wrap("  - ", reason, width));
    }
    text
}

async fn create_policy(
    inspection: &doctor::Inspection,
    vcenter: &str,
    tag: &Tag,
    screen: &Screen,
) -> Outcome {
    let Some(session) = inspection.vcenters.get(vcenter) else { return Ok(()) };
    let step = ProgressStep::begin(screen, format!("Create the storage policy {}", tag.policy()));
    let policy = tag.policy();
    let created = session.create_tag_policy(&policy, &tag.category, &tag.name);
    match critical::section(created).await {
        Ok(()) => {
            step.done("");
            Ok(())
        }
        Err(source) => {
            step.failed("");
            let text = format!(
                "{vcenter} did not create the storage policy; the account needs StorageProfile.Update"
            );
            Err(Failure::Other { text, source: source.into() })
        }
    }
}

/// Adds the class to the VDOConfig, unless somebody else changed the VDOConfig meanwhile.
async fn add(cluster: &Cluster, config: &VDOConfig, class: &Value) -> Outcome {
    let class: StorageClassSpec = serde_json::from_value(class.clone()).map_err(|source| {
        Failure::Other { text: "the StorageClass is invalid".to_owned(), source: source.into() }
    })?;
    let storage = config.spec.storage_provider.as_ref();
    let mut classes = storage.map(|s| s.storage_classes.clone()).unwrap_or_default();
    classes.push(class);
    let change = json!({
        "metadata": {"resourceVersion": config.resource_version()},
        "spec": {"storageProvider": {"storageClasses": classes}},
    });
    let namespace = config.namespace().unwrap_or_default();
    let configs = Api::<VDOConfig>::namespaced(cluster.client.clone(), &namespace);
    let parameters = PatchParams {
        field_manager: Some(writing::FIELD_MANAGER.into()),
        ..PatchParams::default()
    };
    let (name, change) = (config.name_any(), Patch::Merge(change));
    let patched = critical::section(configs.patch(&name, &parameters, &change)).await;
    patched.map(drop).doing("changing the VDOConfig")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_has_a_category_and_a_name() {
        let parsed = tag("k8s-storage:gold").unwrap();
        assert_eq!(parsed.policy(), "VDO k8s-storage:gold");
        for wrong in ["gold", ":gold", "k8s-storage:", ""] {
            assert!(tag(wrong).is_err(), "{wrong}");
        }
    }
}
