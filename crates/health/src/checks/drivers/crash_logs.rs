//! Faults that only a driver's logs show: unreadable configuration, a port in use, a name that it cannot
//! resolve.

use api::finding::Definition;

use crate::{
    checks::{
        meaning::{self, About, Meanings},
        prelude::*,
    },
    facts::Pod,
};

pub(super) const CHECK: Check = Check {
    name: "drivers/crash_logs",
    gives: &[
        codes::CONFIG_ESCAPES,
        codes::CPI_CONFIG_SHAPE,
        codes::PORT_IN_USE,
        codes::NAME_UNRESOLVED,
    ],
    run: CheckScope::Cluster(meaning::PARTS, check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    super::report_unknown_drivers(view, "why the drivers' containers crash", sink);
    let meanings = Meanings::new(view);
    for driver in view.drivers() {
        let pods = driver
            .workloads
            .iter()
            .flat_map(|workload| workload.pods.iter().map(move |pod| (workload, pod)));
        for (workload, pod) in pods {
            if pod.ready {
                continue;
            }
            for container in &pod.containers {
                let Some(reason) = &container.unread else { continue };
                let subject = Subject::kubernetes("Pod", Some(&driver.namespace), &pod.name);
                let question = format!("why container {} of {} crashes", container.name, pod.name);
                sink.cannot_tell(subject, question, reason)
                    .anchors
                    .push((Anchor::Driver, driver.name.clone()));
            }
            let about = About {
                node: pod.node.as_deref(),
                writer: Some((driver, workload)),
                ..About::default()
            };
            for (definition, line) in known_faults(pod, &meanings, &about) {
                if definition.code == codes::NAME_UNRESOLVED.code && driver.name != "CPI" {
                    continue;
                }
                let secret = driver.config_secret.get().and_then(Option::as_ref);
                let secret = secret.map_or("of the driver", |(name, _)| name);
                let hit = super::hit(definition, driver, pod).with("line", line);
                let hit = if definition.code == codes::NAME_UNRESOLVED.code {
                    hit.with("doubt", DOUBT).with("question", meanings.question(definition, &about))
                } else {
                    hit
                };
                sink.raise(
                    hit.with("secret", secret)
                        .with("port", port(line))
                        .shared("workload", workload.argument())
                        .shared(
                            "patch",
                            r#"{"spec":{"template":{"spec":{"dnsPolicy":"Default"}}}}"#,
                        ),
                );
            }
        }
    }
}

/// A name that is unknown to the node's DNS too is another fault.
const DOUBT: &str = "; not confirmed: VDO does not know whether the pod uses the cluster's DNS";

/// The faults in a pod's last log lines and warnings, each once.
fn known_faults<'l>(
    pod: &'l Pod,
    meanings: &Meanings<'_>,
    about: &About<'_>,
) -> Vec<(&'static Definition, &'l str)> {
    let lines = pod.containers.iter().flat_map(|c| &c.last_lines).map(String::as_str);
    let warnings = pod.events.iter().map(|event| event.message.as_str());
    let mut found: Vec<(&'static Definition, &str)> = Vec::new();
    for line in lines.chain(warnings) {
        let Some(meaning) = meanings.explain(line, about) else { continue };
        let Some(definition) = meaning.likeliest() else { continue };
        let ours = CHECK.gives.contains(&definition);
        if ours && !found.iter().any(|(known, _)| *known == definition) {
            found.push((definition, line));
        }
    }
    found
}

fn port(line: &str) -> &str {
    let tail = line.rsplit_once(": bind").map_or(line, |(head, _)| head);
    let digits =
        tail.rsplit(':').find(|part| part.len() > 1 && part.bytes().all(|b| b.is_ascii_digit()));
    digits.unwrap_or("9808")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crash_with(facts: &mut Facts, cloud: bool, line: &str) {
        let driver = if cloud { facts.cloud_driver() } else { facts.storage_driver() };
        let pod = &mut driver.workloads[0].pods[0];
        pod.ready = false;
        pod.containers[0].last_lines = vec![line.into()];
    }

    #[test]
    fn a_log_line_of_a_driver_leads_to_the_fault() {
        for (cloud, line, code) in [
            (false, r"3:1: unquoted '\' must be followed by new line or double quote", "VDO-1607"),
            (true, "no Virtual Center hosts defined", "VDO-1608"),
            (false, "listen tcp :9808: bind: address already in use", "VDO-1614"),
            (true, "dial tcp: lookup vc-a.example.com: no such host", "VDO-1618"),
        ] {
            shows(
                &CHECK,
                &[code],
                |facts| crash_with(facts, cloud, line),
                |facts| {
                    facts.cluster.drivers.cloud = Known::unknown("VDO cannot read logs");
                },
            );
        }
    }

    #[test]
    fn the_command_names_the_workload_of_the_pod_that_crashes() {
        let mut facts = healthy();
        crash_with(&mut facts, true, "dial tcp: lookup vc-a.example.com: no such host");
        facts.cloud_driver().workloads[0].name = "rancher-vsphere-cpi".into();
        let findings = crate::Examination::run(facts).report().all();
        let finding = findings.iter().find(|finding| finding.code == "VDO-1618").unwrap();
        let step = &finding.remedy[1];
        let command = "kubectl patch --namespace kube-system daemonset/rancher-vsphere-cpi --patch";
        assert!(step.starts_with(command), "{step}");
    }

    #[test]
    fn the_dns_of_a_pod_is_a_question_and_the_name_of_another_server_is_no_fault_of_it() {
        let mut facts = healthy();
        crash_with(&mut facts, true, "dial tcp: lookup vc-a.example.com: no such host");
        let findings = crate::Examination::run(facts.clone()).report().all();
        let finding = findings.iter().find(|finding| finding.code == "VDO-1618").unwrap();
        assert!(finding.seen.as_deref().unwrap().contains("not confirmed"), "{finding:#?}");
        assert!(
            finding.remedy[0].starts_with("kubectl get --namespace kube-system"),
            "{finding:#?}"
        );
        crash_with(&mut facts, true, "dial tcp: lookup registry.example.com: no such host");
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn unreadable_logs_are_reported_as_unknown() {
        let mut facts = healthy();
        crash_with(&mut facts, true, "starting");
        let reason = "its log cannot be read: pods \"x\" is forbidden";
        let container = &mut facts.cloud_driver().workloads[0].pods[0].containers[0];
        container.unread = Some(reason.into());
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1801"]);
        facts.cloud_driver().workloads[0].pods[0].ready = true;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn a_ready_driver_has_no_faults_in_its_old_logs() {
        let mut facts = healthy();
        crash_with(&mut facts, true, "no Virtual Center hosts defined");
        facts.cloud_driver().workloads[0].pods[0].ready = true;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn the_port_is_read_from_the_line() {
        assert_eq!(port("listen tcp 0.0.0.0:10258: bind: address already in use"), "10258");
        assert_eq!(port("address already in use"), "9808");
    }
}
