//! Zone and region are configured together or not at all.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "zones/zone_and_region",
    gives: &[codes::ZONE_HALF],
    run: CheckScope::Cluster(&[], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let question = "whether both zone and region are configured";
    if sink.need(&view.facts.wanted.read, cluster_subject, question).is_none() {
        return;
    }
    let Some(cloud) = &view.facts.wanted.cloud else { return };
    let (present, absent) = match (&cloud.zone, &cloud.region) {
        (Some(_), None) => ("cloudProvider.topology.zone", "cloudProvider.topology.region"),
        (None, Some(_)) => ("cloudProvider.topology.region", "cloudProvider.topology.zone"),
        _ => return,
    };
    let hit = Hit::new(codes::ZONE_HALF, cluster_subject());
    sink.raise(hit.with("present", present).with("absent", absent));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_without_a_region_is_reported() {
        shows(
            &CHECK,
            &["VDO-1707"],
            |facts| facts.wanted.cloud.as_mut().unwrap().region = None,
            |facts| facts.wanted.read = Known::unknown("VDO cannot list VDOConfigs"),
        );
        let mut facts = healthy();
        facts.wanted.cloud.as_mut().unwrap().region = None;
        facts.wanted.cloud.as_mut().unwrap().zone = None;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "no zones at all is a choice");
    }
}
