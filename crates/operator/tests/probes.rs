//! What `/livez` and `/readyz` mean, and that two instances fit on one node. They are started as the
//! Deployment in `deploy/install.yaml` starts them, and asked as its probes ask.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::{path::PathBuf, process::Output, time::Duration};

use common::{NAMESPACE, Stage};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use rustix::process::Signal;
use serde_json::json;
use testkit::{FaultProxy, Port, Process, User, eventually};

/// A lease that is lost soon, and rounds that take as long as they like.
const TIMES: [&str; 2] = ["15", "600"];

/// An instance of the operator, and the socket on which it is asked.
struct Instance {
    process: Process,
    socket: PathBuf,
    program: PathBuf,
}

impl Instance {
    /// `times`: for how many seconds the lease holds, and after how many a round counts as stalled.
    fn start(
        stage: &Stage,
        name: &str,
        listen: &str,
        times: [&str; 2],
        proxy: Option<&FaultProxy>,
    ) -> Self {
        let account = User::service_account(NAMESPACE, "vdo");
        let kubeconfig = match proxy {
            Some(proxy) => stage.plane.kubeconfig_via(&account, proxy.address()),
            None => stage.plane.kubeconfig_as(&account),
        };
        let socket = stage.workdir.path().join(format!("{name}.sock"));
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
            Process::spawn(&stage.program, name, none, &variables, &stage.workdir).unwrap();
        Self { process, socket, program: stage.program.clone() }
    }

    /// Runs the program as a probe of the pod does.
    fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = std::process::Command::new(&self.program);
        command.args(arguments).env("VDO_SOCKET", &self.socket).output().unwrap()
    }

    /// Waits until a probe passes or fails; returns what it prints.
    async fn until(&self, question: &str, passes: bool, words: &str) -> String {
        eventually(&format!("{question} is {passes}: {words}"), 120, async || {
            assert!(self.process.ended().is_none(), "{}", self.process.tail());
            let answer = self.ask(&["probe", question]);
            let text = String::from_utf8_lossy(&answer.stdout).into_owned();
            if answer.status.success() == passes && text.contains(words) {
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
    let stage = Stage::of(0, false).await;
    let port = Port::reserve().unwrap();
    let listen = format!("127.0.0.1:{}", port.number);

    // Without its permissions it is live and not ready.
    let bindings = Api::<ClusterRoleBinding>::all(stage.client());
    let binding = bindings.get("vdo").await.unwrap();
    bindings.delete("vdo", &DeleteParams::default()).await.unwrap();
    let first = Instance::start(&stage, "first", &listen, ["30", "600"], None);
    first.until("ready", false, "[-] permissions: VDO-").await;
    first.until("live", true, "[+] progress ok").await;
    let mut again =
        ClusterRoleBinding { role_ref: binding.role_ref, ..ClusterRoleBinding::default() };
    again.metadata.name = Some("vdo".into());
    again.subjects = binding.subjects;
    bindings.create(&PostParams::default(), &again).await.unwrap();
    let page = first.until("ready", true, "[+] rounds ok").await;
    assert!(page.contains("[+] watches ok") && page.contains("[+] lease ok"), "{page}");
    eventually("the leader serves metrics", 30, async || metrics(&listen).await).await;

    // A standby has nothing to do and is ready; the port is the leader's.
    let second = Instance::start(&stage, "second", &listen, ["30", "600"], None);
    let page = second.until("ready", true, "[+] lease ok").await;
    assert!(!page.contains("rounds"), "{page}");
    let answer = second.ask(&["log-level", "debug"]);
    assert!(answer.status.success(), "{answer:?}");
    assert!(second.process.log().contains("log level changed"), "{}", second.process.tail());
    let refused = reqwest::Client::new().put(format!("http://{listen}/log-level")).body("debug");
    assert_eq!(refused.send().await.unwrap().status().as_u16(), 404);

    first.process.signal(Signal::TERM);
    let ended = first.process.wait(30).await;
    assert!(ended.is_some_and(|ended| ended.success()), "{}", first.process.tail());
    second.until("ready", true, "[+] rounds ok").await;
    let page = eventually("the next leader serves them", 60, async || metrics(&listen).await).await;
    assert!(page.contains("vdo_build_info"), "{page}");
    assert!(!first.ask(&["probe", "live"]).status.success(), "nobody is there any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_that_hangs_fails_livez_and_a_silent_api_server_the_readiness_of_a_standby() {
    let stage = Stage::of(1, false).await;
    let proxy = FaultProxy::before(stage.plane.address()).await;
    let leader = Instance::start(&stage, "leader", "127.0.0.1:0", ["600", "2"], Some(&proxy));
    leader.until("ready", true, "[+] rounds ok").await;
    leader.until("live", true, "[+] progress ok").await;

    // Every answer takes longer than a step of a round may take here.
    proxy.delay(Duration::from_secs(6));
    stage.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    leader.until("live", false, "[-] progress: no step has ended for 2 seconds").await;
    // None comes at all.
    proxy.black_hole();
    leader.until("live", false, "[-] progress: no step has ended for 2 seconds").await;
    proxy.heal();
    leader.until("live", true, "[+] progress ok").await;
    leader.until("ready", true, "[+] rounds ok").await;

    stage.dismiss(leader.process).await;

    let leader = Instance::start(&stage, "next", "127.0.0.1:0", TIMES, None);
    leader.until("ready", true, "[+] rounds ok").await;

    // A vCenter that does not answer is no reason to restart or to stop a rollout.
    stage.vcenter.process().signal(Signal::STOP);
    stage.change(json!({"spec": {"storageProvider": {"clusterDistribution": "other"}}})).await;
    for _ in 0..20 {
        let ready = leader.ask(&["probe", "ready"]);
        assert!(ready.status.success(), "{ready:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    stage.vcenter.process().signal(Signal::CONT);

    let standby = Instance::start(&stage, "standby", "127.0.0.1:0", TIMES, Some(&proxy));
    standby.until("ready", true, "[+] lease ok").await;
    proxy.black_hole();
    standby.until("ready", false, "[-] lease: the API server does not answer").await;
    standby.until("live", true, "[+] progress ok").await;
    proxy.heal();
    standby.until("ready", true, "[+] lease ok").await;
}
