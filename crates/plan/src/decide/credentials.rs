//! A new password of the same user: VDO hands it to a driver before, and independently of, everything else.
//!
//! A driver that keeps an old password locks the account, for itself and for everybody else who uses it. So
//! this rule depends on only two facts: vCenter accepted the new password, and the driver's Secret names the
//! same user with another password. VDO writes that Secret with the passwords of those vCenters, and keeps
//! everything else as it is in the cluster. Dead nodes, zones, releases, the catalog and other vCenters do
//! not matter. A different user can see less than the one before, so this rule does not hand on a different
//! user.

use std::collections::{BTreeMap, BTreeSet};

use api::{
    finding::{Finding, Subject, codes},
    vdo_config::Mode,
};
use catalog::{Driver, Implementation, manifest::Object};
use driver_config::{
    SecretText,
    credentials::{Replaced, SecretTexts, replace_password},
    csi::CsiConfig,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    adoption::may_write,
    configuration::{digest, stamped},
    conflicts,
    desired::DesiredDriver,
    rollout,
    settings::{secret, secret_data},
    steps::waiting,
};
use crate::{
    apply_set,
    facts::{
        DriverSecret, DriverWorkload, Facts, RestartStrategy, VcenterConnection, WorkloadRole,
    },
    names,
    object_id::ObjectId,
    plan::{DriverPlan, Next, PassedPods, PlannedStep},
    record::{Record, record_name},
};

/// The action with which a driver uses the passwords that vCenter accepts.
pub(super) struct Due {
    next: Next,
    step: PlannedStep,
    secret: ObjectId,
    /// The VsphereCloudConfigs whose password is new; empty if the driver only has to restart.
    vcenters: Vec<String>,
}

/// The action for a driver, independently of the rest of its plan. The error is the reason why VDO cannot
/// hand on a password that vCenter accepted.
pub(super) fn due(facts: &Facts, plan: &DriverPlan) -> Result<Option<Due>, Box<Finding>> {
    let record = facts.record(plan.driver);
    let ours = record.version.is_some() && !record.is_of_another(&facts.cluster.uid);
    let (Some(desired), Mode::Managed, true) = (
        DesiredDriver::from_spec(facts, plan.driver),
        plan.mode,
        ours && !facts.unreadable.contains_key(&plan.driver),
    ) else {
        return Ok(None);
    };
    let Some(present) = facts.driver_secrets.get(&plan.driver) else {
        return unusable(facts, plan, &desired, record).map_or(Ok(None), |found| Err(found.into()));
    };
    let refreshed = match Refreshed::from_accepted(facts, &desired, record, present) {
        Ok(Some(refreshed)) => refreshed,
        Ok(None) => return in_use(facts, record, plan, present),
        // The driver still gets the passwords of the other vCenters.
        Err((vcenter, why)) => {
            return match in_use(facts, record, plan, present)? {
                Some(due) => Ok(Some(due)),
                None => Err(Box::new(waits(plan.driver, &present.id, &[vcenter], &why))),
            };
        }
    };
    // For other Secrets, the operator has permission by name: vdoctl deploy adds the names on record.
    if is_left_behind(plan.driver, present) {
        let ObjectId { kind, namespace, name, .. } = &present.id;
        may_write(facts, kind, namespace, name)
            .map_err(|why| Box::new(waits(plan.driver, &present.id, &refreshed.vcenters, &why)))?;
    }
    // A password that VDO has not written yet does not wait for the end of the pause.
    let there = facts.objects.get(&present.id).and_then(|seen| seen.digest.as_deref());
    let again = there.is_none_or(|there| there == refreshed.digest(present));
    let paused = again && conflicts::is_left(facts, &present.id);
    if let Some(conflict) = facts.conflicts.get(&present.id).filter(|_| paused) {
        let manager = &conflict.manager;
        let why = format!("{manager} keeps changing the Secret, so VDO pauses between its writes");
        return Err(Box::new(waits(plan.driver, &present.id, &refreshed.vcenters, &why)));
    }
    Ok(Some(refreshed.due(facts, record, plan.driver, present)))
}

/// The time from which VDO reports that it cannot read the Secret of a driver. The next reads can succeed, and
/// VDO re-creates a missing Secret of its own.
pub(super) fn reported_from(facts: &Facts, driver: Driver) -> Option<Timestamp> {
    facts.unusable_secrets.get(&driver).map(|unusable| unusable.since + facts.grace())
}

/// The finding that vCenter accepts a password, and VDO cannot tell whether the driver has it.
fn unusable(
    facts: &Facts,
    plan: &DriverPlan,
    desired: &DesiredDriver<'_>,
    record: &Record,
) -> Option<Finding> {
    let unusable = facts.unusable_secrets.get(&plan.driver)?;
    let writes_it = |objects: &[Object]| {
        objects.iter().any(|object| ObjectId::from_object(object) == unusable.id)
    };
    if reported_from(facts, plan.driver).is_some_and(|from| facts.now < from)
        || matches!(&plan.next, Next::Apply(objects) if writes_it(objects))
    {
        return None;
    }
    let accepted = by_host(facts, desired, record).filter(|(_, vcenter)| vcenter.accepted);
    let accepted: Vec<String> = accepted.map(|(name, _)| name.to_owned()).collect();
    (!accepted.is_empty()).then(|| waits(plan.driver, &unusable.id, &accepted, &unusable.reason))
}

impl Due {
    /// Puts this action before all others in the plan.
    pub(super) fn first(self, facts: &Facts, plan: &mut DriverPlan) {
        let Self { next, mut step, .. } = self;
        if let (Next::Apply(_) | Next::Restart { .. } | Next::RenewFiles { .. }, Some(why)) =
            (&next, facts.refused.get(&plan.driver))
        {
            step.message = Some(why.text.clone());
        }
        plan.steps.insert(0, step);
        plan.next = next;
    }

    /// The finding that the password waits, if VDO must change nothing.
    pub(super) fn held(&self, driver: Driver, why: &str) -> Option<Finding> {
        (!self.vcenters.is_empty()).then(|| waits(driver, &self.secret, &self.vcenters, why))
    }
}

/// The data of a driver's Secret with new passwords.
struct Refreshed {
    data: SecretTexts,
    /// The same data with a version in place of each known password. It contains no password.
    masked: SecretTexts,
    vcenters: Vec<String>,
}

impl Refreshed {
    /// None if the driver has all known passwords already. The error names a vCenter whose password VDO cannot
    /// write; those of the others come first.
    fn from_accepted(
        facts: &Facts,
        desired: &DesiredDriver<'_>,
        record: &Record,
        present: &DriverSecret,
    ) -> Result<Option<Self>, (String, String)> {
        let mut refreshed = Self {
            data: present.data.clone(),
            masked: masked(&present.data),
            vcenters: Vec::new(),
        };
        let mut failed = None;
        for (name, vcenter) in by_host(facts, desired, record) {
            let host = vcenter.spec.vc_ip.host_and_port().0;
            let credential = vcenter.credentials.as_ref().filter(|_| vcenter.accepted);
            // Without an accepted credential, the driver keeps its password.
            let Some(credential) = credential else { continue };
            let user = credential.username.as_str();
            let replaced = replace_password(&mut refreshed.data, host, user, &credential.password);
            match replaced {
                Ok(Replaced::Changed) => refreshed.vcenters.push(name.to_owned()),
                Ok(Replaced::Unchanged | Replaced::OtherUser | Replaced::Absent) => {}
                Err(error) => {
                    failed.get_or_insert((name.to_owned(), error.to_string()));
                    continue;
                }
            }
            let version = vcenter.credentials_version.clone().into();
            let _ = replace_password(&mut refreshed.masked, host, user, &version);
        }
        match failed {
            Some(failed) if refreshed.vcenters.is_empty() => Err(failed),
            _ => Ok((!refreshed.vcenters.is_empty()).then_some(refreshed)),
        }
    }

    fn due(self, facts: &Facts, record: &Record, driver: Driver, present: &DriverSecret) -> Due {
        let title = "Hand the new password to the driver";
        let step =
            waiting(title, Some(format!("vCenter accepted that of {}", self.vcenters.join(", "))));
        let next = if is_left_behind(driver, present) {
            Next::Apply(vec![self.unmanaged_object(facts, driver, record, present)])
        } else if record.objects.contains(&present.id) {
            Next::Apply(vec![self.object(facts, record, driver, present)])
        } else {
            let mut record = record.clone();
            record.objects.insert(present.id.clone());
            Next::Record(Box::new(record))
        };
        Due { next, step, secret: present.id.clone(), vcenters: self.vcenters }
    }

    fn object(
        &self,
        facts: &Facts,
        record: &Record,
        driver: Driver,
        present: &DriverSecret,
    ) -> Object {
        let set = apply_set::id(record_name(driver), &facts.operator_namespace);
        let mut object = stamped(with_data(present, &self.data), &self.digest(present), &set);
        if carries_time(driver, record.implementation) {
            object.0["metadata"]["annotations"][names::CREDENTIALS_CHANGED] =
                json!(facts.now.to_string());
        }
        object
    }

    /// A Secret that the driver no longer reads after the next rollout. It gets neither our label nor a place
    /// in the record, so VDO never prunes it.
    fn unmanaged_object(
        &self,
        facts: &Facts,
        driver: Driver,
        record: &Record,
        present: &DriverSecret,
    ) -> Object {
        let mut object = with_data(present, &self.data);
        let annotations = &mut object["metadata"]["annotations"];
        annotations[names::DIGEST] = json!(self.digest(present));
        if reads_once(driver, record.implementation) {
            annotations[names::CREDENTIALS_CHANGED] = json!(facts.now.to_string());
        }
        Object(object)
    }

    /// The digest that the applied Secret carries.
    fn digest(&self, present: &DriverSecret) -> String {
        digest(&with_data(present, &self.masked))
    }
}

/// A driver's Secret with other data.
fn with_data(present: &DriverSecret, data: &SecretTexts) -> Value {
    let data = secret_data(data.iter().map(|(key, text)| (key.clone(), text.expose())));
    secret(&present.kind, &present.id.name, &present.id.namespace, &json!(data))
}

/// The placeholder for a password that VDO does not know.
const UNKNOWN: &str = "not known";

/// The data of a driver's Secret without any password, for every user and every vCenter. The digest of the
/// data is public, and must not help to guess a password.
fn masked(data: &SecretTexts) -> SecretTexts {
    let mask = |key: &str, text: &SecretText| match key {
        "csi-vsphere.conf" => masked_configuration(text).unwrap_or_else(|| UNKNOWN.into()),
        "cloud.conf" | "vsphere.conf" | "cloud-config" => UNKNOWN.into(),
        _ if key.ends_with("password") || key.starts_with("password_") => UNKNOWN.into(),
        _ if key.ends_with("-token") => UNKNOWN.into(),
        _ => text.clone(),
    };
    data.iter().map(|(key, text)| (key.clone(), mask(key, text))).collect()
}

/// The same for the file that the storage driver reads; none if VDO cannot parse it.
fn masked_configuration(text: &SecretText) -> Option<SecretText> {
    let mut config = CsiConfig::read(text.expose()).ok()?.config;
    let own = config.vcenters.values_mut().map(|vcenter| &mut vcenter.password);
    // An empty password means that the driver uses the one in `[Global]`.
    for password in own.chain([&mut config.global.password]).filter(|own| !own.is_empty()) {
        *password = UNKNOWN.into();
    }
    config.render().ok()
}

/// The vCenters of the spec, by host. If two have the same host, VDO takes the one that the driver was last
/// configured with, else the last, as in the rendered configuration. A VsphereCloudConfig can have a new name
/// by now, so the rule checks afterwards whether the driver's Secret names its host and user.
fn by_host<'a>(
    facts: &'a Facts,
    desired: &DesiredDriver<'a>,
    record: &Record,
) -> impl Iterator<Item = (&'a str, &'a VcenterConnection)> + use<'a> {
    let known: BTreeSet<&str> =
        record.users.iter().filter_map(|user| user.split(' ').next()).collect();
    let mut all: BTreeMap<&str, (&str, &VcenterConnection)> = BTreeMap::new();
    for name in &desired.vcenters {
        let Some(vcenter) = facts.vcenters.get(*name) else { continue };
        let host = vcenter.spec.vc_ip.host_and_port().0;
        let other_is_known = all.get(host).is_some_and(|(other, _)| known.contains(other));
        if known.contains(name) || !other_is_known {
            all.insert(host, (name, vcenter));
        }
    }
    all.into_values()
}

/// Whether an adopted driver still reads a Secret that VDO replaces with its own in the first rollout. Only the
/// cloud controller does: the storage driver keeps the name of its Secret.
fn is_left_behind(driver: Driver, present: &DriverSecret) -> bool {
    let own = (names::KUBE_SYSTEM, names::CPI_SECRET);
    driver == Driver::Cpi && (present.id.namespace.as_str(), present.id.name.as_str()) != own
}

/// Whether a driver reads its logins only at start. Upstream's cloud controller does, and would lock the
/// account with an old password. The others notice a new password by themselves.
pub(super) fn reads_once(driver: Driver, implementation: Implementation) -> bool {
    (driver, implementation) == (Driver::Cpi, Implementation::Upstream)
}

/// Whether the Secret of a driver carries the time of the last change of a login: VDO passes that time on to the
/// pods. Our own cloud controller watches its Secret and needs no time.
fn carries_time(driver: Driver, implementation: Implementation) -> bool {
    driver == Driver::Csi || reads_once(driver, implementation)
}

/// The action with which the driver uses the passwords that its Secret contains. The error is the reason why it
/// keeps an old one.
fn in_use(
    facts: &Facts,
    record: &Record,
    plan: &DriverPlan,
    present: &DriverSecret,
) -> Result<Option<Due>, Box<Finding>> {
    let Some(changed) = present.changed.as_deref() else { return Ok(None) };
    if plan.driver == Driver::Csi {
        return Ok(renew_files(facts, record, plan, present, changed));
    }
    if !reads_once(plan.driver, record.implementation) {
        return Ok(None);
    }
    match restart(facts, record, plan, present, changed) {
        Some(due) => Ok(Some(due)),
        None => restarts_on_delete(facts, record, plan, present, changed).map_or(Ok(None), Err),
    }
}

/// The controllers of a driver on record.
fn controllers<'a>(
    facts: &'a Facts,
    record: &Record,
    driver: Driver,
) -> impl Iterator<Item = (&'a ObjectId, &'a DriverWorkload)> {
    let all = facts.workloads_of(driver, WorkloadRole::Controller).into_iter();
    all.filter(|(id, _)| record.objects.contains(*id))
}

/// The action to take if VDO cannot change the pods. An apply can repair the cause. The plan evaluates deletions
/// after this rule.
fn otherwise(plan: &DriverPlan) -> Box<Next> {
    Box::new(match &plan.next {
        next @ (Next::Apply(_) | Next::Record(_)) => next.clone(),
        _ => Next::Wait,
    })
}

/// The restart of a driver that reads its logins only at start, and that started before the last change of a
/// login, or that waits for nodes that went down since it restarts. After the restart of an adopted DaemonSet, VDO
/// restores the limit that it raised.
fn restart(
    facts: &Facts,
    record: &Record,
    plan: &DriverPlan,
    present: &DriverSecret,
    changed: &str,
) -> Option<Due> {
    // VDO has not applied the workload yet.
    let adopted = record.untouched || is_left_behind(plan.driver, present);
    let began =
        |workload: &DriverWorkload| workload.origin.credentials_changed.as_deref() == Some(changed);
    let (id, workload) = controllers(facts, record, plan.driver).find(|(id, workload)| {
        let goes_on = if adopted {
            is_restarting(facts, workload, changed)
        } else {
            // The full apply raises the limit too, but something else can hold it up.
            record.healthy
                && with_other_login(workload, changed) > 0
                && rollout::has_lost_nodes(facts, id, workload)
        };
        (workload.labelled || adopted) && (!began(workload) || goes_on)
    })?;
    let step = waiting("Restart the driver with the new password", None);
    let next = Next::Restart {
        workload: id.clone(),
        changed: changed.to_owned(),
        passed: if record.healthy {
            rollout::passed_by_restart(facts, id, workload)
        } else {
            // An upgrade must stop at the pods that the new release breaks.
            PassedPods { unreachable: workload.unreachable + workload.orphaned, unready: 0 }
        },
        otherwise: otherwise(plan),
    };
    Some(Due { next, step, secret: present.id.clone(), vcenters: Vec::new() })
}

/// How long after a change VDO looks for nodes that go down while the pods restart. Kubernetes notices after less
/// than a minute.
const RESTART_WATCHED: SignedDuration = SignedDuration::from_mins(10);

/// Whether VDO still has to raise or to restore the limit of an adopted DaemonSet that restarts.
fn is_restarting(facts: &Facts, workload: &DriverWorkload, changed: &str) -> bool {
    let soon = |since: Timestamp| facts.now.duration_since(since) < RESTART_WATCHED;
    match workload.restart {
        RestartStrategy::RollingWithRaisedLimit => true,
        RestartStrategy::Rolling => {
            workload.updated < workload.wanted && changed.parse().is_ok_and(soon)
        }
        RestartStrategy::OnDelete => false,
    }
}

/// The finding that running pods keep an old password until somebody deletes them.
fn restarts_on_delete(
    facts: &Facts,
    record: &Record,
    plan: &DriverPlan,
    present: &DriverSecret,
    changed: &str,
) -> Option<Box<Finding>> {
    let (id, workload) = controllers(facts, record, plan.driver).find(|(_, workload)| {
        // Without its pods, VDO knows only what Kubernetes counts: also new pods on nodes that went down since.
        let old = if workload.logins.is_empty() {
            workload.updated < workload.ready
        } else {
            with_other_login(workload, changed) > 0
        };
        workload.restart == RestartStrategy::OnDelete && old
    })?;
    let labels = workload.selector.iter().map(|(key, value)| format!("{key}={value}"));
    // Without --wait=false, kubectl waits for the pods of nodes that are down.
    let why = format!(
        "{id} has the update strategy OnDelete, so its pods keep the old password until you run: kubectl \
         delete pods --wait=false --namespace {} --selector {}",
        id.namespace,
        labels.collect::<Vec<_>>().join(","),
    );
    let vcenters = facts.referenced_vcenters().map(|(name, _)| name.clone());
    Some(Box::new(waits(plan.driver, &present.id, &vcenters.collect::<Vec<_>>(), &why)))
}

/// How long after a change a running pod can have an old password before VDO reports it, for each pod of the
/// workload: they restart one after another. A pod that cannot run keeps all others waiting, so VDO then reports it after
/// the time for one pod.
const RESTARTED_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// The time from which VDO reports that a driver keeps an old password, and the finding.
pub(super) fn outdated(facts: &Facts, plan: &DriverPlan) -> Option<(Timestamp, Finding)> {
    let record = facts.record(plan.driver);
    let ours = plan.mode == Mode::Managed && !record.is_of_another(&facts.cluster.uid);
    if !ours || !reads_once(plan.driver, record.implementation) {
        return None;
    }
    let present = facts.driver_secrets.get(&plan.driver)?;
    let changed = present.changed.as_deref()?;
    let since: Timestamp = changed.parse().ok()?;
    let (id, workload, old) = controllers(facts, record, plan.driver)
        .map(|(id, workload)| (id, workload, with_other_login(workload, changed)))
        .find(|(_, workload, old)| *old > 0 && workload.restart != RestartStrategy::OnDelete)?;
    let pods = if old == 1 { "1 running pod" } else { &format!("{old} running pods") };
    let cause = workload.trouble.as_ref().map_or_else(String::new, |trouble| {
        format!(" because Kubernetes waits for a pod that does not run: {trouble}")
    });
    let why = format!("{pods} of {id} did not restart and kept the old password{cause}");
    let vcenters: Vec<String> = facts.referenced_vcenters().map(|(name, _)| name.clone()).collect();
    let restarts = if workload.trouble.is_some() { 1 } else { workload.wanted.max(1) };
    Some((since + RESTARTED_WITHIN * restarts, waits(plan.driver, &present.id, &vcenters, &why)))
}

/// The number of running pods that started before the last change of a login.
fn with_other_login(workload: &DriverWorkload, changed: &str) -> i32 {
    let others = workload.logins.iter().filter(|(login, _)| login.as_deref() != Some(changed));
    others.map(|(_, pods)| pods).sum()
}

/// The time after which every kubelet has renewed the files of its pods without VDO: it does so every 60 to 90
/// seconds.
const RENEWED_ANYWAY: SignedDuration = SignedDuration::from_mins(5);

/// VDO renews the files once more after this time: a kubelet can see the change of the pod before that of the
/// Secret.
const RENEWED_AGAIN: SignedDuration = SignedDuration::from_secs(10);
/// The number of renewals after a change.
const RENEWALS: u32 = 2;

/// The time of the next renewal of files, if one is due later.
pub(super) fn renewed_again_at(facts: &Facts, driver: Driver) -> Option<Timestamp> {
    let renewal = facts.renewed_files.get(&driver).filter(|renewal| renewal.times < RENEWALS)?;
    let again = renewal.last + RENEWED_AGAIN;
    (facts.now < again).then_some(again)
}

/// The renewal of the files from which the pods of a driver read their logins.
fn renew_files(
    facts: &Facts,
    record: &Record,
    plan: &DriverPlan,
    present: &DriverSecret,
    changed: &str,
) -> Option<Due> {
    let since = changed.parse::<Timestamp>().ok()?;
    let namespace = present.id.namespace.as_str();
    // In other namespaces, the operator has no permission to change pods.
    let allowed = namespace == names::CSI_NAMESPACE || facts.open_namespaces.contains(namespace);
    let renewal = facts.renewed_files.get(&plan.driver).filter(|last| last.changed == changed);
    let done =
        renewal.is_some_and(|last| last.times >= RENEWALS || facts.now < last.last + RENEWED_AGAIN);
    if !allowed || done || facts.now.duration_since(since) > RENEWED_ANYWAY {
        return None;
    }
    let own = controllers(facts, record, plan.driver).filter(|(id, _)| id.namespace == namespace);
    let workloads: Vec<ObjectId> = own.map(|(id, _)| id.clone()).collect();
    if workloads.is_empty() {
        return None;
    }
    let next =
        Next::RenewFiles { workloads, changed: changed.to_owned(), otherwise: otherwise(plan) };
    let step = waiting("Renew the password in the driver's pods", None);
    Some(Due { next, step, secret: present.id.clone(), vcenters: Vec::new() })
}

/// Marks the objects of a driver that gets the time of the last change of a login: its Secret, and the pods of a
/// driver that reads its logins only at start. The digests do not contain these times.
pub(super) fn mark(
    facts: &Facts,
    driver: Driver,
    implementation: Implementation,
    objects: &mut [Object],
) {
    if !carries_time(driver, implementation) {
        return;
    }
    let present = facts.driver_secrets.get(&driver).filter(|own| !is_left_behind(driver, own));
    let held = present.and_then(|present| present.changed.clone());
    for object in objects.iter_mut() {
        let id = ObjectId::from_object(object);
        let (metadata, changed) = match id.kind.as_str() {
            // The pods that read the storage driver's first Secret do not exist before it.
            "Secret" if id.name == names::CPI_SECRET || present.is_some_and(|own| own.id == id) => {
                let same = present.is_some_and(|present| is_same(present, object));
                let changed = if same { held.clone() } else { Some(facts.now.to_string()) };
                (&mut object.0["metadata"], changed)
            }
            "DaemonSet" if driver == Driver::Cpi => {
                let runs = facts.workloads.get(&id);
                let runs = runs.and_then(|workload| workload.origin.credentials_changed.clone());
                (&mut object.0["spec"]["template"]["metadata"], held.clone().or(runs))
            }
            _ => continue,
        };
        if let Some(changed) = changed {
            metadata["annotations"][names::CREDENTIALS_CHANGED] = json!(changed);
        }
    }
}

/// Whether a Secret in the cluster has the same data as the one that VDO would apply.
pub(super) fn is_same(present: &DriverSecret, object: &Object) -> bool {
    let texts = present.data.iter().map(|(key, text)| (key.clone(), text.expose()));
    present.id == ObjectId::from_object(object) && json!(secret_data(texts)) == object.0["data"]
}

/// The finding that vCenter accepted a password and the driver does not get it.
fn waits(driver: Driver, secret: &ObjectId, vcenters: &[String], why: &str) -> Finding {
    codes::PASSWORD_WAITS
        .found()
        .with("driver", driver.to_string())
        .with("vcenters", vcenters.join(", "))
        .with("reason", why)
        .with("secret", &secret.name)
        .with("namespace", &secret.namespace)
        .about(Subject::kubernetes(&secret.kind, Some(&secret.namespace), &secret.name))
        .build()
}
