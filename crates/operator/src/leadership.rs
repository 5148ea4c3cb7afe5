//! Elects the one pod that writes: one pod of one installation of VDO.
//!
//! ```text
//!   Lease vdo, in the namespace of the installation      elects one of its pods
//!   Lease vdo-leader, in kube-system                     belongs to one installation
//! ```
//!
//! A pod writes only while it holds both. Earlier releases know only the first Lease, so a rolling upgrade or
//! a rollback within one namespace never has two leaders. A container that restarts after a crash leads again at
//! once, so that new passwords reach the drivers before they lock their account. The second Lease names the installation that owns
//! it. The owner changes only when an admin changes that name, or when its namespace is gone.

use std::time::Duration;

use api::finding::{Finding, Subject, codes};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use kube::{Api, Client, api::PostParams};
use plan::names;
use runtime::{
    checks::Check,
    error_chain::error_chain,
    lease::{Contender, Error, Leadership, Mandate, OWNER, Terms, owner},
};

use crate::{probes::Probes, report::OperatorMetrics};

/// How often a pod checks whether another installation still owns the cluster's Lease.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The process that contends.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub namespace: &'a str,
    pub identity: &'a str,
    /// The leader that crashed in this pod before this process.
    pub crashed: Option<&'a str>,
}

/// The leader, which holds both Leases.
#[derive(Debug)]
pub struct Leader {
    installation: Leadership,
    cluster: Leadership,
}

impl Leader {
    /// Waits until this pod leads. While another installation owns the cluster, the probes, the metrics and
    /// the log name it.
    ///
    /// # Errors
    /// If the durations of the election are inconsistent.
    pub async fn elected(
        client: &Client,
        candidate: Candidate<'_>,
        terms: Terms,
        probes: &Probes,
        metrics: &OperatorMetrics,
    ) -> Result<Self, Error> {
        let Candidate { namespace, identity, crashed } = candidate;
        let contend =
            |namespace, name| Contender::new(client.clone(), namespace, name, identity, terms);
        let own = contend(namespace, names::LEASE)?.reporting_to(probes.lease.clone());
        let own = own.after_crash_of(crashed);
        let shared = contend(names::KUBE_SYSTEM, names::CLUSTER_LEASE)?.for_installation(namespace);
        loop {
            let installation = own.lead().await;
            let cluster = tokio::select! {
                biased;
                // Another pod of the installation leads now, and can acquire the cluster's Lease. This pod
                // has written nothing yet, so it waits for the Lease again.
                () = installation.lost() => {
                    tracing::warn!("the lease of the installation was lost: waiting for it again");
                    probes.installation.pass();
                    metrics.clear();
                    continue;
                }
                cluster = shared.lead() => cluster,
                never = follow_owner(client, namespace, &probes.installation, metrics) => match never {},
            };
            probes.installation.pass();
            return Ok(Self { installation, cluster });
        }
    }

    /// A mandate that holds while this pod leads.
    pub fn mandate(&self) -> Mandate {
        self.installation.mandate().and(self.cluster.mandate())
    }

    /// Waits until this pod no longer leads.
    pub async fn lost(&self) {
        tokio::select! {
            () = self.installation.lost() => {}
            () = self.cluster.lost() => {}
        }
    }

    /// Releases both Leases, so that another pod of the installation leads at once.
    pub async fn release(self) {
        self.cluster.release().await;
        self.installation.release().await;
    }
}

/// Reports which other installation owns the cluster's Lease, as long as one does. Claims the Lease if the
/// owner's namespace no longer exists.
async fn follow_owner(
    client: &Client,
    namespace: &str,
    check: &Check,
    metrics: &OperatorMetrics,
) -> std::convert::Infallible {
    let leases = Api::<Lease>::namespaced(client.clone(), names::KUBE_SYSTEM);
    let mut reported = None;
    loop {
        match leases.get_opt(names::CLUSTER_LEASE).await {
            Ok(Some(lease)) => {
                let other = owner(&lease).filter(|owner| *owner != namespace).map(str::to_owned);
                if let Some(other) = &other {
                    let finding = finding(other, namespace);
                    let text = sentence(&finding);
                    check.fail(text.clone());
                    metrics.show_only(&[finding]);
                    if reported.as_ref() != Some(other) {
                        tracing::error!(owner = other, "{text}");
                    }
                    claim_if_abandoned(client, &leases, lease, other, namespace).await;
                } else {
                    check.pass();
                }
                reported = other;
            }
            Ok(None) => reported = None,
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "cannot read the cluster's lease");
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Records this installation as the owner if the namespace of the recorded owner is gone. A pod of the former
/// owner may still hold the Lease: the election waits until the Lease has expired.
async fn claim_if_abandoned(
    client: &Client,
    leases: &Api<Lease>,
    mut lease: Lease,
    owner: &str,
    namespace: &str,
) {
    let namespaces = Api::<Namespace>::all(client.clone());
    if !matches!(namespaces.get_metadata_opt(owner).await, Ok(None)) {
        return;
    }
    let annotations = lease.metadata.annotations.get_or_insert_default();
    annotations.insert(OWNER.into(), namespace.into());
    match leases.replace(names::CLUSTER_LEASE, &PostParams::default(), &lease).await {
        Ok(_) => tracing::info!(
            before = owner,
            "the namespace of the installation that led is gone: this one takes its place"
        ),
        Err(error) => {
            tracing::debug!(error = error_chain(&error), "cannot claim the cluster's lease");
        }
    }
}

fn finding(owner: &str, namespace: &str) -> Finding {
    codes::OTHER_INSTALLATION
        .found()
        .with("owner", owner)
        .with("namespace", namespace)
        .with("lease", names::CLUSTER_LEASE)
        .about(Subject::kubernetes("Lease", Some(names::KUBE_SYSTEM), names::CLUSTER_LEASE))
        .build()
}

/// The cause and the fix in one line.
fn sentence(finding: &Finding) -> String {
    let seen = finding.seen.as_deref().unwrap_or(&finding.title);
    format!("{}: {seen}. To hand over to this one: {}", finding.code, finding.remedy[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_both_installations_and_the_command_that_hands_over() {
        let text = sentence(&finding("team-a", "team-b"));
        assert!(text.starts_with("VDO-1011: ") && text.contains("namespace team-a"), "{text}");
        let command = "kubectl annotate lease --namespace kube-system vdo-leader --overwrite \
                       vdo.vmware.com/owner=team-b";
        assert!(text.ends_with(command), "{text}");
    }
}
