//! `/livez` and `/readyz`, and two instances on one node. The instances start, and the probes run, as in the
//! Deployment in `deploy/install.yaml`.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::{path::PathBuf, process::Output, time::Duration};

use common::{NAMESPACE, Testbed};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use rustix::process::Signal;
use serde_json::json;
use testkit::{FaultProxy, Port, Process, User, eventually};

/// A short lease, and a long limit for a round.
const TIMES: [&str; 2] = ["15", "600"];

struct Instance {
    process: Process,
    socket: PathBuf,
    program: PathBuf,
}

impl Instance {
    /// `times`: the lease duration, and the seconds after which a round counts as stalled.
    fn start(
        testbed: &Testbed,
        name: &str,
        listen: &str,
        times: [&str; 2],
        proxy: Option<&FaultProxy>,
    ) -> Self {
        let account = User::service_account(NAMESPACE, "vdo");
        let kubeconfig = match proxy {
            Some(proxy) => testbed.plane.kubeconfig_via(&account, proxy.address()),
            None => testbed.plane.kubeconfig_as(&account),
        };
        let socket = testbed.workdir.path().join(format!("{name}.sock"));
        let (kubeconfig, path) = (kubeconfig.display().to_string(), socket.display().to_string());
        let variables = [
            ("KUBECONFIG", kubeconfig.as_str()),
            ("VDO_NAMESPACE", NAMESPACE),
            ("POD_NAME", name),
            ("VDO_SOCKET", path.as_str()),
            ("VDO_LISTEN", listen),
            ("VDO_LEASE", times[0]),
            ("VDO_STALLED_AFTER", times[1]),
        ];
        let none: [&str; 0] = [];
        let process =
            Process::spawn(&testbed.program, name, none, &variables, &testbed.workdir).unwrap();
        Self { process, socket, program: testbed.program.clone() }
    }

    /// Runs the program as a probe of the pod does.
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = std::process::Command::new(&self.program);
        command.args(arguments).env("VDO_SOCKET", &self.socket).output().unwrap()
    }

    /// Waits until a probe passes or fails with this text; returns its output.
    async fn until(&self, probe: &str, passes: bool, expected: &str) -> String {
        eventually(&format!("{probe} is {passes}: {expected}"), 120, async || {
            assert!(self.process.ended().is_none(), "{}", self.process.tail());
            let answer = self.run(&["probe", probe]);
            let text = String::from_utf8_lossy(&answer.stdout).into_owned();
            if answer.status.success() == passes && text.contains(expected) {
                Ok(text)
            } else {
                Err(text)
            }
        })
        .await
    }
}

async fn metrics(address: &str) -> Result<String, String> {
    let page = reqwest::get(format!("http://{address}/metrics")).await;
    let page = page.map_err(|error| error.to_string())?;
    page.text().await.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_on_one_node_are_both_ready_and_the_leader_serves_the_metrics() {
    let testbed = Testbed::with_nodes(0).await;
    let port = Port::reserve().unwrap();
    let listen = format!("127.0.0.1:{}", port.number);

    // Without permissions an instance is live but not ready.
    let bindings = Api::<ClusterRoleBinding>::all(testbed.client());
    let binding = bindings.get("vdo").await.unwrap();
    bindings.delete("vdo", &DeleteParams::default()).await.unwrap();
    let first = Instance::start(&testbed, "first", &listen, ["30", "600"], None);
    first.until("ready", false, "[-] permissions: VDO-").await;
    first.until("live", true, "[+] progress ok").await;
    let mut restored =
        ClusterRoleBinding { role_ref: binding.role_ref, ..ClusterRoleBinding::default() };
    restored.metadata.name = Some("vdo".into());
    restored.subjects = binding.subjects;
    bindings.create(&PostParams::default(), &restored).await.unwrap();
    let page = first.until("ready", true, "[+] rounds ok").await;
    assert!(page.contains("[+] watches ok") && page.contains("[+] lease ok"), "{page}");
    eventually("the leader serves metrics", 30, async || metrics(&listen).await).await;

    // A standby without work is ready; only the leader has the port.
    let second = Instance::start(&testbed, "second", &listen, ["30", "600"], None);
    let page = second.until("ready", true, "[+] lease ok").await;
    assert!(!page.contains("rounds"), "{page}");
    let answer = second.run(&["log-level", "debug"]);
    assert!(answer.status.success(), "{answer:?}");
    assert!(second.process.log().contains("log level changed"), "{}", second.process.tail());
    let refused = reqwest::Client::new().put(format!("http://{listen}/log-level")).body("debug");
    assert_eq!(refused.send().await.unwrap().status().as_u16(), 404);

    first.process.signal(Signal::TERM);
    let ended = first.process.wait(30).await;
    assert!(ended.is_some_and(|ended| ended.success()), "{}", first.process.tail());
    second.until("ready", true, "[+] rounds ok").await;
    let page =
        eventually("the next leader serves metrics", 60, async || metrics(&listen).await).await;
    assert!(page.contains("vdo_build_info"), "{page}");
    assert!(!first.run(&["probe", "live"]).status.success(), "the first instance has ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_reconcile_fails_livez_and_a_silent_api_server_fails_readyz_of_a_standby() {
    let testbed = Testbed::with_nodes(1).await;
    let proxy = FaultProxy::before(testbed.plane.address()).await;
    let leader = Instance::start(&testbed, "leader", "127.0.0.1:0", ["600", "2"], Some(&proxy));
    leader.until("ready", true, "[+] rounds ok").await;
    leader.until("live", true, "[+] progress ok").await;

    // Every response takes longer than the limit for a step.
    proxy.delay(Duration::from_secs(6));
    testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    leader.until("live", false, "[-] progress: no step has ended for 2 seconds").await;
    // No response arrives.
    proxy.black_hole();
    leader.until("live", false, "[-] progress: no step has ended for 2 seconds").await;
    proxy.heal();
    leader.until("live", true, "[+] progress ok").await;
    leader.until("ready", true, "[+] rounds ok").await;

    testbed.stop(leader.process).await;

    let leader = Instance::start(&testbed, "next", "127.0.0.1:0", TIMES, None);
    leader.until("ready", true, "[+] rounds ok").await;

    // A vCenter that does not answer is no reason to restart or to stop a rollout.
    testbed.vcenter.process().signal(Signal::STOP);
    testbed.change(json!({"spec": {"storageProvider": {"clusterDistribution": "other"}}})).await;
    for _ in 0..20 {
        let ready = leader.run(&["probe", "ready"]);
        assert!(ready.status.success(), "{ready:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    testbed.vcenter.process().signal(Signal::CONT);

    let standby = Instance::start(&testbed, "standby", "127.0.0.1:0", TIMES, Some(&proxy));
    standby.until("ready", true, "[+] lease ok").await;
    proxy.black_hole();
    // The reason is a timeout of the watch, or an error of the connection that died first.
    standby.until("ready", false, "[-] lease: ").await;
    standby.until("live", true, "[+] progress ok").await;
    proxy.heal();
    standby.until("ready", true, "[+] lease ok").await;
}
