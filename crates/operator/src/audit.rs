//! Audits a vCenter: privileges, tags, policies, volumes and sessions.
//!
//! The watched inventory contains none of these. VDO audits a vCenter when an input of the audit changes,
//! when a user requests an audit, and otherwise at a slow pace. The number of calls does not grow with the
//! number of nodes, except for one privilege query per `AT_ONCE` VMs.

pub(crate) mod inventory;
mod missing_privileges;
mod tls_probe;

use std::collections::{BTreeMap, BTreeSet};

use api::vsphere_cloud_config::Privileges;
use health::{
    facts::{
        CnsVolume, Entity, EntityKind, Grants, HostGroup, Known, Service, ServiceState, Sessions,
        StoragePolicy, Tag, Tags, Wanted,
    },
    privileges,
};
use jiff::Timestamp;
use vsphere::{
    Client, Error, FaultKind, Kind, MoRef,
    cns::{QueryFilter, Volume, VolumeId},
    inventory::Tree,
};

use self::inventory::id;
pub(crate) use self::tls_probe::AnswerProbe;
pub use self::{
    inventory::{SELECTION_OF_VMS, selection, vm_facts},
    tls_probe::TlsProbe,
};

/// The maximum number of objects in one privilege query.
const AT_ONCE: usize = 500;
/// The maximum number of clusters to query for their file service.
const MOST_CLUSTERS: usize = 32;
/// Timeout for vCenter to list snapshots.
const WITHIN: std::time::Duration = std::time::Duration::from_mins(1);
/// The number of volumes to query for their cluster id.
const SAMPLE: usize = 20;

/// The inputs of an audit.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// The features that the drivers must provide.
    pub wanted: Wanted,
    /// The VMs of the nodes.
    pub vms: BTreeSet<MoRef>,
    /// References of the hosts. VDO has not read the tags of a new host yet.
    pub hosts: BTreeSet<String>,
    /// The cluster's id in CNS, if it has one.
    pub cluster_id: Option<String>,
    /// Handles of some volumes in Kubernetes. The audit uses them to find the cluster id that they were
    /// created under.
    pub volumes: Vec<String>,
    /// Policies that StorageClasses name.
    pub policies: BTreeSet<String>,
    /// Failure domains that are host groups, in any vCenter.
    pub domains: Vec<Domain>,
    /// The value of the annotation that requests an audit.
    pub asked: String,
    /// Whether the answers so far report a problem. Nothing notifies VDO when somebody fixes it.
    pub amiss: bool,
}

/// A failure domain that is a host group.
#[derive(Clone, Debug, PartialEq)]
pub struct Domain {
    pub name: String,
    /// Address of its vCenter.
    pub server: String,
    /// Path of its cluster.
    pub cluster: String,
    pub group: String,
}

impl Question {
    /// Whether this question needs no second audit after `other`. The comparison ignores volumes, because
    /// they change all the time.
    pub fn is_like(&self, other: &Self) -> bool {
        self.wanted == other.wanted
            && self.vms == other.vms
            && self.hosts == other.hosts
            && self.cluster_id == other.cluster_id
            && self.policies == other.policies
            && self.domains == other.domains
            && self.asked == other.asked
    }
}

/// The answers of a vCenter.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    /// When the audit started.
    pub at: Timestamp,
    /// See [`Question::asked`].
    pub asked: String,
    /// Certificate and clock.
    pub tls_probe: TlsProbe,
    pub sessions: Known<Sessions>,
    /// The result of a call to each service.
    pub services: BTreeMap<Service, Known<ServiceState>>,
    /// The privileges that the account holds.
    pub grants: Known<Grants>,
    /// The privileges that the account lacks, in the form that the status shows.
    pub missing_privileges: Option<Privileges>,
    /// Whether the account has permission to watch tasks.
    pub tasks: Known<bool>,
    pub tags: Known<Tags>,
    pub policies: Known<Vec<StoragePolicy>>,
    /// Clusters with file service.
    pub file_service: Known<BTreeSet<String>>,
    /// Host groups that represent zones.
    pub host_groups: Known<Vec<HostGroup>>,
    /// Volumes under this cluster's id, by volume id.
    pub cns: Known<BTreeMap<String, CnsVolume>>,
    /// Names and datastores of those volumes, to find the volumes that nothing refers to.
    pub disks: BTreeMap<String, Disk>,
    /// The number of all volumes in this vCenter, of any cluster.
    pub total: Known<u32>,
    /// The number of snapshots of each volume, by volume id. Volumes without snapshots are absent.
    pub snapshots: Known<BTreeMap<String, u32>>,
    /// The cluster id that the volumes in Kubernetes were created under.
    pub made_under: Known<Option<String>>,
}

impl Audit {
    /// Whether both audits have the same answers. The comparison ignores their time, and clock differences of
    /// a few seconds.
    pub fn says_the_same_as(&self, other: &Self) -> bool {
        let clock = match (&self.tls_probe.clock_ahead, &other.tls_probe.clock_ahead) {
            (Known::Known(one), Known::Known(two)) => (one - two).abs() <= 5,
            (one, two) => one == two,
        };
        let mut like_other = self.clone();
        like_other.at = other.at;
        if clock {
            like_other.tls_probe.clock_ahead = other.tls_probe.clock_ahead.clone();
        }
        like_other == *other
    }
}

/// A volume in CNS.
#[derive(Clone, Debug, PartialEq)]
pub struct Disk {
    pub name: String,
    pub datastore: String,
    /// The claim of the volume, if a pod uses it.
    pub used_by: Option<String>,
}

/// Runs all queries.
pub async fn audit(client: &Client, tree: &Sights, question: &Question) -> Audit {
    let wanted = &question.wanted;
    // The answers may lack objects that are created while the queries run, so the time is taken before them.
    let at = Timestamp::now();
    let (tls_probe, sessions, grants, tags, policies, file_service) = tokio::join!(
        tls_probe::probe(client.address()),
        sessions(client),
        grants(client, tree, question),
        tags(client, tree, question),
        policies(client, tree, question),
        file_service(client, tree),
    );
    let (host_groups, volumes, made_under, total, snapshots) = tokio::join!(
        host_groups(client, tree, question),
        volumes(client, question),
        made_under(client, question),
        total(client, question),
        snapshots(client, question),
    );
    let mut services = BTreeMap::new();
    if wanted.storage.is_some() {
        services.insert(Service::Volumes, state(volumes.as_ref().err()));
        services.insert(Service::Policies, state(policies.as_ref().err()));
    }
    if !wanted.categories().is_empty() {
        services.insert(Service::Tags, state(tags.as_ref().err()));
    }
    let (cns, disks) = match (volumes, not_asked(question)) {
        (Err(error), _) => (unknown(&error), BTreeMap::new()),
        (Ok(_), Some(reason)) => (Known::unknown(reason), BTreeMap::new()),
        (Ok((volumes, disks)), None) => (volumes.into(), disks),
    };
    Audit {
        at,
        asked: question.asked.clone(),
        tls_probe,
        sessions,
        services,
        tasks: may_watch_tasks(&grants),
        missing_privileges: missing_privileges::find(&grants, wanted, at),
        grants,
        tags: tags.map_or_else(|error| unknown(&error), read_tags),
        policies: policies.map_or_else(|error| unknown(&error), Known::Known),
        file_service,
        host_groups,
        cns,
        disks,
        made_under,
        total,
        snapshots,
    }
}

/// The reason why VDO cannot determine which volumes of this cluster a vCenter has, if there is one.
fn not_asked(question: &Question) -> Option<&'static str> {
    match (&question.wanted.storage, &question.cluster_id) {
        (None, _) => Some("no storage driver is configured, so its volumes were not asked for"),
        (_, None) if !question.volumes.is_empty() => {
            Some("the id this cluster has in vCenter is not known")
        }
        _ => None,
    }
}

/// An inventory object that an audit queries.
#[derive(Clone, Debug)]
struct Sight {
    reference: MoRef,
    kind: EntityKind,
    name: String,
    path: String,
    /// Whether the VM of a node is on it or below it, or a volume could be on it. VDO queries other objects
    /// only for their tags.
    near: bool,
}

/// The inventory objects that an audit queries, copied from the view: the audit must not hold the view while
/// it queries vCenter.
#[derive(Clone, Debug, Default)]
pub struct Sights(Vec<Sight>);

impl Sights {
    /// The objects around these VMs, and every object that can carry a zone tag.
    pub fn new(tree: &Tree, vms: &BTreeSet<MoRef>) -> Self {
        let above = |reference: &MoRef| -> Vec<MoRef> {
            tree.ancestors(reference).iter().map(|object| object.reference().clone()).collect()
        };
        let mut near: BTreeSet<MoRef> = BTreeSet::new();
        for reference in vms {
            near.insert(reference.clone());
            near.extend(above(reference));
            let vm = tree.get(reference).and_then(|object| object.as_vm());
            let Some(host) = vm.and_then(|vm| vm.host.clone()) else { continue };
            near.extend(above(&host));
            near.insert(host);
        }
        near.extend(tree.datastores().iter().map(|datastore| datastore.reference.clone()));
        near.extend(tree.datacenters().iter().map(|datacenter| datacenter.reference.clone()));
        let mut all = near.clone();
        for host in tree.hosts() {
            all.extend(above(&host.reference));
            all.insert(host.reference.clone());
        }
        let sight = |reference: MoRef| {
            let object = tree.get(&reference)?;
            let kind = match reference.kind {
                Kind::VirtualMachine => EntityKind::Vm,
                Kind::HostSystem => EntityKind::Host,
                Kind::ClusterComputeResource => EntityKind::Cluster,
                Kind::Datacenter => EntityKind::Datacenter,
                Kind::Datastore => EntityKind::Datastore,
                Kind::Folder if object.parent().is_some() => EntityKind::Folder,
                _ => return None,
            };
            let name = object.name().unwrap_or_default().to_owned();
            let path = tree.path_of(&reference).unwrap_or_else(|| name.clone());
            let near = near.contains(&reference);
            Some(Sight { reference, kind, name, path, near })
        };
        Self(all.into_iter().filter_map(sight).collect())
    }

    fn of_kind(&self, kind: EntityKind) -> Vec<MoRef> {
        let of_kind = self.0.iter().filter(|sight| sight.kind == kind && sight.near);
        of_kind.map(|sight| sight.reference.clone()).collect()
    }
}

fn unknown<T>(error: &Error) -> Known<T> {
    Known::unknown(&error.error_chain())
}

/// The state of a service. A service that refuses a call for lack of privileges works; another check reports
/// the missing privilege.
fn state(error: Option<&Error>) -> Known<ServiceState> {
    let refused = |error: &&Error| match error {
        Error::Rest { status, .. } => *status == 403,
        _ => matches!(error.fault().map(|fault| &fault.kind), Some(FaultKind::NoPermission { .. })),
    };
    match error.filter(|error| !refused(error)) {
        None => ServiceState::Answers.into(),
        Some(error) => ServiceState::Fails { reason: error.error_chain() }.into(),
    }
}

async fn sessions(client: &Client) -> Known<Sessions> {
    match client.sessions().await {
        Err(error) => unknown(&error),
        Ok(all) => {
            let mut by_agent: BTreeMap<String, u32> = BTreeMap::new();
            for session in &all {
                let agent = session.user_agent.clone().unwrap_or_default();
                *by_agent.entry(agent).or_default() += 1;
            }
            let total = u32::try_from(all.len()).unwrap_or(u32::MAX);
            Sessions { total, by_agent }.into()
        }
    }
}

async fn grants(client: &Client, sights: &Sights, question: &Question) -> Known<Grants> {
    let root = match client.root_folder() {
        Ok(root) => Sight {
            reference: root,
            kind: EntityKind::Root,
            name: client.address().to_owned(),
            path: "/".to_owned(),
            near: true,
        },
        Err(error) => return unknown(&error),
    };
    let mut by_kind: BTreeMap<EntityKind, Vec<&Sight>> =
        BTreeMap::from([(EntityKind::Root, vec![&root])]);
    for sight in sights.0.iter().filter(|sight| sight.near) {
        by_kind.entry(sight.kind).or_default().push(sight);
    }
    let mut entities = Vec::new();
    let mut repairs_denied: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (kind, sights) in by_kind {
        let needed = privileges::needed_names(kind, &question.wanted);
        let vms = kind == EntityKind::Vm;
        let repairs: BTreeSet<&str> = privileges::of_repairs().filter(|_| vms).collect();
        let asked: BTreeSet<&str> = needed.iter().chain(&repairs).copied().collect();
        let asked: Vec<String> = asked.into_iter().map(str::to_owned).collect();
        for some in sights.chunks(AT_ONCE) {
            let mut held = match held(client, some, &asked).await {
                Ok(held) => held,
                Err(error) => return unknown(&error),
            };
            for (entity, sight) in held.iter_mut().zip(some) {
                let Known::Known(held) = &mut entity.privileges else { continue };
                for name in repairs.iter().filter(|name| !held.contains(**name)) {
                    let denied = repairs_denied.entry((*name).to_owned()).or_default();
                    denied.insert(sight.path.clone());
                }
                held.retain(|name| needed.contains(name.as_str()));
            }
            entities.extend(held);
        }
    }
    entities.extend(everything_held(client, &root).await);
    let entities = worth_keeping(entities, &question.wanted);
    Grants { entities, repairs_denied }.into()
}

async fn held(client: &Client, sights: &[&Sight], needed: &[String]) -> Result<Vec<Entity>, Error> {
    let references: Vec<MoRef> = sights.iter().map(|sight| sight.reference.clone()).collect();
    let answers = client.check_privileges(&references, needed).await?;
    let mut held: BTreeMap<MoRef, BTreeSet<String>> = BTreeMap::new();
    for answer in answers {
        let granted = answer.privileges.into_iter().filter(|answer| answer.granted);
        held.insert(answer.entity, granted.map(|answer| answer.privilege).collect());
    }
    let silent = || Known::unknown("vCenter gave no answer for this object");
    let entity = |sight: &&Sight| Entity {
        kind: sight.kind,
        name: sight.name.clone(),
        path: sight.path.clone(),
        privileges: held.remove(&sight.reference).map_or_else(silent, Known::Known),
    };
    Ok(sights.iter().map(entity).collect())
}

/// All privileges that the account holds on the root, to find the privileges that nothing needs.
async fn everything_held(client: &Client, root: &Sight) -> Option<Entity> {
    let answers = client.own_privileges(std::slice::from_ref(&root.reference)).await.ok()?;
    let all: BTreeSet<String> = answers.into_iter().flat_map(|answer| answer.privileges).collect();
    Some(Entity {
        kind: root.kind,
        name: root.name.clone(),
        path: root.path.clone(),
        privileges: all.into(),
    })
}

/// Drops VMs, hosts and folders on which no privilege is missing, except the first of each kind: there may be
/// thousands.
fn worth_keeping(entities: Vec<Entity>, wanted: &Wanted) -> Vec<Entity> {
    let mut kept: Vec<Entity> = Vec::new();
    for entity in entities {
        let complete = entity.privileges.get().is_some_and(|held| {
            privileges::needed_names(entity.kind, wanted).iter().all(|name| held.contains(*name))
        });
        let many = matches!(entity.kind, EntityKind::Vm | EntityKind::Host | EntityKind::Folder);
        let first = !kept.iter().any(|other| other.kind == entity.kind);
        if !(complete && many) || first {
            kept.push(entity);
        }
    }
    kept
}

/// An account can watch tasks if it has permission to read the root or a datacenter.
fn may_watch_tasks(grants: &Known<Grants>) -> Known<bool> {
    grants.as_ref().map(|grants| {
        let above =
            |entity: &&Entity| matches!(entity.kind, EntityKind::Root | EntityKind::Datacenter);
        let above = grants.entities.iter().filter(above);
        let mut held = above.filter_map(|entity| entity.privileges.get());
        held.any(|held| held.contains("System.Read") || held.contains("System.View"))
    })
}

/// All tags; none if the spec configures no zones.
async fn tags(
    client: &Client,
    sights: &Sights,
    question: &Question,
) -> Result<Option<Tags>, Error> {
    if question.wanted.categories().is_empty() {
        return Ok(None);
    }
    let tags = client.tags(std::time::Duration::ZERO);
    let categories = tags.categories().await?;
    let objects: Vec<MoRef> = sights
        .0
        .iter()
        .filter(|sight| sight.kind != EntityKind::Datastore)
        .map(|sight| sight.reference.clone())
        .chain(client.root_folder().ok())
        .collect();
    let attached = tags.attached(&objects).await?;
    let tag = |tag: &vsphere::tags::Tag| Tag {
        category: tag.category.to_string(),
        name: tag.name.to_string(),
    };
    let attached = attached.iter().filter(|(_, tags)| !tags.is_empty());
    Ok(Some(Tags {
        categories: categories.iter().map(|category| category.name.clone()).collect(),
        attached: attached.map(|(on, tags)| (id(on), tags.iter().map(tag).collect())).collect(),
    }))
}

fn read_tags(tags: Option<Tags>) -> Known<Tags> {
    tags.map_or_else(|| Known::unknown("the tags have not been read yet"), Known::Known)
}

async fn policies(
    client: &Client,
    sights: &Sights,
    question: &Question,
) -> Result<Vec<StoragePolicy>, Error> {
    if question.wanted.storage.is_none() {
        return Ok(Vec::new());
    }
    let all = client.storage_policies().await?;
    let datastores = sights.of_kind(EntityKind::Datastore);
    let mut policies = Vec::new();
    for policy in all {
        let fitting = if question.policies.contains(&policy.name) {
            match client.compatible_datastores(&policy.id, &datastores).await {
                Ok(answers) => {
                    let fitting = answers.iter().filter(|answer| answer.is_compatible());
                    Known::Known(fitting.map(|answer| id(&answer.datastore)).collect())
                }
                Err(error) => unknown(&error),
            }
        } else {
            Known::unknown("no StorageClass names it")
        };
        policies.push(StoragePolicy { name: policy.name, datastores: fitting });
    }
    Ok(policies)
}

async fn file_service(client: &Client, sights: &Sights) -> Known<BTreeSet<String>> {
    let mut with = BTreeSet::new();
    let clusters = sights.0.iter().filter(|sight| sight.kind == EntityKind::Cluster && sight.near);
    for cluster in clusters.take(MOST_CLUSTERS) {
        match client.vsan_state(&cluster.reference).await {
            Ok(state) if state.enabled && state.file_service => {
                with.insert(cluster.name.clone());
            }
            Ok(_) => {}
            Err(error) => return unknown(&error),
        }
    }
    with.into()
}

/// The host groups that failure domains name, and their problems.
async fn host_groups(
    client: &Client,
    sights: &Sights,
    question: &Question,
) -> Known<Vec<HostGroup>> {
    let host = client.address().split(':').next().unwrap_or_default();
    let own = question.domains.iter().filter(|domain| domain.server == host);
    let mut found = Vec::new();
    for domain in own {
        let of_cluster = |sight: &&Sight| {
            sight.kind == EntityKind::Cluster
                && (sight.path == domain.cluster || sight.name == domain.cluster)
        };
        let problem = match sights.0.iter().find(of_cluster) {
            None => Some(format!("its cluster {} is not to be seen", domain.cluster)),
            Some(cluster) => match client.groups(&cluster.reference).await {
                Err(error) => return unknown(&error),
                Ok(groups) => match groups.iter().find(|group| group.name == domain.group) {
                    None => Some(format!("the cluster {} has no such group", cluster.name)),
                    Some(group) if group.hosts.is_empty() => Some("it has no hosts".to_owned()),
                    Some(_) => None,
                },
            },
        };
        found.push(HostGroup {
            failure_domain: domain.name.clone(),
            name: domain.group.clone(),
            problem,
        });
    }
    found.into()
}

/// The volumes of this cluster. VDO keeps only what the checks need of each: there can be thousands.
async fn volumes(client: &Client, question: &Question) -> Result<(Volumes, Disks), Error> {
    let (mut known, mut disks) = (Volumes::new(), Disks::new());
    if question.wanted.storage.is_none() {
        return Ok((known, disks));
    }
    // Without an id no volume belongs to this cluster. The query still shows whether the service answers.
    let cluster = question.cluster_id.clone().unwrap_or_else(|| "no-such-cluster".to_owned());
    let filter = QueryFilter { clusters: vec![cluster], ..QueryFilter::default() };
    let own = question.cluster_id.as_deref();
    client.for_each_volume(&filter, |volume| keep(&volume, own, &mut known, &mut disks)).await?;
    Ok((known, disks))
}

/// The number of all volumes. A vCenter supports only a limited number.
async fn total(client: &Client, question: &Question) -> Known<u32> {
    if question.wanted.storage.is_none() {
        return 0.into();
    }
    let count = match client.volume_count().await {
        Ok(Some(count)) => u32::try_from(count).ok(),
        Ok(None) => match client.query_all_volumes(&QueryFilter::default(), &[]).await {
            Ok(all) => u32::try_from(all.len()).ok(),
            Err(error) => return unknown(&error),
        },
        Err(error) => return unknown(&error),
    };
    count.map_or_else(|| Known::unknown("vCenter says a number that is none"), Known::Known)
}

/// Snapshots of volumes, if the spec enables snapshots.
async fn snapshots(client: &Client, question: &Question) -> Known<BTreeMap<String, u32>> {
    let storage = question.wanted.storage.as_ref();
    if !storage.is_some_and(|storage| storage.snapshots) {
        return BTreeMap::new().into();
    }
    match client.query_volume_snapshots(&[], WITHIN).await {
        Err(error) => unknown(&error),
        Ok(entries) => {
            let mut counts: BTreeMap<String, u32> = BTreeMap::new();
            for snapshot in entries.into_iter().filter_map(|entry| entry.snapshot) {
                *counts.entry(snapshot.volume.id).or_default() += 1;
            }
            counts.into()
        }
    }
}

type Disks = BTreeMap<String, Disk>;
type Volumes = BTreeMap<String, CnsVolume>;

/// The claim of a volume under this cluster id, if a pod uses it.
fn used_by(volume: &Volume, cluster: Option<&str>) -> Option<String> {
    let entities = volume.metadata.as_ref()?.entities.iter();
    let own =
        entities.filter(|entity| entity.cluster.as_deref().is_none_or(|id| Some(id) == cluster));
    let of_kind = |kind: &str| own.clone().find(|entity| entity.kind.as_deref() == Some(kind));
    of_kind("POD")?;
    let claim = of_kind("PERSISTENT_VOLUME_CLAIM")?;
    Some(format!("{}/{}", claim.namespace.as_deref().unwrap_or_default(), claim.name))
}

/// Whether the metadata of a volume names two PersistentVolumes of one cluster.
fn is_doubled(volume: &Volume) -> bool {
    let entities = volume.metadata.iter().flat_map(|metadata| &metadata.entities);
    let claims = entities.filter(|entity| entity.kind.as_deref() == Some("PERSISTENT_VOLUME"));
    let mut seen = BTreeSet::new();
    claims.into_iter().any(|entity| !seen.insert(entity.cluster.as_deref()))
}

fn keep(volume: &Volume, cluster: Option<&str>, known: &mut Volumes, disks: &mut Disks) {
    let id = volume.id.id.clone();
    let datastore = volume.datastore_url.clone().unwrap_or_default();
    let name = volume.name.clone().unwrap_or_else(|| id.clone());
    let used_by = used_by(volume, cluster);
    disks.insert(id.clone(), Disk { name, datastore: datastore.clone(), used_by });
    // `accessibility` shows whether the datastore is reachable. It shows nothing about the disk on it.
    let unreachable = volume.accessibility.as_deref() == Some("notAccessible");
    let duplicate_metadata = is_doubled(volume);
    let vcenter = String::new();
    known.insert(id, CnsVolume { vcenter, datastore, unreachable, duplicate_metadata });
}

/// The cluster id that the volumes in Kubernetes were created under, if they all agree.
async fn made_under(client: &Client, question: &Question) -> Known<Option<String>> {
    if question.volumes.is_empty() || question.wanted.storage.is_none() {
        return Known::Known(None);
    }
    let ids = question.volumes.iter().take(SAMPLE);
    let ids = ids.map(|id| VolumeId { id: id.clone() }).collect();
    match client.query_volumes(&QueryFilter { ids, ..QueryFilter::default() }).await {
        Err(error) => unknown(&error),
        Ok(volumes) => {
            let owners: BTreeSet<&str> = volumes.iter().flat_map(Volume::owners).collect();
            let own = question.cluster_id.as_deref();
            let own = own.filter(|own| owners.contains(own)).or(owners.first().copied());
            Known::Known(own.map(str::to_owned))
        }
    }
}
