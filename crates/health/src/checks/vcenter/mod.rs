//! vCenters.

mod account;
mod certificate;
mod clock;
mod credentials;
mod datacenters;
mod reachable;
mod services;
mod sessions;
mod shared_datastore;
mod version;

use std::net::Ipv6Addr;

use api::finding::Definition;

use crate::{
    check::{Check, Hit},
    facts::Vcenter,
    view::vcenter_subject,
};

pub(super) const CHECKS: &[&Check] = &[
    &reachable::CHECK,
    &certificate::CHECK,
    &account::CHECK,
    &credentials::CHECK,
    &clock::CHECK,
    &version::CHECK,
    &sessions::CHECK,
    &services::CHECK,
    &shared_datastore::CHECK,
    &datacenters::CHECK,
];

fn hit(definition: &'static Definition, vcenter: &Vcenter) -> Hit {
    let (host, port) = host_and_port(&vcenter.address);
    Hit::new(definition, vcenter_subject(vcenter))
        .with("address", &vcenter.address)
        .with("authority", port.map_or_else(|| host.clone(), |port| format!("{host}:{port}")))
        .with("console", host)
        .with("config", &vcenter.name)
        .vcenter(&vcenter.name)
}

/// The host of an address as in a URL, and its port. The address can be a URL, and can be an IPv6 address with or
/// without brackets.
fn host_and_port(address: &str) -> (String, Option<u16>) {
    let address = address.split_once("://").map_or(address, |(_, rest)| rest);
    let address = address.split('/').next().unwrap_or_default();
    if address.parse::<Ipv6Addr>().is_ok() {
        return (format!("[{address}]"), None);
    }
    match address.rsplit_once(':').map(|(host, port)| (host, port.parse().ok())) {
        Some((host, port @ Some(_))) => (host.to_owned(), port),
        _ => (address.to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Examination, facts::ServiceState, shortcuts::Shortcuts, testing::healthy};

    #[test]
    fn a_url_has_one_port_and_brackets_around_an_ipv6_address() {
        for (address, console) in [
            ("vc.example.com", "https://vc.example.com:5480"),
            ("vc.example.com:8443", "https://vc.example.com:5480"),
            ("fd00::1", "https://[fd00::1]:5480"),
            ("[fd00::1]:8443", "https://[fd00::1]:5480"),
            ("192.0.2.1:443", "https://192.0.2.1:5480"),
        ] {
            let mut facts = healthy();
            address.clone_into(&mut facts.vcenter().address);
            let down = ServiceState::Fails { reason: "503".into() };
            facts.vcenter().services.insert(crate::facts::Service::Volumes, down.into());
            facts.vcenter().clock_ahead = 300.into();
            let found = Examination::run(facts).report().all();
            for code in ["VDO-1309", "VDO-1313"] {
                let finding = found.iter().find(|finding| finding.code == code).unwrap();
                assert!(finding.remedy[0].contains(console), "{address}: {:?}", finding.remedy);
            }
        }
        assert_eq!(super::host_and_port("[fd00::1]:8443"), ("[fd00::1]".into(), Some(8443)));
    }
}
