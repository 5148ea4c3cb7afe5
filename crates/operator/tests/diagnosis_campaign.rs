//! The diagnosis mutation score: breaks one thing after the other on a healthy installation, and counts how many
//! of the changes that hurt VDO reports, with the name of the changed object and field, or restores with a trace.
//!
//! The mutations come from the objects in the cluster and in vCenter, so a new release is mutated without a change
//! here. A test runs a sample; `VDO_SEED` selects another one, and `VDO_SEEDS` runs all. `VDO_MUTATION` runs the
//! mutations whose name contains a text. `UPDATE_DOCS=1` with `VDO_SEEDS` writes docs/diagnosis-score.md. A miss
//! that this page does not list fails the test.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "diagnosis_campaign/by_hand.rs"]
mod by_hand;
mod common;
#[path = "diagnosis_campaign/mutation.rs"]
mod mutation;
#[path = "diagnosis_campaign/objects.rs"]
mod objects;
#[path = "diagnosis_campaign/score.rs"]
mod score;
#[path = "diagnosis_campaign/vcenter.rs"]
mod vcenter;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::{Finding, Severity, VDOConfigStatus};
use common::{NAMESPACE, Testbed, fixes::Fixes};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::ConfigMap, events::v1::Event};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams},
};
use plan::{ObjectId, record::Record};
use serde_json::{Value, json};
use testkit::{Permission, Process, Role, SeededRandom, eventually};
use tokio::time::Instant;

use mutation::{Change, Lever, Mutation, ObjectEdit};
use score::{Outcome, Score};

/// How many mutations the sample has.
const SAMPLE: usize = 30;
/// How many installations share all mutations. The sample has one.
const LANES: usize = 3;
/// VDO must report within this time.
const LIMIT: Duration = Duration::from_secs(10);
/// A busy computer gets more time before a mutation counts as missed. A late report is no miss of the test, and
/// none in the score.
const LATEST: Duration = Duration::from_secs(40);
/// VDO restores an object at once so many times an hour. The campaign then starts another operator.
const RESTORED_AT_ONCE: u32 = 4;
/// The account's role with the privileges that the drivers need.
const ROLE: &str = "campaign";
/// The field manager of the mutations.
const SOMEBODY: &str = "somebody";

struct Campaign {
    testbed: Testbed,
    operator: Process,
    /// How often each object was changed since the operator started.
    changes: BTreeMap<ObjectId, u32>,
    checks: u32,
    /// The findings of the healthy installation, by code.
    baseline: BTreeSet<String>,
    fixes: Fixes,
}

impl Campaign {
    async fn start() -> Self {
        let testbed = Testbed::with_nodes(2).await;
        let user = testbed.vcenter.user().to_owned();
        let privileges = vcenter::privileges();
        let names: Vec<&str> = privileges.iter().map(String::as_str).collect();
        testbed.vcenter.set_role(&Role::new(ROLE, &names)).await;
        testbed.vcenter.permit(&Permission::new(&user, ROLE, "/")).await;
        let operator = testbed.operator();
        testbed
            .configure(json!({
                "cloudProvider": {
                    "vsphereCloudConfigs": ["vc"],
                    "topology": {"zone": "k8s-zone", "region": "k8s-region"},
                },
                "storageProvider": {
                    "vsphereCloudConfig": "vc",
                    "storageClasses": [{"name": "gold", "allowVolumeExpansion": true}],
                },
            }))
            .await;
        testbed.ready(&operator, 120).await;
        let warnings = warnings(&testbed).await;
        assert_eq!(warnings, Vec::<String>::new(), "a flawless installation gives no warning");
        let fixes = Fixes::start(&testbed).await;
        let mut campaign = Self {
            testbed,
            operator,
            changes: BTreeMap::new(),
            checks: 0,
            baseline: BTreeSet::new(),
            fixes,
        };
        campaign.check_now().await;
        let status = campaign.testbed.config().await.status.unwrap();
        campaign.baseline = status.findings.iter().map(|finding| finding.code.clone()).collect();
        let hints: Vec<&Finding> =
            status.findings.iter().filter(|f| f.severity > Severity::Info).collect();
        assert!(hints.is_empty(), "the installation is not healthy: {hints:#?}");
        campaign
    }

    async fn check_now(&mut self) {
        self.checks += 1;
        self.testbed.check_now(&format!("campaign-{}", self.checks)).await;
    }

    /// Every mutation of everything that VDO installed, of its settings and of vCenter.
    async fn mutations(&self) -> Vec<Mutation> {
        let maps = Api::<ConfigMap>::namespaced(self.testbed.client(), NAMESPACE);
        let mut ids = BTreeSet::new();
        for name in ["vdo-record-cpi", "vdo-record-csi"] {
            let record = maps.get(name).await.unwrap().data.unwrap()["record.json"].clone();
            ids.extend(serde_json::from_str::<Record>(&record).unwrap().objects);
        }
        let mut all = Vec::new();
        for id in ids {
            if let Some(object) = self.api(&id).get_opt(&id.name).await.unwrap() {
                all.extend(objects::mutations(&id, &json!(object)));
            }
        }
        all.extend(vcenter::settings());
        all.extend(vcenter::node());
        all.extend(vcenter::mutations(&self.testbed.vcenter.truth().await));
        all
    }

    fn api(&self, id: &ObjectId) -> Api<DynamicObject> {
        let (group, version) = id.api_version.split_once('/').unwrap_or(("", &id.api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &id.kind));
        if id.namespace.is_empty() {
            Api::all_with(self.testbed.client(), &resource)
        } else {
            Api::namespaced_with(self.testbed.client(), &id.namespace, &resource)
        }
    }

    /// Applies one mutation, waits for its report, reverts it and waits until everything is healthy again.
    async fn judge(&mut self, mutation: &Mutation, expected: bool) -> Outcome {
        let before = match &mutation.change {
            Change::Object(id, _) => Some(self.api(id).get(&id.name).await.unwrap()),
            Change::Vcenter(..) => None,
        };
        self.start_again_if_needed(mutation).await;
        let since = Timestamp::now();
        let mut begin = Instant::now();
        self.make(mutation).await;
        if mutation.asks {
            self.check_now().await;
            begin = Instant::now();
        }
        let outcome = if mutation.hurts {
            let latest = if expected { LATEST } else { LIMIT + Duration::from_secs(2) };
            self.wait_for_report(mutation, since, begin, latest).await
        } else {
            self.testbed.two_more_rounds(&self.operator).await;
            self.false_alarms().await
        };
        if let Outcome::Reported(code, _) | Outcome::Late(code, _) = &outcome
            && code != "restored"
        {
            self.fixes.execute(&self.testbed, &mutation.name, code).await;
        }
        self.undo(mutation, before.as_ref()).await;
        if mutation.asks {
            self.check_now().await;
        }
        self.is_healthy(&mutation.name).await;
        outcome
    }

    async fn make(&self, mutation: &Mutation) {
        match &mutation.change {
            Change::Vcenter(lever, _) => self.pull(lever).await,
            Change::Object(id, ObjectEdit::Delete) => {
                self.api(id).delete(&id.name, &DeleteParams::background()).await.unwrap();
            }
            Change::Object(id, edit) => self.replace(id, |object| edit.edit(object)).await,
        }
    }

    /// Replaces an object as `kubectl replace` does, and retries on conflicts.
    async fn replace(&self, id: &ObjectId, edit: impl Fn(&mut Value)) {
        let api = self.api(id);
        let as_somebody =
            PostParams { field_manager: Some(SOMEBODY.into()), ..PostParams::default() };
        eventually(&format!("{id} is replaced"), 20, async || {
            let mut object = json!(api.get(&id.name).await.map_err(|e| e.to_string())?);
            edit(&mut object);
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            let replaced = api.replace(&id.name, &as_somebody, &object).await;
            replaced.map(drop).map_err(|error| error.to_string())
        })
        .await;
    }

    async fn pull(&self, lever: &Lever) {
        let vcenter = &self.testbed.vcenter;
        match lever {
            Lever::Vm(path, change) => vcenter.patch_vm(path, change.clone()).await,
            Lever::Host(path, change) => vcenter.patch_host(path, change.clone()).await,
            Lever::Datastore(path, change) => vcenter.patch_datastore(path, change.clone()).await,
            Lever::Attach(category, tag, path) => vcenter.attach_tag(category, tag, &[path]).await,
            Lever::Detach(category, tag, path) => vcenter.detach_tag(category, tag, &[path]).await,
            Lever::Role(privileges) => {
                let names: Vec<&str> = privileges.iter().map(String::as_str).collect();
                vcenter.set_role(&Role::new(ROLE, &names)).await;
            }
            Lever::Hide(path) => {
                vcenter.permit(&Permission::new(vcenter.user(), "NoAccess", path)).await;
            }
            Lever::Show(path) => vcenter.forbid(path, vcenter.user()).await,
        }
    }

    async fn wait_for_report(
        &self,
        mutation: &Mutation,
        since: Timestamp,
        begin: Instant,
        latest: Duration,
    ) -> Outcome {
        loop {
            if let Some(how) = self.report(mutation, since).await {
                let seconds = begin.elapsed().as_secs_f64();
                return if begin.elapsed() <= LIMIT {
                    Outcome::Reported(how, seconds)
                } else {
                    Outcome::Late(how, seconds)
                };
            }
            if begin.elapsed() > latest {
                return Outcome::Missed(self.what_is_shown(mutation).await);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The finding or the event that names the mutated object and field.
    async fn report(&self, mutation: &Mutation, since: Timestamp) -> Option<String> {
        assert!(self.operator.ended().is_none(), "{}", self.operator.tail());
        let names_all = |text: &str| {
            let text = text.to_lowercase();
            let has =
                |name: &String| name.split('|').any(|word| text.contains(&word.to_lowercase()));
            mutation.names.iter().all(has)
        };
        let findings = self.findings().await;
        let finding = findings.iter().find(|finding| names_all(&text_of(finding)));
        if let Some(finding) = finding {
            return Some(finding.code.clone());
        }
        let Change::Object(id, _) = &mutation.change else { return None };
        let events = Api::<Event>::namespaced(self.testbed.client(), NAMESPACE);
        let events = events.list(&ListParams::default()).await.unwrap();
        let restored = events.iter().any(|event| {
            let series = event.series.as_ref().map(|series| series.last_observed_time.0);
            let at = series.or(event.event_time.as_ref().map(|time| time.0));
            event.reason.as_deref() == Some("Restored")
                && at.is_some_and(|at| at >= since)
                && event
                    .note
                    .as_ref()
                    .is_some_and(|note| note.contains(&id.name) && names_all(note))
        });
        restored.then(|| "restored".to_owned())
    }

    /// The findings that the healthy installation does not have, without hints.
    async fn findings(&self) -> Vec<Finding> {
        let status = self.testbed.config().await.status.unwrap_or_default();
        let new = |finding: &Finding| !self.baseline.contains(&finding.code);
        status.findings.into_iter().filter(new).collect()
    }

    async fn what_is_shown(&self, mutation: &Mutation) -> String {
        let findings = self.findings().await;
        let seen = |f: &Finding| {
            let seen = f.seen.clone().unwrap_or_default();
            format!("{} ({})", f.code, seen.chars().take(120).collect::<String>())
        };
        let mut shown: Vec<String> = findings.iter().map(seen).collect();
        if let Change::Object(id, edit) = &mutation.change
            && let Some(now) = self.api(id).get_opt(&id.name).await.unwrap()
            && !is_mutated(edit, &json!(now))
        {
            shown.push("restored without a trace".into());
        }
        if shown.is_empty() { "nothing".into() } else { shown.join("; ") }
    }

    async fn false_alarms(&self) -> Outcome {
        let begin = Instant::now();
        let mut findings = self.findings().await;
        findings.retain(|finding| finding.severity > Severity::Info);
        // A restored workload replaces its pods, and a few seconds without them are no alarm.
        while !findings.is_empty() && begin.elapsed() < LIMIT {
            tokio::time::sleep(Duration::from_millis(200)).await;
            findings = self.findings().await;
            findings.retain(|finding| finding.severity > Severity::Info);
        }
        if findings.is_empty() {
            return Outcome::Quiet;
        }
        let codes = findings.iter().map(|f| format!("{} ({:?})", f.code, f.seen));
        Outcome::FalseAlarm(codes.collect::<Vec<_>>().join(", "))
    }

    /// Reverts what VDO has not restored.
    async fn undo(&self, mutation: &Mutation, before: Option<&DynamicObject>) {
        let (id, before) = match (&mutation.change, before) {
            (Change::Vcenter(_, back), _) => return self.pull(back).await,
            (Change::Object(id, _), Some(before)) => (id, json!(before)),
            (Change::Object(..), None) => return,
        };
        let api = self.api(id);
        let deleted = matches!(mutation.change, Change::Object(_, ObjectEdit::Delete));
        if api
            .get_opt(&id.name)
            .await
            .unwrap()
            .is_none_or(|now| now.metadata.deletion_timestamp.is_some())
        {
            self.create_again(id, before).await;
            return;
        }
        if deleted {
            // VDO has created another object of this name.
            return;
        }
        self.replace(id, |now| {
            let metadata = now["metadata"].take();
            let status = now["status"].take();
            *now = before.clone();
            let labels = now["metadata"]["labels"].take();
            let annotations = now["metadata"]["annotations"].take();
            now["metadata"] = metadata;
            now["metadata"]["labels"] = labels;
            if id.kind == "Node" {
                now["metadata"]["annotations"] = annotations;
            }
            now["status"] = status;
        })
        .await;
    }

    /// VDO may create the object at the same time.
    async fn create_again(&self, id: &ObjectId, mut object: Value) {
        let metadata = object["metadata"].as_object_mut().unwrap();
        for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"]
        {
            metadata.remove(field);
        }
        object.as_object_mut().unwrap().remove("status");
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let api = self.api(id);
        eventually(&format!("{id} exists again"), 60, async || {
            match api.create(&PostParams::default(), &object).await {
                Ok(_) => Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    let now = api.get(&id.name).await.map_err(|e| e.to_string())?;
                    match now.metadata.deletion_timestamp {
                        None => Ok(()),
                        Some(_) => Err("it is still being deleted".to_owned()),
                    }
                }
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }

    async fn is_healthy(&self, after: &str) {
        self.testbed.ready(&self.operator, 120).await;
        let healthy = |status: &VDOConfigStatus| {
            let ready = api::condition::is_true(&status.conditions, "Ready");
            let mut open = status.findings.iter().filter(|f| f.severity > Severity::Info);
            ready && open.all(|finding| self.baseline.contains(&finding.code))
        };
        self.testbed.status(&format!("VDO is healthy after: {after}"), 90, healthy).await;
    }

    /// VDO pauses before it restores an object that somebody changes again and again; another operator does not know
    /// about the earlier changes.
    async fn start_again_if_needed(&mut self, mutation: &Mutation) {
        let Change::Object(id, _) = &mutation.change else { return };
        let changes = self.changes.entry(id.clone()).or_default();
        *changes += 1;
        if *changes <= RESTORED_AT_ONCE {
            return;
        }
        self.changes.clear();
        self.changes.insert(id.clone(), 1);
        self.operator.signal(rustix::process::Signal::TERM);
        assert!(self.operator.wait(30).await.is_some_and(|ended| ended.success()));
        self.operator = self.testbed.operator();
        self.testbed.ready(&self.operator, 120).await;
        self.check_now().await;
        self.is_healthy("another operator").await;
    }
}

/// The warnings of VDO.
async fn warnings(testbed: &Testbed) -> Vec<String> {
    let events = Api::<Event>::namespaced(testbed.client(), NAMESPACE);
    let events = events.list(&ListParams::default()).await.unwrap();
    let warnings = events.iter().filter(|event| event.type_.as_deref() == Some("Warning"));
    warnings.map(|event| format!("{:?}: {:?}", event.reason, event.note)).collect()
}

/// Everything that a finding shows.
fn text_of(finding: &Finding) -> String {
    let seen = finding.seen.clone().unwrap_or_default();
    let objects =
        finding.objects.iter().map(|subject| format!("{} {}", subject.kind, subject.name));
    let objects: Vec<String> = objects.collect();
    format!("{} {seen} {} {}", finding.title, objects.join(" "), finding.remedy.join(" "))
}

/// Whether an object still has the mutation.
fn is_mutated(edit: &ObjectEdit, now: &Value) -> bool {
    match edit {
        ObjectEdit::Set(pointer, value) => now.pointer(pointer) == Some(value),
        ObjectEdit::Remove(pointer) => now.pointer(pointer).is_none(),
        ObjectEdit::Delete => false,
    }
}

/// The mutations to run: all, those with a name, or a sample with some of every area.
fn selected(mut all: Vec<Mutation>) -> Vec<Mutation> {
    if let Ok(text) = std::env::var("VDO_MUTATION") {
        all.retain(|mutation| mutation.name.contains(&text));
        return all;
    }
    let seed = std::env::var("VDO_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut random = SeededRandom::new(seed.unwrap_or(1));
    for last in (1..all.len()).rev() {
        let other = random.below(last as u64 + 1);
        all.swap(last, usize::try_from(other).unwrap());
    }
    if std::env::var_os("VDO_SEEDS").is_some() {
        return all;
    }
    let mut by_area: BTreeMap<_, Vec<Mutation>> = BTreeMap::new();
    for mutation in all {
        by_area.entry(mutation.area).or_default().push(mutation);
    }
    let mut sample = Vec::new();
    while sample.len() < SAMPLE {
        let next: Vec<Mutation> = by_area.values_mut().filter_map(Vec::pop).collect();
        assert!(!next.is_empty(), "there are not enough mutations for a sample");
        sample.extend(next);
    }
    sample.truncate(SAMPLE);
    sample
}

#[tokio::test]
async fn what_breaks_an_installation_is_named_or_restored() {
    let lanes = if std::env::var_os("VDO_SEEDS").is_some() { LANES } else { 1 };
    let campaigns = join_all((0..lanes).map(|_| Campaign::start())).await;
    let all = campaigns[0].mutations().await;
    println!("{} mutations", all.len());
    let mut names = BTreeSet::new();
    let twice = all.iter().find(|mutation| !names.insert(&mutation.name));
    assert!(twice.is_none(), "two mutations have one name: {twice:?}");
    let known = score::known();
    let selected = selected(all);
    let lanes = campaigns.into_iter().enumerate().map(async |(lane, mut campaign)| {
        let mut outcomes = Vec::new();
        for mutation in selected.iter().skip(lane).step_by(lanes) {
            let outcome = campaign.judge(mutation, !known.contains(&mutation.name)).await;
            println!("{outcome}: {}", mutation.name);
            outcomes.push((mutation, outcome));
        }
        assert_eq!(campaign.testbed.denied_requests(), Vec::<String>::new());
        campaign.fixes.assert_resolved();
        outcomes
    });
    let mut score = Score::default();
    for (mutation, outcome) in join_all(lanes).await.into_iter().flatten() {
        score.add(mutation, outcome);
    }
    println!("{}", score.summary());
    if std::env::var_os("UPDATE_DOCS").is_some() && std::env::var_os("VDO_SEEDS").is_some() {
        score.write();
        return;
    }
    let new = score.unexpected(&known);
    assert!(new.is_empty(), "docs/diagnosis-score.md does not list these:\n{}", new.join("\n"));
}
