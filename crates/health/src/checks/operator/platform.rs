//! OpenShift and its cloud provider configuration agree.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "operator/platform",
    gives: &[codes::PLATFORM_DISAGREES],
    run: CheckScope::Cluster(&[], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let question = "whether OpenShift and its cloud provider configuration agree";
    let openshift = sink.need(&view.facts.cluster.openshift, cluster_subject, question);
    let Some(Some(openshift)) = openshift else { return };
    let mut disagree = |what: &str, known: &[String], other: &[String], from: &str, to: &str| {
        for name in known.iter().filter(|name| !other.contains(name)) {
            let problem = format!("{what} {name} is in {from} but not in {to}");
            let subject = Subject::kubernetes("Infrastructure", None, "cluster");
            sink.raise(Hit::new(codes::PLATFORM_DISAGREES, subject).with("problem", problem));
        }
    };
    let (infrastructure, config) = ("infrastructure/cluster", "the cloud provider's configuration");
    let (a, b) = (&openshift.infrastructure_vcenters, &openshift.configured_vcenters);
    disagree("vCenter", a, b, infrastructure, config);
    disagree("vCenter", b, a, config, infrastructure);
    let (a, b) = (&openshift.failure_domain_datacenters, &openshift.configured_datacenters);
    disagree("datacenter", a, b, "a failure domain", config);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Platform;

    #[test]
    fn a_failure_domain_the_configuration_does_not_know_is_reported() {
        let mut facts = crate::sample::cluster(Platform::OpenShift);
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        let openshift = facts.cluster.openshift.get_mut().unwrap().as_mut().unwrap();
        openshift.failure_domain_datacenters.push("vc-a.example.com/DC1".into());
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1807"]);
        facts.cluster.openshift = Known::unknown("VDO cannot read Infrastructures");
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1801"]);
    }

    #[test]
    fn other_platforms_have_no_such_thing() {
        assert_eq!(codes_of(&CHECK, &healthy()), [""; 0]);
    }
}
