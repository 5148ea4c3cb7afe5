//! A lost record: a driver with the label of VDO runs, and no record lists it.
//!
//! If VDO treated this as a first install, it would render the newest release under the default names next to
//! the running driver, which can have other names, and perhaps with another cluster id in CNS. So VDO first
//! restores the record from the running driver. If it cannot, it does nothing.

use api::finding::{Finding, Subject, codes};
use catalog::Driver;
use serde_json::json;

use super::{
    Notes, adoption,
    configuration::{RenderedDriver, unreadable_cluster_id},
    desired::DesiredDriver,
    settings::PasswordRendering,
    steps::waiting,
    vcenters,
};
use crate::{
    facts::{DriverWorkload, Facts, WorkloadRole},
    object_id::ObjectId,
    plan::{DriverPlan, Next},
    record::{Build, Record, record_name},
};

/// The workloads of a driver that carry the label of VDO and that no record lists.
pub(super) fn parts<'a>(
    facts: &'a Facts,
    driver: Driver,
    record: &Record,
) -> Vec<(&'a ObjectId, &'a DriverWorkload)> {
    if record.version.is_some() {
        return Vec::new();
    }
    let stays = |id| facts.objects.get(id).is_some_and(|seen| !seen.terminating);
    [WorkloadRole::Controller, WorkloadRole::Node]
        .into_iter()
        .flat_map(|task| facts.workloads_of(driver, task))
        .filter(|(id, workload)| workload.labelled && stays(*id))
        .collect()
}

/// The record of the running driver, or the reason why VDO cannot restore it.
pub(super) fn restored_record(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    parts: &[(&ObjectId, &DriverWorkload)],
) -> Result<Record, String> {
    let reported = facts.config.status.as_ref().and_then(|status| status.cluster_id.as_ref());
    match &facts.cluster_id {
        _ if desired.driver == Driver::Cpi || record.cluster_id.is_some() => {}
        Err(why) => return Err(why.clone()),
        Ok(None) if reported.is_none() => {
            return Err("the cluster id its volumes are known by is not found".into());
        }
        Ok(_) => {}
    }
    adoption::is_within_reach(facts, parts)?;
    let build = adoption::release(facts, desired, parts)?;
    let Build { implementation, version } = &build;
    let of_it = Some(version.to_string());
    let base = Record {
        implementation: *implementation,
        since: Some(facts.now),
        generation: facts.generation(),
        healthy: parts.iter().all(|(_, w)| w.version == of_it && w.is_healthy()),
        version: of_it,
        objects: parts.iter().map(|(id, _)| (*id).clone()).collect(),
        ..record.clone()
    };
    // The names are those of the release, unless VDO adopted the driver under others.
    for names in [None, Some(adoption::kept(desired.driver, parts)?)] {
        let mut restored = Record { names, ..base.clone() };
        let configuration =
            RenderedDriver::render(facts, desired, &restored, &build, PasswordRendering::Real)
                .map_err(|finding| finding.seen.unwrap_or(finding.title))?;
        if parts.iter().all(|(id, workload)| is_part(&configuration, id, workload)) {
            if let Some(identity) =
                configuration.cluster_id.filter(|_| restored.cluster_id.is_none())
            {
                restored.cluster_id = Some(identity.id);
                restored.cluster_id_kept_by_driver = identity.kept_by_driver;
            }
            return Ok(restored);
        }
    }
    Err(format!("the running workloads are not those of release {version}"))
}

/// Whether a workload is the one that VDO would apply: by its name, its pod selector and its settings.
fn is_part(configuration: &RenderedDriver, id: &ObjectId, workload: &DriverWorkload) -> bool {
    let object = configuration.objects.iter().find(|object| ObjectId::from_object(object) == *id);
    let reads_it = |name: &String| {
        let mut all = configuration.objects.iter();
        all.any(|o| matches!(o.kind(), "Secret" | "ConfigMap") && o.name() == name)
    };
    object.is_some_and(|object| {
        object.0["spec"]["selector"]["matchLabels"] == json!(workload.selector)
            && workload.origin.settings.as_ref().is_none_or(reads_it)
    })
}

/// Whether a driver of VDO runs without a record. VDO then restores the record before anything else.
pub(super) fn is_lost(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) -> bool {
    let parts = self::parts(facts, desired.driver, record);
    if parts.is_empty() {
        return false;
    }
    if !vcenters::are_verified(facts, desired, record, plan, notes) {
        return true;
    }
    plan.steps.push(waiting("Record the running driver again: its record is lost", None));
    plan.next = match restored_record(facts, desired, record, &parts) {
        Ok(record) => Next::Record(Box::new(record)),
        Err(why) => {
            let text =
                format!("it is not on record, and the record cannot be created again: {why}");
            notes.findings.push(match &facts.cluster_id {
                Err(unreadable) if *unreadable == why => unreadable_cluster_id(facts, &text),
                _ => missing(facts, desired.driver, &text),
            });
            Next::Blocked
        }
    };
    true
}

/// The finding that VDO cannot read the record.
pub(super) fn unreadable(facts: &Facts, driver: Driver, why: &str) -> Finding {
    let (namespace, record) = (&facts.operator_namespace, record_name(driver));
    let step = format!(
        "kubectl get configmap --namespace {namespace} {record} -o yaml   shows its content; restore it from a \
         backup if you have one"
    );
    let otherwise = format!(
        "If you cannot restore it: kubectl delete configmap --namespace {namespace} {record}   makes VDO \
         re-create it from the running driver"
    );
    doubtful(facts, driver, why, step, otherwise)
}

/// The finding that the record does not exist.
pub(super) fn missing(facts: &Facts, driver: Driver, why: &str) -> Finding {
    let (namespace, record) = (&facts.operator_namespace, record_name(driver));
    let step = format!(
        "Restore ConfigMap {record} in namespace {namespace} from a backup if you have one"
    );
    let otherwise = "Otherwise revert the changes to the driver's workloads; VDO re-creates the record as soon as \
                     they are those of a release"
        .to_owned();
    doubtful(facts, driver, why, step, otherwise)
}

fn doubtful(facts: &Facts, driver: Driver, why: &str, step: String, otherwise: String) -> Finding {
    let record = record_name(driver);
    codes::RECORD_DOUBTFUL
        .found()
        .with("driver", driver.to_string())
        .with("reason", why)
        .with("step", step)
        .with("otherwise", otherwise)
        .about(Subject::kubernetes("ConfigMap", Some(&facts.operator_namespace), record))
        .build()
}
