//! Translates the state of one vCenter into facts for the checks.

use health::facts::{About, Inventory, Known, Login, Reach, Tls, Vcenter, Version};
use jiff::Timestamp;
use vsphere::{AboutInfo, Client, Error, LoginRefusal};

use crate::{
    audit::{Audit, inventory},
    vcenters::refusal,
};

/// Describes a vCenter that accepted the login. Without an audit, the facts that only an audit collects
/// are unknown.
pub(super) fn connected(
    mut vcenter: Vcenter,
    client: &Client,
    mut inventory: Known<Inventory>,
    audit: Option<&Audit>,
) -> Vcenter {
    vcenter.reach = Reach::Answers.into();
    vcenter.login = Login::Accepted.into();
    vcenter.about = match client.about() {
        Ok(about) => self::about(&about),
        Err(error) => Known::unknown(&error.error_chain()),
    };
    if let Some(audit) = audit {
        vcenter.tls = audit.tls_probe.tls.clone();
        vcenter.clock_ahead = audit.tls_probe.clock_ahead.clone();
        vcenter.sessions = audit.sessions.clone();
        vcenter.services.clone_from(&audit.services);
        vcenter.grants = audit.grants.clone();
        vcenter.tasks = audit.tasks.clone();
        if let Some(inventory) = inventory.get_mut() {
            inventory.tags = audit.tags.clone();
            inventory.policies = audit.policies.clone();
            inventory.file_service = audit.file_service.clone();
            inventory.host_groups = audit.host_groups.clone();
        }
    }
    vcenter.inventory = inventory;
    vcenter
}

/// Describes a vCenter that VDO cannot try, or has not tried yet.
pub(super) fn untried(mut vcenter: Vcenter, reason: &str) -> Vcenter {
    vcenter.reach = Known::unknown(reason);
    vcenter.inventory = Known::unknown(reason);
    vcenter.about = Known::unknown(reason);
    vcenter.clock_ahead = Known::unknown(reason);
    vcenter.grants = Known::unknown(reason);
    vcenter.tasks = Known::unknown(reason);
    vcenter.tls = Known::unknown(reason);
    vcenter.login = Known::unknown(reason);
    vcenter
}

/// Describes a vCenter that refuses the login or is unreachable. The last known inventory can still be
/// shown.
pub(super) fn failed(vcenter: Vcenter, error: &Error) -> Vcenter {
    let error_chain = error.error_chain();
    let mut vcenter = untried(vcenter, &error_chain);
    vcenter.reach = Reach::Answers.into();
    match error {
        Error::Unresolvable { .. } | Error::BadAddress { .. } => {
            vcenter.reach = Reach::NoSuchName { reason: error_chain }.into();
        }
        Error::NotTls { .. } | Error::NotVcenter { .. } | Error::Esxi { .. } => {
            vcenter.reach = Reach::NotAVcenter { reason: error_chain }.into();
        }
        Error::Certificate { refused, .. } => {
            vcenter.tls = Tls {
                distrusted: Some(refused.to_string()),
                expires: Timestamp::MAX,
                outdated: None,
                thumbprint: refused.seen.to_string(),
            }
            .into();
        }
        Error::LoginRefused { reason, .. } => {
            let reason_text = refusal::text(*reason);
            vcenter.login = match reason {
                LoginRefusal::Locked => Login::Locked { reason: reason_text },
                _ => Login::Refused { reason: reason_text },
            }
            .into();
        }
        Error::NoSuchDatacenter { existing, .. } => {
            let names = existing.iter().filter_map(|path| path.rsplit('/').next());
            vcenter.only_datacenters = Some(names.map(str::to_owned).collect());
            vcenter.login = Login::Accepted.into();
        }
        error if error.is_transient() => {
            vcenter.reach = Reach::NoAnswer { reason: error_chain }.into();
        }
        // vCenter answers, and something else is wrong. The check that needs the answer reports it.
        _ => {}
    }
    vcenter
}

fn about(about: &AboutInfo) -> Known<About> {
    match about.version.parse::<Version>() {
        Ok(_) => Known::Known(About {
            version: inventory::version(Some(&about.version), Some(&about.api_version)),
            instance_uuid: about.instance_uuid.clone().unwrap_or_default(),
        }),
        Err(reason) => Known::Unknown { reason },
    }
}
