//! Runs the test of one volume, and always deletes its objects.

use std::time::Duration;

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{StorageClass, VolumeAttachment},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams, Preconditions},
};
use tokio::time::{Instant, sleep};

use super::{
    cleanup::Cleanup,
    evidence,
    objects::TestObjects,
    observation::{Judgement, Observation, attachment_name, handle},
    ownership,
    report::{Step, StepReport, StepResult, TestReport},
    targets::Target,
};
use crate::{cluster::Cluster, critical, progress::ProgressStep, screen::Screen};

/// How often vdoctl looks at the objects.
const PACE: Duration = Duration::from_millis(250);

pub(super) struct VolumeTest<'a> {
    cluster: &'a Cluster,
    target: &'a Target,
    objects: TestObjects,
    image: &'a str,
    /// The timeout of each step.
    timeout: Duration,
    classes: Api<StorageClass>,
    claims: Api<PersistentVolumeClaim>,
    pods: Api<Pod>,
    volumes: Api<PersistentVolume>,
    attachments: Api<VolumeAttachment>,
    progress: ProgressStep<'a>,
    /// The volume of the claim, as soon as it is bound.
    volume: Option<PersistentVolume>,
}

impl<'a> VolumeTest<'a> {
    pub(super) fn new(
        cluster: &'a Cluster,
        target: &'a Target,
        objects: TestObjects,
        image: &'a str,
        timeout: Duration,
        screen: &'a Screen,
    ) -> Self {
        let client = || cluster.client.clone();
        let zone = target.zone.name().map(|zone| format!(" in {zone}")).unwrap_or_default();
        let title = format!("Test StorageClass {}{zone}", target.class.name_any());
        Self {
            cluster,
            target,
            objects,
            image,
            timeout,
            classes: Api::all(client()),
            claims: Api::namespaced(client(), &cluster.namespace),
            pods: Api::namespaced(client(), &cluster.namespace),
            volumes: Api::all(client()),
            attachments: Api::all(client()),
            progress: ProgressStep::begin(screen, title),
            volume: None,
        }
    }

    pub(super) async fn run(mut self) -> TestReport {
        let mut report = TestReport::for_target(self.target);
        let mut skipped = None;
        for step in Step::BEFORE_DELETE {
            let began = Instant::now();
            let result = match skipped {
                Some(why) => StepResult::Skipped { why },
                None => Box::pin(self.perform(step)).await,
            };
            skipped = match result {
                StepResult::Passed { .. } => None,
                StepResult::Failed { .. } => Some("not run"),
                StepResult::Skipped { why } => Some(why),
            };
            report.steps.push(StepReport { step, took: began.elapsed(), result });
        }
        report.steps.push(self.delete().await);
        if report.failed() {
            report.findings = self.findings(&report).await;
        }
        self.progress.clear();
        report
    }

    async fn perform(&mut self, step: Step) -> StepResult {
        self.progress.waits(step.name());
        match self.start(step).await {
            Ok(()) => Box::pin(self.wait(step)).await,
            Err(why) => {
                let mut reasons = vec![why];
                reasons.extend(evidence::explained(&reasons[0], self.image));
                StepResult::Failed { reasons }
            }
        }
    }

    /// Makes the change of a step. No signal interrupts a request: vdoctl must know what it made.
    async fn start(&self, step: Step) -> Result<(), String> {
        let new = PostParams::default();
        let TestObjects { class, claim, writer, reader, .. } = &self.objects;
        match step {
            Step::Create => {
                self.classes.create(&new, class).await.map_err(|error| refused(&error))?;
                let stored =
                    self.claims.create(&new, claim).await.map_err(|error| refused(&error))?;
                // Before a pod uses it: nothing writes to a volume that somebody else made.
                if let Some(why) = ownership::changed(claim, &stored) {
                    return Err(why);
                }
                self.pods.create(&new, writer).await.map_err(|error| refused(&error))?;
            }
            Step::Detach => {
                let name = writer.name_any();
                let stored = self.pods.get_opt(&name).await.map_err(|error| refused(&error))?;
                let Some(stored) = stored else { return Ok(()) };
                let uid = Preconditions { uid: stored.uid(), ..Preconditions::default() };
                let exactly = DeleteParams { preconditions: Some(uid), ..DeleteParams::default() };
                self.pods.delete(&name, &exactly).await.map_err(|error| refused(&error))?;
            }
            Step::Move => {
                self.pods.create(&new, reader).await.map_err(|error| refused(&error))?;
            }
            Step::Attach | Step::Mount | Step::Write | Step::Read | Step::Delete => {}
        }
        Ok(())
    }

    /// The node and the pod of a step.
    fn place(&self, step: Step) -> (&str, &Pod) {
        match step {
            Step::Move | Step::Read => (&self.target.second, &self.objects.reader),
            _ => (&self.target.first, &self.objects.writer),
        }
    }

    async fn wait(&mut self, step: Step) -> StepResult {
        let began = Instant::now();
        let mut last = Observation::default();
        loop {
            // A server that does not respond for a moment is no result.
            let mut unread = Vec::new();
            match self.observe(step).await {
                Ok(seen) => {
                    match seen.judge(step, self.place(step).0) {
                        Judgement::Done(detail) => {
                            return StepResult::Passed { detail: self.detail(step, detail) };
                        }
                        Judgement::Failed(why) => return self.failed(&why, &seen).await,
                        Judgement::Waits(what) => {
                            self.progress.waits(&format!("{}: {what}", step.name()));
                        }
                    }
                    last = seen;
                }
                Err(error) => unread.push(refused(&error)),
            }
            if critical::is_stopped() {
                return StepResult::Skipped { why: "interrupted" };
            }
            if began.elapsed() > self.timeout {
                return self.timed_out(unread, &last).await;
            }
            tokio::select! { () = sleep(PACE) => {}, () = critical::stopped() => {} }
        }
    }

    async fn failed(&self, why: &str, seen: &Observation) -> StepResult {
        let mut reasons = vec![evidence::clean(why)];
        reasons.extend(evidence::explained(why, self.image));
        reasons.extend(Box::pin(evidence::reasons(self.cluster, seen)).await);
        StepResult::Failed { reasons }
    }

    async fn timed_out(&self, unread: Vec<String>, seen: &Observation) -> StepResult {
        let mut reasons = unread;
        reasons.extend(Box::pin(evidence::reasons(self.cluster, seen)).await);
        let meanings = reasons.iter().filter_map(|reason| evidence::explained(reason, self.image));
        let meanings: Vec<String> = meanings.collect();
        reasons.extend(meanings);
        if reasons.is_empty() {
            reasons.push(
                "Kubernetes reports no reason. The log of the driver can have one.".to_owned(),
            );
        }
        let seconds = self.timeout.as_secs();
        reasons.insert(0, format!("not done within {seconds} s; --timeout sets this time"));
        StepResult::Failed { reasons }
    }

    async fn observe(&mut self, step: Step) -> Result<Observation, kube::Error> {
        let pod = self.pods.get_opt(&self.place(step).1.name_any()).await?;
        let claim = match step {
            Step::Create => self.claims.get_opt(&self.objects.claim.name_any()).await?,
            _ => None,
        };
        let bound = claim.as_ref().and_then(|claim| claim.spec.as_ref()?.volume_name.clone());
        if let (None, Some(name)) = (&self.volume, bound) {
            self.volume = self.volumes.get_opt(&name).await?;
        }
        let volume = self.volume.clone();
        let mut attachments = Vec::new();
        for node in self.target.nodes() {
            let Some(handle) = volume.as_ref().and_then(handle) else { continue };
            attachments.extend(self.attachments.get_opt(&attachment_name(handle, &node)).await?);
        }
        Ok(Observation { claim, volume, attachments, pod })
    }

    fn detail(&self, step: Step, detail: String) -> String {
        match step {
            Step::Move if !self.target.moves() => {
                format!("{detail} again: no other node here can run the test")
            }
            _ => detail,
        }
    }

    /// The last step: it takes place whatever happened before.
    async fn delete(&mut self) -> StepReport {
        let began = Instant::now();
        let Self { cluster, objects, timeout, progress, .. } = self;
        let cleanup = Cleanup { cluster, id: &objects.id, timeout: *timeout };
        let left = cleanup.run(|what| progress.waits(&format!("delete: {what}"))).await;
        let result = if left.is_empty() {
            StepResult::Passed { detail: String::new() }
        } else {
            StepResult::Failed { reasons: left }
        };
        StepReport { step: Step::Delete, took: began.elapsed(), result }
    }

    /// The operator's findings about the objects of a failed test. Without a VDOConfig there are none.
    async fn findings(&self, report: &TestReport) -> Vec<super::report::RelatedFinding> {
        let config = self.cluster.found().await.ok().and_then(|found| found.config);
        let findings = config.and_then(|config| config.status).unwrap_or_default().findings;
        let mut objects = vec![("StorageClass", self.target.class.name_any())];
        objects.extend(self.target.nodes().into_iter().map(|node| ("Node", node)));
        let claim = format!("{}/{}", self.cluster.namespace, self.objects.claim.name_any());
        objects.push(("PersistentVolumeClaim", claim));
        objects.extend(self.volume.iter().map(|volume| ("PersistentVolume", volume.name_any())));
        let reasons = report.steps.iter().flat_map(|step| match &step.result {
            StepResult::Failed { reasons } => reasons.clone(),
            _ => Vec::new(),
        });
        evidence::related(&findings, &objects, &reasons.collect::<Vec<_>>())
    }
}

/// The answer of the API server.
fn refused(error: &kube::Error) -> String {
    evidence::clean(&runtime::error_chain::error_chain(error))
}
