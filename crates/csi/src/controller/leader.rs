//! The work of one controller in the cluster: the loops, and the topology of nodes.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{Api, Client, Resource as _};
use runtime::{
    checks::Checks,
    lease::{self, Contender, Terms},
};
use snafu::{ResultExt as _, Snafu};
use tokio_util::sync::CancellationToken;

use super::ControllerService;
use crate::{
    DRIVER_NAME,
    loops::{self, CapacitySettings, Services, Settings},
    metrics::Metrics,
    node_topology,
    vcenters::Vcenters,
};

/// The Lease of the controllers, in the driver's namespace.
pub const LEASE: &str = "vsphere-csi-controller";
/// The Deployment of the controllers.
const DEPLOYMENT: &str = "vsphere-csi-controller";
/// How often the capacity is read again, as in external-provisioner.
const CAPACITY_INTERVAL: Duration = Duration::from_mins(1);
const TERMS: Terms = Terms {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};

#[derive(Debug, Snafu)]
pub enum LeaderError {
    #[snafu(display("the election of a leader cannot start"))]
    Election { source: lease::Error },
    #[snafu(display("the loops ended"))]
    Loops { source: loops::Error },
    #[snafu(display("this controller lost its Lease: another one leads"))]
    Lost,
}

pub(super) struct Leader {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) service: ControllerService,
    pub(super) vcenters: Vcenters,
    pub(super) metrics: Metrics,
    /// Whether the loops run; otherwise the upstream sidecars do their work.
    pub(super) loops: bool,
    /// Whether volumes are accessible from a part of the cluster only.
    pub(super) topology: bool,
}

impl Leader {
    /// Waits for the Lease and works until `stop`.
    pub(super) async fn run(
        self,
        ready: &Checks,
        stop: CancellationToken,
    ) -> Result<(), LeaderError> {
        let identity = Contender::unique_identity();
        let contender =
            Contender::new(self.client.clone(), &self.namespace, LEASE, &identity, TERMS)
                .context(ElectionSnafu)?
                .reporting_to(ready.register("lease", "the Lease has not been read yet"));
        let Some(leadership) = stop.run_until_cancelled(contender.lead()).await else {
            return Ok(());
        };
        tracing::info!(lease = LEASE, "leading");
        let (lost, working) = (leadership.token(), CancellationToken::new());
        let outcome = {
            let work = self.work(&identity, leadership.mandate(), working.clone());
            let mut work = std::pin::pin!(work);
            tokio::select! {
                outcome = &mut work => outcome,
                () = stop.cancelled() => {
                    working.cancel();
                    work.await
                }
                () = lost.cancelled() => LostSnafu.fail(),
            }
        };
        if !lost.is_cancelled() {
            leadership.release().await;
        }
        outcome
    }

    async fn work(
        &self,
        identity: &str,
        mandate: lease::Mandate,
        stop: CancellationToken,
    ) -> Result<(), LeaderError> {
        let categories = {
            let service = self.service.clone();
            Arc::new(move || service.driver.settings().categories.clone())
        };
        let topologies =
            node_topology::follow(self.client.clone(), self.vcenters.clone(), categories);
        let loops = async {
            if !self.loops {
                stop.cancelled().await;
                return Ok(());
            }
            self.service.lead(mandate.clone());
            let capacity = CapacitySettings {
                namespace: self.namespace.clone(),
                owner: self.deployment().await,
                interval: CAPACITY_INTERVAL,
            };
            let settings = Settings {
                topology: self.topology,
                capacity: Some(capacity),
                ..Settings::new(DRIVER_NAME, identity)
            };
            let service = Arc::new(self.service.clone());
            let services = Services {
                controller: service.clone(),
                creations: Some(service),
                vcenters: Some(self.vcenters.clone()),
                metrics: self.metrics.loops.clone(),
            };
            let client = self.client.clone();
            let running = loops::run(client, services, settings, mandate, stop.clone());
            running.await.context(LoopsSnafu)
        };
        self.refresh_volumes().await;
        tokio::select! {
            outcome = loops => outcome,
            () = topologies => Ok(()),
        }
    }

    /// Another controller led until now, and it changed sizes without a record.
    async fn refresh_volumes(&self) {
        for connection in self.vcenters.all().unwrap_or_default() {
            let cluster = connection.cluster_id();
            if let Err(error) = connection.volumes.refresh(&connection.client, cluster).await {
                let (vcenter, error) = (&*connection.name, error.error_chain());
                tracing::warn!(vcenter, error, "cannot read the volumes again");
            }
        }
    }

    /// The Deployment of the controllers: Kubernetes deletes the published capacity with it.
    async fn deployment(&self) -> Option<OwnerReference> {
        let deployments = Api::<Deployment>::namespaced(self.client.clone(), &self.namespace);
        match deployments.get_opt(DEPLOYMENT).await {
            Ok(deployment) => deployment.as_ref().and_then(|found| found.owner_ref(&())),
            Err(error) => {
                tracing::warn!(%error, "the Deployment {DEPLOYMENT} cannot be read");
                None
            }
        }
    }
}
