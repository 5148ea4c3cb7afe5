//! Upgrades older drivers step by step.

use std::{collections::BTreeMap, time::Duration};

use api::{VDOConfigStatus, condition, vdo_config::StepState};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use serde_json::{Value, json};
use snafu::ResultExt as _;
use tokio::time::{Instant, sleep};

use crate::{
    arguments::{Arguments, Cpi},
    failure::{ClusterSnafu, Failure, TooLateSnafu},
    scenario::{drivers, wait},
    screen::Gauge,
    user::{FILE, User},
};

/// The Kubernetes release of this scenario: older drivers need an older cluster.
pub(crate) const KUBERNETES: &str = "1.33";
/// The versions before the upgrade.
const OLDER: (&str, &str) = ("1.33.0", "3.6.3");
/// How long an upgrade can take, in seconds.
const TIMEOUT: u64 = 600;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The spec for older drivers.
pub(super) fn older(cpi: Cpi) -> Value {
    let mut spec = drivers(cpi);
    if cpi == Cpi::Upstream {
        spec["cloudProvider"]["version"] = OLDER.0.into();
    }
    spec["storageProvider"]["version"] = OLDER.1.into();
    spec
}

/// Unpins the versions, shows the plan, approves the upgrade and follows it.
pub(super) async fn run(user: &User<'_>, arguments: &Arguments) -> Result<(), Failure> {
    let mut spec = drivers(arguments.cpi());
    spec["upgrades"] = json!({"policy": "Manual"});
    user.screen.heading("The versions are unpinned; VDO asks before it upgrades");
    user.writes(&spec)?;
    user.does(&["configure", "-f", FILE]).await?;
    user.does(&["plan"]).await?;
    let before = versions(&user.status().await?);
    user.does(&["upgrade", "--yes", "--no-wait"]).await?;
    user.screen.heading("The upgrade, step by step");
    let seconds = arguments.options.timeout.unwrap_or(TIMEOUT);
    follow(user, &before, arguments.cpi(), seconds).await?;
    wait(user, arguments).await?;
    user.does(&["versions"]).await
}

type Versions = (Option<String>, Option<String>);

fn versions(status: &VDOConfigStatus) -> Versions {
    let version_of =
        |driver: &Option<api::vdo_config::DriverStatus>| driver.as_ref()?.version.clone();
    (version_of(&status.cpi), version_of(&status.csi))
}

/// Shows each completed step and the progress of the node drivers, until VDO is Ready with new versions.
async fn follow(user: &User<'_>, before: &Versions, cpi: Cpi, seconds: u64) -> Result<(), Failure> {
    let sets = Api::<DaemonSet>::namespaced(user.environment.plane.client(), "vmware-system-csi");
    let mut gauge = Gauge::new("storage on nodes, new release");
    let mut shown = BTreeMap::new();
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        let status = user.status().await?;
        let set = sets.get_opt("vsphere-csi-node").await;
        let set = set.context(ClusterSnafu { what: "reading the node drivers" })?;
        for step in status.plan.iter().flat_map(|plan| &plan.steps) {
            let before_state = shown.insert(step.title.clone(), step.state);
            if step.state == StepState::Done
                && before_state.is_some_and(|state| state != StepState::Done)
            {
                user.screen.done(&step.title);
            }
        }
        if let Some(state) = set.and_then(|set| set.status) {
            let updated = state.updated_number_scheduled.unwrap_or(0);
            gauge.show(user.screen, updated, state.desired_number_scheduled);
        }
        let now = versions(&status);
        let changed = now.1 != before.1 && (cpi == Cpi::Rust || now.0 != before.0);
        if changed && condition::is_true(&status.conditions, condition::READY) {
            let text = |version: &Option<String>| version.clone().unwrap_or_default();
            if cpi == Cpi::Upstream {
                let (from, to) = (text(&before.0), text(&now.0));
                user.screen.done(&format!("cloud provider {from} → {to}"));
            }
            user.screen.done(&format!("storage {} → {}", text(&before.1), text(&now.1)));
            return Ok(());
        }
        if Instant::now() > end {
            return TooLateSnafu { what: "the upgrade is done", seconds }.fail();
        }
        sleep(POLL_INTERVAL).await;
    }
}
