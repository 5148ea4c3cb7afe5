//! Converts the drivers' workloads into facts for the checks.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
};

use catalog::{Driver as Which, Implementation};
use health::facts::{
    Container, DriverAccount, Event, InstalledDriver, Known, Pod, Version, Waiting, Workload,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod as KubePod};
use kube::ResourceExt;
use plan::{
    ObjectId,
    facts::{DriverWorkload, WorkloadRole},
    names,
};

use super::{
    crash_logs::ReadLogs,
    driver_permissions::{AccountOfWorkload, ClusterPermissions},
    drivers::belongs_to,
    events::Warning,
    pods,
    releases::Releases,
    site::{Place, RelatedObjects, map},
};

/// How long a pod has to become ready before VDO reports it, in seconds.
const TIMEOUT: i64 = 120;
/// Waiting reasons of a container that is still starting, which are not a fault.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// The container of the sidecar that creates volumes.
const PROVISIONER: &str = "csi-provisioner";

/// A Deployment or DaemonSet of a driver.
#[derive(Clone, Copy)]
pub(crate) struct DriverPart<'a> {
    pub(crate) id: &'a ObjectId,
    pub(crate) workload: &'a DriverWorkload,
    /// Whether VDO manages it.
    pub(crate) ours: bool,
}

impl DriverPart<'_> {
    fn images(&self) -> impl Iterator<Item = (&String, &String)> {
        self.workload.origin.containers.iter().map(|(name, (image, _))| (name, image))
    }

    fn selector(&self) -> String {
        let labels = self.workload.selector.iter().map(|(key, value)| format!("{key}={value}"));
        labels.collect::<Vec<_>>().join(",")
    }

    /// Whether the provisioner passes topology to the driver.
    fn topology(&self) -> Option<bool> {
        let (_, arguments) = self.workload.origin.containers.get(PROVISIONER)?;
        let gate = arguments.iter().find_map(|argument| {
            let gates = argument.strip_prefix("--feature-gates=")?;
            gates.split(',').find_map(|gate| gate.strip_prefix("Topology="))
        });
        gate.map(|value| value.eq_ignore_ascii_case("true"))
    }

    /// Whether its controller has replaced every pod since the latest change.
    fn is_current(&self) -> bool {
        self.workload.current && self.workload.updated >= self.workload.wanted
    }
}

/// The state of everything around the drivers.
pub(crate) struct DriverContext<'a, P: Borrow<KubePod>> {
    pub(crate) now: Timestamp,
    pub(crate) pods: &'a [P],
    pub(crate) warnings: &'a [Warning],
    /// Whether a driver's release is being rolled out and has not reached its timeout.
    pub(crate) changing: &'a dyn Fn(Which) -> bool,
    /// The other objects in the cluster.
    pub(crate) site: &'a RelatedObjects,
    /// The catalog's data about releases.
    pub(crate) releases: &'a Releases<'a>,
    /// The crash logs of containers.
    pub(crate) crash_logs: &'a ReadLogs,
    /// Looks at the ClusterRoles and their bindings, if VDO can read them.
    pub(crate) permissions: &'a PermissionsReader<'a>,
}

/// Compares accounts with the ClusterRoles and their bindings.
pub(crate) type Comparison<'c> = dyn Fn(&ClusterPermissions<'_>) -> Vec<DriverAccount> + 'c;
pub(crate) type PermissionsReader<'a> = dyn Fn(&Comparison<'_>) -> Known<Vec<DriverAccount>> + 'a;

/// One driver from its parts; none if there are none. Of two installations, the one that VDO manages wins,
/// otherwise the first.
pub(crate) fn driver<P: Borrow<KubePod>>(
    which: Which,
    parts: &[DriverPart<'_>],
    context: &DriverContext<'_, P>,
) -> Option<InstalledDriver> {
    let own: Vec<&DriverPart<'_>> =
        parts.iter().filter(|part| part.workload.driver == which).collect();
    let main = own.iter().find(|part| part.ours).or(own.first())?;
    let namespace = main.id.namespace.clone();
    let ours = main.ours;
    let together = own.iter().filter(|part| part.id.namespace == namespace && part.ours == ours);
    let changing = (context.changing)(which);
    let together: Vec<&&DriverPart<'_>> = together.collect();
    let provisioner = together.iter().flat_map(|part| part.images());
    let provisioner = provisioner.filter(|(name, _)| *name == PROVISIONER);
    let version = |part: &&&DriverPart<'_>| part.workload.version.as_ref()?.parse().ok();
    let origins = || together.iter().map(|part| &part.workload.origin);
    let storage = which == Which::Csi;
    let site = context.site;
    let features = format!("{namespace}/{FEATURES}");
    let mut driver = InstalledDriver {
        name: which.to_string(),
        version: together.iter().find_map(version),
        upstream: !together.iter().any(|part| runs_our_image(part)),
        unsuitable: None,
        workloads: together.iter().map(|part| workload(part, changing, context)).collect(),
        config_secret: config_secret(which, &together, site),
        crds: if storage { definitions(site) } else { BTreeMap::new().into() },
        features: if storage {
            map(&site.features, |all| all.get(&features).cloned().unwrap_or_default())
        } else {
            BTreeMap::new().into()
        },
        release_features: BTreeMap::new(),
        provisioner_topology: together.iter().find_map(|part| part.topology()),
        kubelet_path: origins().find_map(|origin| origin.kubelet_path.clone()),
        provisioner: provisioner.map(|(_, image)| image).find_map(|image| tag(image)),
        pod_security: map(&site.pod_security, |all| all.get(&namespace).cloned()),
        registered: if storage {
            map(&site.csi_driver, |all| !all.is_empty())
        } else {
            true.into()
        },
        accounts: Vec::new().into(),
        namespace,
    };
    (driver.release_features, driver.unsuitable) = context.releases.facts_for(which, &driver);
    driver.accounts = accounts(which, &driver, &together, context);
    Some(driver)
}

/// The service accounts of the workloads that VDO does not apply. VDO restores the permissions of the others.
fn accounts<P: Borrow<KubePod>>(
    which: Which,
    driver: &InstalledDriver,
    parts: &[&&DriverPart<'_>],
    context: &DriverContext<'_, P>,
) -> Known<Vec<DriverAccount>> {
    let theirs: Vec<_> = parts.iter().filter(|part| !part.workload.labelled).collect();
    let release = context.releases.release_of(which, driver).zip(context.releases.kubernetes);
    let Some((release, kubernetes)) = release.filter(|_| !theirs.is_empty()) else {
        return Vec::new().into();
    };
    (context.permissions)(&|permissions| {
        let found = theirs.iter().filter_map(|part| {
            let of = AccountOfWorkload {
                role: part.workload.role,
                workload: format!("{} {}", part.id.kind, part.id.name),
                namespace: &part.id.namespace,
                account: &part.workload.origin.account,
                snapshots: part.images().any(|(_, image)| image.contains("csi-snapshotter")),
            };
            permissions.judge(release, kubernetes, &of)
        });
        found.collect()
    })
}

/// The CRDs that the storage driver needs, and whether each exists.
fn definitions(site: &RelatedObjects) -> Known<BTreeMap<String, bool>> {
    map(&site.definitions, |all| {
        DEFINITIONS.iter().map(|name| ((*name).to_owned(), all.contains_key(*name))).collect()
    })
}

/// The Secret of a driver, where VDO looks for it. VDO knows the name of the cloud controller's Secret only
/// if it has configured the controller: an adopted one reads its own Secret first. Outside the allowed namespaces, the pods show when the Secret is missing.
fn config_secret(
    which: Which,
    parts: &[&&DriverPart<'_>],
    site: &RelatedObjects,
) -> Known<Option<(String, bool)>> {
    let namespace = parts.first().map(|part| part.id.namespace.as_str()).unwrap_or_default();
    let settings = || parts.iter().find_map(|part| part.workload.origin.settings.clone());
    let name = match which {
        Which::Cpi => {
            let configured = parts.iter().any(|part| part.workload.labelled);
            configured.then(|| names::CPI_SECRET.to_owned())
        }
        Which::Csi => settings(),
    };
    let Some(name) = name.filter(|_| crate::allowed_namespaces::has(namespace)) else {
        return Known::Known(None);
    };
    // An adopted cloud controller keeps its namespace; VDO's Secret for it is always in `kube-system`.
    let namespace = if which == Which::Cpi { names::KUBE_SYSTEM } else { namespace };
    if namespace == names::KUBE_SYSTEM {
        return match site.kube_system_secrets.get(&name) {
            Some(there) => map(there, |there| Some((name, *there))),
            None => Known::unknown("VDO does not watch this Secret"),
        };
    }
    map(&site.secrets, |all| {
        let there = all.contains_key(&format!("{namespace}/{name}"));
        Some((name, there))
    })
}

/// The places to watch for pods that the cache of our pods lacks: those of drivers not managed by VDO, and,
/// without an operator, those of an adopted driver outside the allowed namespaces.
pub(crate) fn places(parts: &[DriverPart<'_>]) -> BTreeSet<Place> {
    let cached =
        |part: &DriverPart<'_>| part.ours && crate::allowed_namespaces::has(&part.id.namespace);
    let others = parts.iter().filter(|part| !cached(part) && !part.workload.selector.is_empty());
    others
        .map(|part| Place {
            namespace: part.id.namespace.clone(),
            labels: part.selector(),
            ..Place::default()
        })
        .collect()
}

/// The pods that belong to a driver and are not ready.
pub(crate) fn unready_pods<'p>(
    parts: &[DriverPart<'_>],
    pods: impl Iterator<Item = &'p KubePod>,
) -> impl Iterator<Item = &'p KubePod> {
    pods.filter(|pod| !pods::is_ready(pod)).filter(|pod| {
        parts.iter().any(|DriverPart { id, .. }| {
            pod.metadata.namespace.as_deref() == Some(id.namespace.as_str())
                && belongs_to(pod, &id.kind, &id.name)
        })
    })
}

/// A pod that is not ready, without the fields that no fact needs.
pub(crate) fn unready(pod: &KubePod) -> Option<KubePod> {
    (!pods::is_ready(pod)).then(|| {
        let mut pod = pod.clone();
        pods::slim(&mut pod);
        pod
    })
}

/// The node that the scheduler assigned to a pod. A slimmed pod has it in another field.
pub(crate) fn node_of(pod: &KubePod) -> Option<String> {
    let nominated = pod.status.as_ref().and_then(|status| status.nominated_node_name.clone());
    nominated.or_else(|| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()))
}

/// Whether a part runs the drivers of this project, not those of the Kubernetes project.
fn runs_our_image(part: &DriverPart<'_>) -> bool {
    let images = part.images().filter_map(|(_, image)| image.parse::<catalog::Image>().ok());
    images.map(|image| Implementation::of_image(&image.name)).any(|by| by == Implementation::Rust)
}

fn tag(image: &str) -> Option<Version> {
    image.split('@').next()?.rsplit_once(':')?.1.parse().ok()
}

/// Names of workloads of a second driver next to the one that [`driver`] describes. Helpers that a driver
/// installs, such as the cluster's snapshot controller, are not a driver; neither is a DaemonSet that selects
/// no node. A driver that VDO is adopting is the same driver before and after.
pub(crate) fn others(parts: &[DriverPart<'_>]) -> Vec<String> {
    let mut others = Vec::new();
    for which in [Which::Cpi, Which::Csi] {
        let own = parts.iter().filter(|DriverPart { workload, .. }| {
            workload.driver == which && workload.role != WorkloadRole::Helper
        });
        let own: Vec<&DriverPart<'_>> = own.collect();
        let mut controllers =
            own.iter().filter(|part| part.workload.role == WorkloadRole::Controller);
        let ours = controllers.clone().find(|part| part.ours);
        let Some(main) = ours.or_else(|| controllers.next()) else { continue };
        let second = own.iter().filter(|part| match part.workload.role {
            WorkloadRole::Controller => part.id != main.id,
            _ => part.id.namespace != main.id.namespace && part.workload.wanted > 0,
        });
        others.extend(second.map(|part| format!("{}/{}", part.id.namespace, part.id.name)));
    }
    others
}

fn workload<P: Borrow<KubePod>>(
    part: &DriverPart<'_>,
    changing: bool,
    context: &DriverContext<'_, P>,
) -> Workload {
    let DriverPart { id, workload, .. } = *part;
    let pods = context.pods.iter().map(Borrow::borrow).filter(|pod| {
        pod.metadata.namespace.as_deref() == Some(id.namespace.as_str())
            && belongs_to(pod, &id.kind, &id.name)
    });
    let mut unready: Vec<(&KubePod, Pod)> = pods
        .map(|pod| (pod, self::pod(pod, context.warnings, context.crash_logs)))
        .filter(|(_, pod)| !pod.ready)
        .collect();
    unready.sort_by(|a, b| a.1.name.cmp(&b.1.name));
    let young = |(seen, pod): &(&KubePod, Pod)| {
        let age = context.now.as_second() - unready_since(seen).as_second();
        let failed = seen.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Failed"));
        age < TIMEOUT
            && !failed
            && pod.containers.iter().all(|c| c.waiting.is_none())
            && pod.unschedulable.is_none()
    };
    let starting = !unready.is_empty() && unready.iter().all(young);
    let refused = context.warnings.iter().find(|warning| {
        warning.event.reason == "FailedCreate"
            && warning.object.starts_with(&format!("{}/{}", id.namespace, id.name))
            && workload.ready < workload.wanted
    });
    let mut pods: Vec<Pod> = unready.into_iter().map(|(_, pod)| pod).collect();
    pods.extend(moved(part));
    Workload {
        kind: id.kind.clone(),
        name: id.name.clone(),
        desired: u32::try_from(workload.wanted).unwrap_or_default(),
        ready: u32::try_from(workload.ready).unwrap_or_default(),
        changing: changing || !part.is_current() || starting,
        refused: refused.map(|warning| warning.event.message.clone()),
        added_fields: workload.origin.added_fields.clone(),
        pods,
    }
}

/// The template's images in the form of a pod. VDO reports an image that moved to another registry even while
/// the old one still runs.
fn moved(part: &DriverPart<'_>) -> Option<Pod> {
    let gone = part.images().filter(|(_, image)| image.starts_with("gcr.io/"));
    let containers: Vec<Container> = gone
        .map(|(name, image)| Container {
            name: name.clone(),
            image: image.clone(),
            ..Container::default()
        })
        .collect();
    let name = part.id.name.clone();
    (!containers.is_empty()).then(|| Pod { name, ready: true, containers, ..Pod::default() })
}

/// Since when a pod is not ready.
pub(crate) fn unready_since(pod: &KubePod) -> Timestamp {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    let since = ready.next().and_then(|condition| condition.last_transition_time.as_ref());
    let created = pod.metadata.creation_timestamp.as_ref();
    since.or(created).map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

fn pod(seen: &KubePod, warnings: &[Warning], crash_logs: &ReadLogs) -> Pod {
    let status = seen.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is = |kind: &str, answer: &str| {
        conditions.iter().find(|c| c.type_ == kind && c.status == answer)
    };
    let statuses = status.and_then(|status| status.container_statuses.as_deref());
    let name = seen.name_any();
    let object = format!("{}/{name}", seen.namespace().unwrap_or_default());
    let events = warnings.iter().filter(|w| w.kind == "Pod" && w.object == object);
    let unscheduled = is("PodScheduled", "False");
    Pod {
        node: node_of(seen),
        ready: is("Ready", "True").is_some(),
        unschedulable: unscheduled.map(|condition| {
            condition.message.clone().unwrap_or_else(|| "the scheduler gives no reason".to_owned())
        }),
        containers: statuses
            .unwrap_or_default()
            .iter()
            .map(|s| container(seen, s, crash_logs))
            .collect(),
        events: events.map(|w| w.event.clone()).take(3).collect::<Vec<Event>>(),
        name,
    }
}

fn container(pod: &KubePod, status: &ContainerStatus, crash_logs: &ReadLogs) -> Container {
    let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
    let waiting = waiting.filter(|waiting| {
        !STARTING.contains(&waiting.reason.as_deref().unwrap_or("ContainerCreating"))
    });
    let (last_lines, unread) = crash_logs.last_lines(pod, status);
    Container {
        name: status.name.clone(),
        image: status.image.clone(),
        waiting: waiting.map(|waiting| Waiting {
            reason: waiting.reason.clone().unwrap_or_default(),
            message: waiting.message.clone().unwrap_or_default(),
        }),
        restarts: u32::try_from(status.restart_count).unwrap_or_default(),
        last_lines,
        unread,
    }
}

/// The ConfigMap with the storage driver's feature switches.
pub(crate) const FEATURES: &str = "internal-feature-states.csi.vsphere.vmware.com";
/// The CRDs that the storage driver needs.
pub(crate) const DEFINITIONS: [&str; 1] = ["csinodetopologies.cns.vmware.com"];
/// The label with the pod security level that a namespace enforces.
pub(crate) const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";
