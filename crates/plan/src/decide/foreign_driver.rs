//! A driver that VDO did not install: VDO reports it, and adopts it if the VDOConfig asks for it.

use api::{
    finding::{Finding, Subject, codes},
    vdo_config::Adoption,
};
use catalog::Driver;

use super::{
    Notes, adoption, desired::DesiredDriver, first_rollout, release, steps::waiting, vcenters,
};
use crate::{
    facts::{DriverWorkload, Facts},
    object_id::ObjectId,
    plan::{ADOPT, AdoptionPreview, DriverPlan, Next},
    record::Record,
};

/// Reports a driver that is not managed by VDO. If VDO's own driver does not run yet, VDO does not install a
/// second one.
pub(super) fn finding(
    record: &Record,
    driver: Driver,
    theirs: &[(&ObjectId, &DriverWorkload)],
) -> Finding {
    let first = theirs[0].0;
    let subjects =
        theirs.iter().map(|(id, _)| Subject::kubernetes(&id.kind, Some(&id.namespace), &id.name));
    let finding = if record.version.is_some() {
        let own = format!("{driver} of VDO");
        codes::TWO_DRIVERS.found().with("other", first.to_string()).with("own", own)
    } else {
        codes::FOREIGN_DRIVER
            .found()
            .with("driver", driver.to_string())
            .with("namespace", &first.namespace)
            .with("name", &first.name)
    };
    finding.about_all(subjects).build()
}

/// Adopts a driver that is not managed by VDO, or reports what adoption would change.
pub(super) fn adopt(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    theirs: &[(&ObjectId, &DriverWorkload)],
    plan: &mut DriverPlan,
    notes: &mut Notes,
) {
    plan.next = Next::Blocked;
    let unset = facts.config.spec.adoption.is_none();
    let adoption = match facts.config.spec.adoption() {
        _ if unset && adoption::are_of_predecessor(facts, desired, theirs) => Adoption::Automatic,
        adoption => adoption,
    };
    if adoption == Adoption::Never || !vcenters::are_verified(facts, desired, record, plan, notes) {
        return;
    }
    let title = ADOPT;
    let adopted = adoption::adopted(facts, desired, record, theirs);
    plan.adoption = Some(preview(facts, desired, theirs, adopted.as_ref()));
    match adopted {
        Err(why) => {
            if adoption::release(facts, desired, theirs).is_err() {
                notes.findings.retain(|finding| finding.code != codes::FOREIGN_DRIVER.code);
                notes.findings.push(not_adoptable(facts, desired, theirs, &why));
            }
            plan.steps.push(waiting(title, Some(format!("not possible: {why}"))));
        }
        Ok(adopted) if adoption == Adoption::Automatic => {
            notes.findings.retain(|finding| finding.code != codes::FOREIGN_DRIVER.code);
            plan.steps.push(waiting(title, None));
            plan.next = Next::Record(Box::new(adopted.record));
        }
        Ok(adopted) => plan.steps.push(waiting(title, Some(proposal(desired, &adopted)))),
    }
}

fn preview(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    theirs: &[(&ObjectId, &DriverWorkload)],
    adopted: Result<&adoption::Adopted, &String>,
) -> AdoptionPreview {
    AdoptionPreview {
        adopted: false,
        release: adopted.ok().and_then(|adopted| adopted.record.version.clone()),
        workloads: theirs.iter().map(|(id, _)| id.to_string()).collect(),
        changes: adopted.map(|adopted| adopted.changes.clone()).unwrap_or_default(),
        left: first_rollout::left(facts, desired.driver, theirs),
        impossible: adopted.err().cloned(),
    }
}

/// A driver of a release that the catalog does not have, such as the cloud provider of the Go VDO. A command
/// that adopts it would fail, so the fix is to replace it.
fn not_adoptable(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    theirs: &[(&ObjectId, &DriverWorkload)],
    why: &str,
) -> Finding {
    let ObjectId { kind, namespace, name, .. } = theirs[0].0;
    let driver = desired.driver;
    let replacement = release::first_install(facts, desired);
    let step = match (driver, replacement) {
        // Without a cloud provider, no new node would become usable.
        (Driver::Cpi, Err(none)) => {
            let reason = none.reason;
            let advice = match (none.images_gone, desired.implementation()) {
                (false, _) => "",
                (true, catalog::Implementation::Upstream) => {
                    " Upgrade Kubernetes, or set spec.cloudProvider.implementation: Rust"
                }
                (true, _) => " Upgrade Kubernetes",
            };
            format!(
                "Do not delete {name} yet, because VDO cannot install a release in its place. {reason}{advice}"
            )
        }
        // Its state is in the nodes, which keep their addresses and labels.
        (Driver::Cpi, Ok(_)) => format!(
            "kubectl delete {} --namespace {namespace} {name}   VDO then installs its own cloud provider; \
             nodes keep their addresses and labels meanwhile",
            kind.to_lowercase()
        ),
        (Driver::Csi, _) => format!(
            "Only if no volume is attached: uninstall {name} from namespace {namespace} the way it was \
             installed, and keep the Secret with its cluster-id; VDO then installs its own driver"
        ),
    };
    let subjects =
        theirs.iter().map(|(id, _)| Subject::kubernetes(&id.kind, Some(&id.namespace), &id.name));
    codes::RELEASE_NOT_ADOPTABLE
        .found()
        .with("driver", driver.to_string())
        .with("namespace", namespace)
        .with("name", name)
        .with("reason", why)
        .with("step", step)
        .about_all(subjects)
        .build()
}

/// The effect of an adoption, before anybody asks for it.
fn proposal(desired: &DesiredDriver<'_>, adopted: &adoption::Adopted) -> String {
    let version = adopted.record.version.as_deref().unwrap_or_default();
    format!(
        "it is {} {version}; with adoption: Automatic in the VDOConfig VDO records it as its own and changes \
         nothing. Its objects, names and cluster id stay. When you approve a release later, VDO writes its \
         configuration{}",
        desired.driver,
        adoption::listed(&adopted.changes)
    )
}
