//! Collects the operator's facts once, with the permissions of the current user. So `vdoctl plan` and the
//! operator decide on the same facts.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams},
};
use plan::{
    ObjectId,
    facts::{DriverWorkload, Facts, VcenterConnection},
};
use runtime::{build::BuildInfo, tasks::Tasks};
use snafu::{ResultExt, Snafu};
use tokio::{sync::watch, time::Instant};

use crate::{
    applied::Applied,
    catalogs::Catalogs,
    cluster::Stores,
    kinds::KINDS,
    observe::{self, Surroundings, Timeouts, surroundings},
    vcenters::Vcenters,
};

/// The reason why there are no facts.
#[derive(Debug, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(display("the cluster could not be observed"))]
    Cluster {
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("{kind} cannot be read"))]
    Kind {
        kind: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("the cluster was not read within {within:?}"))]
    Slow { within: Duration, source: tokio::time::error::Elapsed },
}

/// The collected facts and observations.
pub struct Observation {
    /// None without a VDOConfig.
    pub facts: Option<Facts>,
    /// By namespace and name of their VsphereCloudConfig.
    pub vcenters: BTreeMap<(String, String), VcenterConnection>,
    pub around: Surroundings,
    /// The drivers' workloads, whether VDO manages them or not.
    pub workloads: BTreeMap<ObjectId, DriverWorkload>,
}

/// Looks once. A vCenter that does not answer `within` this time counts as untried.
pub async fn observe_once(
    client: &Client,
    namespace: &str,
    build: BuildInfo,
    within: Duration,
) -> Result<Observation, Error> {
    let end = Instant::now() + within;
    may_read(client, namespace).await?;
    let name = build.to_string();
    let around = surroundings(client, namespace, Timeouts::default(), &name);
    let mut around = around.await.context(ClusterSnafu)?;
    let changed = Arc::new(watch::Sender::new(()));
    let (stores, fillers) = Stores::new(client, namespace, &changed);
    let mut watches = Tasks::default();
    for filler in fillers {
        watches.spawn("watch", filler);
    }
    tokio::time::timeout_at(end, stores.ready()).await.context(SlowSnafu { within })?;
    let (mut vcenters, mut catalogs) = (
        Vcenters::new(build, changed.clone(), Arc::new(vsphere::CallCounter::default())),
        Catalogs::new(changed.clone()).read_only(),
    );
    let (applied, refused) = (Applied::default(), BTreeMap::new());
    let mut news = changed.subscribe();
    let mut settled = false;
    loop {
        news.mark_unchanged();
        let observed = observe::observe(
            client,
            &around,
            &stores,
            &mut vcenters,
            &mut catalogs,
            &applied,
            &refused,
        )
        .await
        .context(ClusterSnafu)?;
        // A probe that ended during this observation is not part of it yet, so VDO observes once more.
        let tried = vcenters.all_tried() && !catalogs.is_fetching();
        let late = !tried && tokio::time::timeout_at(end, news.changed()).await.is_err();
        if late || (tried && settled) {
            let workloads = observe::workloads(&stores);
            around.platform = around.platform(&stores);
            vcenters.log_out_all().await;
            let observe::Observed { facts, vcenters, .. } = observed;
            return Ok(Observation { facts, vcenters, around, workloads });
        }
        settled = tried;
    }
}

/// Checks the permissions first: a watch retries a refused request forever, but a one-time look must fail at
/// once.
async fn may_read(client: &Client, namespace: &str) -> Result<(), Error> {
    let ours = ["VDOConfig", "VsphereCloudConfig", "CompatibilityConfig"].map(|kind| {
        let gvk = kube::api::GroupVersionKind::gvk(api::GROUP, "v1alpha1", kind);
        ApiResource::from_gvk(&gvk)
    });
    let read = KINDS.iter().map(|(resource, _)| resource.clone());
    let read = read.filter(|r| ["Deployment", "DaemonSet", "Secret"].contains(&r.kind.as_str()));
    let asked = ours.into_iter().chain(read).map(async |resource| {
        let place = match resource.kind.as_str() {
            "Secret" => Some(namespace),
            _ if resource.group == api::GROUP => Some(namespace),
            _ => None,
        };
        let api = match place {
            Some(place) => Api::<DynamicObject>::namespaced_with(client.clone(), place, &resource),
            None => Api::<DynamicObject>::all_with(client.clone(), &resource),
        };
        let first = ListParams::default().limit(1);
        let kind = resource.plural.clone();
        api.list_metadata(&first).await.map(drop).context(KindSnafu { kind })
    });
    futures::future::try_join_all(asked).await.map(drop)
}
