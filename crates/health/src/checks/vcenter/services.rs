//! The vCenter services that the drivers need answer.

use crate::{
    checks::prelude::*,
    facts::{Service, ServiceState},
};

pub(super) const CHECK: Check = Check {
    name: "vcenter/services",
    gives: &[codes::SERVICE_DOWN],
    run: CheckScope::Cluster(&[], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let wanted = &view.facts.wanted;
    for vcenter in view.facts.vcenters.values() {
        for (service, state) in &vcenter.services {
            let needed = match service {
                Service::Volumes | Service::Policies => wanted.storage.is_some(),
                Service::Tags => !wanted.categories().is_empty(),
            };
            if !needed {
                continue;
            }
            let question = format!("whether {} provides {}", vcenter.address, service.purpose());
            let Some(ServiceState::Fails { reason }) =
                sink.need_from_vcenter(state, vcenter, &question)
            else {
                continue;
            };
            sink.raise(
                super::hit(codes::SERVICE_DOWN, vcenter)
                    .with("reason", reason)
                    .shared("purpose", service.purpose())
                    .shared("unit", service.unit()),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_service_is_reported_with_its_unit() {
        shows(
            &CHECK,
            &["VDO-1313"],
            |facts| {
                let state = ServiceState::Fails { reason: "503 Service Unavailable".into() };
                facts.vcenter().services.insert(Service::Volumes, state.into());
            },
            |facts| {
                facts.vcenter().services.insert(Service::Tags, Known::unknown("it was not asked"));
            },
        );
    }

    #[test]
    fn tags_do_not_matter_without_zones() {
        let mut facts = healthy();
        facts.wanted.storage = None;
        facts.wanted.cloud.as_mut().unwrap().zone = None;
        facts.wanted.cloud.as_mut().unwrap().region = None;
        let state = ServiceState::Fails { reason: "503".into() };
        facts.vcenter().services.insert(Service::Tags, state.into());
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
