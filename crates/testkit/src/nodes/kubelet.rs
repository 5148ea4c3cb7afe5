//! The tasks of a kubelet for pods and CSI drivers that KWOK does not do.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    storage::v1::{CSINode, CSINodeDriver},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
    runtime::{reflector, reflector::Store, watcher},
};
use serde_json::json;
use tokio::{sync::watch, time::sleep};

const FATE: &str = "testkit.vdo/fate";
/// The end of the log of a crashing container: KWOK writes it into the status, like a kubelet.
const CRASH_LOG: &str = "testkit.vdo/crash-log";

/// The prefix of a rule for a node; no pod name and no image begins with it.
const ON: &str = "on node ";

/// The state of a pod after it is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It runs and is Ready.
    Ready,
    /// Its image cannot be pulled.
    ImagePullFails,
    /// Its containers crash again and again.
    Crashes,
    /// The containers crash, and their logs end with this text. Like with a real kubelet, it is in the pod's status only if
    /// the container's `terminationMessagePolicy` requests it.
    CrashesSaying(&'static str),
    /// Its node has no space left: the kubelet evicts it, and every replacement.
    Evicted,
    /// Nothing happens to it.
    Pending,
    /// The kubelet of its node is down: it stays as it is, and if somebody deletes it, it stays Terminating.
    Unattended,
}

impl Fate {
    fn annotation(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::ImagePullFails => "image-pull",
            Self::Crashes | Self::CrashesSaying(_) => "crash",
            Self::Evicted => "evicted",
            Self::Pending => "pending",
            Self::Unattended => "unattended",
        }
    }

    fn crash_log(self) -> &'static str {
        match self {
            Self::CrashesSaying(text) => text,
            Self::Crashes => "the container exits at once",
            _ => "",
        }
    }
}

/// The rules of [`super::Nodes::pods`], the latest last.
#[derive(Clone)]
pub(super) struct Fates(Arc<watch::Sender<Vec<(String, Fate)>>>);

impl Default for Fates {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Vec::new())))
    }
}

impl Fates {
    pub(super) fn decide(&self, text: &str, fate: Fate) {
        self.0.send_modify(|rules| rules.push((text.into(), fate)));
    }

    /// The crash log of a pod that crashes.
    pub(super) fn crash_log(&self, pod: &Pod) -> Option<&'static str> {
        let fate = self.fate(pod);
        matches!(fate, Fate::Crashes | Fate::CrashesSaying(_)).then(|| fate.crash_log())
    }

    /// Sets the fate of the pods on a node.
    pub(super) fn decide_on(&self, node: &str, fate: Option<Fate>) {
        self.0.send_modify(|rules| {
            let text = format!("{ON}{node}");
            rules.retain(|(rule, _)| *rule != text);
            rules.extend(fate.map(|fate| (text, fate)));
        });
    }

    fn fate(&self, pod: &Pod) -> Fate {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let on = node.map(|node| format!("{ON}{node}"));
        if let Some((_, fate)) = self.0.borrow().iter().find(|(text, _)| Some(text) == on.as_ref())
        {
            return *fate;
        }
        let names = || {
            let spec = pod.spec.iter();
            let images = spec.flat_map(|s| &s.containers).filter_map(|c| c.image.as_deref());
            images.chain(pod.metadata.name.as_deref())
        };
        let rules = self.0.borrow();
        let rule = rules.iter().rev().find(|(text, _)| names().any(|name| name.contains(text)));
        rule.map_or(Fate::Ready, |(_, fate)| *fate)
    }
}

/// Serves all pods until dropped: writes their fates for KWOK, and registers the CSI drivers of running pods.
pub(super) async fn serve(client: Client, fates: Fates) {
    let pods = Api::<Pod>::all(client.clone());
    let (store, writer) = reflector::store();
    let stream = reflector(writer, watcher(pods, watcher::Config::default()));
    let mut events = std::pin::pin!(stream.boxed());
    let mut rules = fates.0.subscribe();
    loop {
        tokio::select! {
            event = events.try_next() => match event {
                Ok(Some(event)) => on_event(&client, &fates, event).await,
                Ok(None) => return,
                // The API server is unreachable or restarting: the watcher restarts by itself.
                Err(_) => sleep(Duration::from_millis(100)).await,
            },
            Ok(()) = rules.changed() => settle(&client, &fates, &store).await,
        }
    }
}

async fn on_event(client: &Client, fates: &Fates, event: watcher::Event<Pod>) {
    match event {
        watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) => {
            write_fate(client, fates, &pod).await;
            if is_ready(&pod) {
                register_driver(client, &pod, true).await;
            }
        }
        watcher::Event::Delete(pod) => register_driver(client, &pod, false).await,
        watcher::Event::Init | watcher::Event::InitDone => {}
    }
}

/// Leaves the pods of a node as they are. Returns after KWOK cannot change them any more, and after they have the
/// condition that the controller-manager writes when a node is down.
pub(super) async fn stop(client: &Client, fates: &Fates, node: &str) -> Result<(), kube::Error> {
    fates.decide_on(node, Some(Fate::Unattended));
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let condition = json!({"type": "Ready", "status": "False", "reason": "NodeNotReady"});
    let lost = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    for pod in Api::<Pod>::all(client.clone()).list(&on_node).await? {
        write_fate(client, fates, &pod).await;
        let pods = Api::<Pod>::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &lost).await?;
    }
    Ok(())
}

async fn settle(client: &Client, fates: &Fates, store: &Store<Pod>) {
    for pod in store.state() {
        write_fate(client, fates, &pod).await;
    }
}

async fn write_fate(client: &Client, fates: &Fates, pod: &Pod) {
    let fate = fates.fate(pod);
    let (log, fate) = (fate.crash_log(), fate.annotation());
    let now = |key: &str| pod.annotations().get(key).map_or("", String::as_str);
    if now(FATE) == fate && now(CRASH_LOG) == log {
        return;
    }
    let pods = Api::<Pod>::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let patch = json!({"metadata": {"annotations": {FATE: fate, CRASH_LOG: log}}});
    // A deleted pod needs no fate; the next event retries any other failure.
    let _ = pods.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// The CSI driver of a pod, from the socket that its registrar passes to the kubelet.
fn driver_of(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let mut arguments = spec.containers.iter().flat_map(|c| c.args.iter().flatten());
    let path = arguments.find_map(|a| a.strip_prefix("--kubelet-registration-path="))?;
    // A kubelet does not see a socket outside its own directory.
    let path = path.strip_prefix("/var/lib/kubelet/")?;
    path.rsplit('/').nth(1).map(str::to_owned)
}

/// Adds or removes the driver of a pod in the CSINode of its node, as the kubelet does when the registrar's socket appears
/// or disappears.
async fn register_driver(client: &Client, pod: &Pod, wanted: bool) {
    let (Some(driver), Some(node)) =
        (driver_of(pod), pod.spec.as_ref().and_then(|spec| spec.node_name.clone()))
    else {
        return;
    };
    let csi_nodes = Api::<CSINode>::all(client.clone());
    for _ in 0..10 {
        let Ok(mut csi_node) = csi_nodes.get(&node).await else {
            return;
        };
        let drivers = &mut csi_node.spec.drivers;
        let registered = drivers.iter().any(|d| d.name == driver);
        if registered == wanted {
            return;
        }
        if wanted {
            let node_id = system_uuid(client, &node).await.unwrap_or_else(|| node.clone());
            drivers.push(CSINodeDriver {
                name: driver.clone(),
                node_id,
                topology_keys: Some(topology_keys()),
                ..Default::default()
            });
        } else {
            drivers.retain(|d| d.name != driver);
        }
        if csi_nodes.replace(&node, &PostParams::default(), &csi_node).await.is_ok() {
            return;
        }
    }
}

/// The topology keys of a registered node. The simulation assumes that the driver knows zone and region.
pub(crate) fn topology_keys() -> Vec<String> {
    ["k8s-region", "k8s-zone"].map(|key| format!("topology.csi.vmware.com/{key}")).into()
}

async fn system_uuid(client: &Client, node: &str) -> Option<String> {
    let node = Api::<Node>::all(client.clone()).get(node).await.ok()?;
    let uuid = node.status?.node_info?.system_uuid;
    (!uuid.is_empty()).then_some(uuid)
}
