//! Compares the meanings of messages with the facts.
//!
//! The words of a message only propose a meaning, with the findings that can be behind it. The facts confirm or refute
//! each of these findings, or leave it open:
//!
//! ```text
//!   message ──► messages::MESSAGES ──► findings ──► judge ──► confirmed   the text shows the meaning
//!                  next meaning ◄──────────────────────────── refuted     nobody sees this meaning
//!                                                             open        "not confirmed", and how to find out
//! ```

use std::{
    cell::{OnceCell, RefCell},
    collections::{HashMap, HashSet},
    net::IpAddr,
    rc::Rc,
};

use api::finding::{Definition, quoted};

use super::prelude::*;
use crate::{
    check::{examine_node, examine_volume},
    facts::{InstalledDriver, Workload},
    index::VmRef,
    messages::{Matcher, Message},
};

/// The judgement of the facts on a finding that can be behind a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Judgement {
    Refuted,
    /// The facts do not show it, or VDO has no facts about it.
    Open,
    Confirmed,
}

/// The objects that a message is about.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct About<'a> {
    pub(crate) node: Option<&'a str>,
    /// By handle.
    pub(crate) volume: Option<&'a str>,
    /// The StorageClass of a claim.
    pub(crate) class: Option<&'a str>,
    /// By the name of its VsphereCloudConfig.
    pub(crate) vcenter: Option<&'a str>,
    /// The part of a driver that wrote the message.
    pub(crate) writer: Option<(&'a InstalledDriver, &'a Workload)>,
}

/// The meaning of a message, as far as the facts do not refute it.
#[derive(Clone, Debug)]
pub(crate) struct Meaning<'l> {
    pub(crate) line: &'l str,
    message: &'static Message,
    is_confirmed: bool,
    /// The findings that can be behind it; the confirmed ones come first.
    pub(crate) causes: Vec<&'static Definition>,
    /// A step that shows whether it is the cause; empty if it is confirmed.
    pub(crate) question: String,
}

impl Meaning<'_> {
    /// The meaning, to be added to the message.
    pub(crate) fn text(&self) -> String {
        let Definition { code, title, .. } = self.causes[0];
        // If the facts refute the likeliest cause, the sentence about it is wrong too.
        match (self.is_confirmed, self.likeliest().is_some()) {
            (true, true) => format!("; {}", self.message.meaning),
            (true, false) => format!("; cause: {code}, {title}"),
            (false, true) => {
                format!("; possible meaning, not confirmed: {}", self.message.meaning)
            }
            (false, false) => format!("; possible cause, not confirmed: {code}, {title}"),
        }
    }

    /// The finding that is usually behind the message, unless the facts refute it.
    pub(crate) fn likeliest(&self) -> Option<&'static Definition> {
        let likeliest = self.message.findings[0];
        self.causes.contains(&likeliest).then_some(likeliest)
    }

    pub(crate) fn codes(&self) -> impl Iterator<Item = &'static str> {
        self.causes.iter().map(|definition| definition.code)
    }
}

/// The text of a meaning and the step that shows whether it is right; both empty without a meaning.
pub(crate) fn texts(meaning: Option<&Meaning<'_>>) -> [String; 2] {
    meaning.map(|meaning| [meaning.text(), meaning.question.clone()]).unwrap_or_default()
}

/// The meanings of messages. Keeps the judgements: thousands of claims can have the same message.
pub(crate) struct Meanings<'a> {
    view: FactsView<'a>,
    /// Built for the first line: mostly there is none.
    matcher: OnceCell<Matcher>,
    /// Results of the checks of the cluster, by finding.
    results: RefCell<HashMap<&'static str, Rc<Results>>>,
    /// Judgements on a node, or on all nodes together, by finding.
    nodes: RefCell<HashMap<(&'static str, Option<String>), Judgement>>,
}

/// The objects of a finding in the results of a check.
#[derive(Debug, Default)]
struct Results {
    is_found: bool,
    vcenters: Named,
    volumes: Named,
    classes: Named,
    /// Whether the absence of the finding proves that there is no such fault.
    is_proof: bool,
}

/// The names of the objects of one kind; a finding can also name none.
#[derive(Debug, Default)]
struct Named {
    names: HashSet<String>,
    is_any: bool,
}

impl Named {
    fn add<'n>(&mut self, names: impl IntoIterator<Item = &'n str>) {
        let mut names = names.into_iter().peekable();
        self.is_any |= names.peek().is_none();
        self.names.extend(names.map(str::to_owned));
    }

    fn fits(&self, own: Option<&str>) -> bool {
        own.is_none_or(|own| self.is_any || self.names.contains(own))
    }
}

/// Findings that the facts rule out if the check does not report them. All others can hold although VDO does not see
/// them, for example because the driver has another route to vCenter, or another account.
const PROVEN: &[&Definition] = &[
    codes::DISK_UUID_OFF,
    codes::DISK_UUID_WAITS,
    codes::HARDWARE_TOO_OLD,
    codes::HOST_TOO_OLD,
    codes::SCSI_SLOTS,
    codes::SCSI_KIND,
    codes::VM_SNAPSHOTS,
    codes::VM_AMBIGUOUS,
    codes::NODE_HOLDS_VOLUMES,
    codes::VOLUME_NOT_IN_CNS,
    codes::VOLUME_UNREACHABLE,
    codes::CLUSTER_ID_TWICE,
    codes::CLASS_DATASTORE_UNKNOWN,
    codes::NO_SHARED_DATASTORE,
    codes::ZONE_WITHOUT_DATASTORE,
    codes::HOST_UNUSABLE,
    codes::CLASS_POLICY_FITS_NOTHING,
];

/// Findings about the message itself: a program reports what it could not read, start or use.
const EVIDENT: &[&Definition] = &[
    codes::IMAGE_MOVED,
    codes::IMAGE_NOT_PULLED,
    codes::POD_CRASHES,
    codes::CONFIG_ESCAPES,
    codes::CPI_CONFIG_SHAPE,
    codes::PORT_IN_USE,
    codes::CRD_MISSING,
];

/// Checks that themselves ask for the meaning of messages.
const READERS: [&str; 5] = [
    "drivers/images",
    "drivers/crashes",
    "drivers/crash_logs",
    "storage/claims",
    "storage/attachments",
];

/// The parts of the facts that a meaning depends on: all of them.
pub(crate) const PARTS: &[Part] = &[Part::Nodes, Part::Vms, Part::Volumes, Part::Pods];

impl<'a> Meanings<'a> {
    pub(crate) fn new(view: &FactsView<'a>) -> Self {
        Self {
            view: *view,
            matcher: OnceCell::new(),
            results: RefCell::default(),
            nodes: RefCell::default(),
        }
    }

    /// The first meaning of a line that the facts do not refute.
    pub(crate) fn explain<'l>(&self, line: &'l str, about: &About<'_>) -> Option<Meaning<'l>> {
        let matcher = self.matcher.get_or_init(Matcher::new);
        matcher.find(line).find_map(|message| self.compare(message, line, about))
    }

    /// The meaning of the newest line that has one.
    pub(crate) fn explain_last<'l>(
        &self,
        lines: &'l [String],
        about: &About<'_>,
    ) -> Option<Meaning<'l>> {
        lines.iter().rev().find_map(|line| self.explain(line, about))
    }

    fn compare<'l>(
        &self,
        message: &'static Message,
        line: &'l str,
        about: &About<'_>,
    ) -> Option<Meaning<'l>> {
        let likeliest = message.findings[0];
        let about = &About { vcenter: about.vcenter.or_else(|| self.vcenter(line)), ..*about };
        let judged = message.findings.iter().map(|one| {
            let is_evident = *one == likeliest && EVIDENT.contains(one);
            let judgement =
                if is_evident { Judgement::Confirmed } else { self.judge(one, line, about) };
            (*one, judgement)
        });
        let judged: Vec<_> = judged.collect();
        let with = |wanted: Judgement| {
            let those = judged.iter().filter(move |(_, judgement)| *judgement == wanted);
            those.map(|(definition, _)| *definition)
        };
        let is_confirmed = with(Judgement::Confirmed).next().is_some();
        let causes: Vec<_> = with(Judgement::Confirmed).chain(with(Judgement::Open)).collect();
        let first = *causes.first()?;
        let question = if is_confirmed { String::new() } else { self.question(first, about) };
        Some(Meaning { line, message, is_confirmed, causes, question })
    }

    /// Judges a finding that can be behind a line.
    fn judge(&self, definition: &'static Definition, line: &str, about: &About<'_>) -> Judgement {
        if is_about_connection(definition) && self.names_another_server(line) {
            return Judgement::Refuted;
        }
        match definition.code {
            code if code == codes::DETACH_STUCK.code => {
                self.by_check(codes::VOLUME_NOT_IN_CNS, about)
            }
            code if code == codes::DISK_HELD_ELSEWHERE.code => self.held_elsewhere(about),
            code if code == codes::FILE_SERVICE_MISSING.code => self.file_service(),
            _ => self.by_check(definition, about),
        }
    }

    /// Runs the check that reports the finding.
    fn by_check(&self, definition: &'static Definition, about: &About<'_>) -> Judgement {
        if let Some(results) = self.results.borrow().get(definition.code) {
            return results.judge(about);
        }
        let gives =
            |check: &&&Check| check.gives.contains(&definition) && !READERS.contains(&check.name);
        let Some(check) = super::all().iter().find(gives) else { return Judgement::Open };
        match check.run {
            CheckScope::Cluster(_, run) => {
                let mut sink = Sink::default();
                run(&self.view, &mut sink);
                let results = Rc::new(self.results_of(&sink, definition));
                self.results.borrow_mut().insert(definition.code, Rc::clone(&results));
                results.judge(about)
            }
            CheckScope::Volume(_) => {
                let storage = &self.view.facts.storage;
                let volumes = storage.volumes.get().filter(|_| storage.cns.get().is_some());
                let volume = volumes.zip(about.volume).and_then(|(all, handle)| all.get(handle));
                let volume = volume.filter(|volume| storage.was_asked_for(volume));
                volume.map_or(Judgement::Open, |volume| {
                    let mut sink = Sink::default();
                    examine_volume(&self.view, volume, &[check], &mut sink);
                    self.results_of(&sink, definition).judge(&About::default())
                })
            }
            CheckScope::Node(_) | CheckScope::NodeVm(_) => self.on_nodes(check, definition, about),
        }
    }

    /// A message that names no node can be about any of them.
    fn on_nodes(
        &self,
        check: &'static Check,
        definition: &'static Definition,
        about: &About<'_>,
    ) -> Judgement {
        let key = (definition.code, about.node.map(str::to_owned));
        if let Some(known) = self.nodes.borrow().get(&key) {
            return *known;
        }
        let judgement = match about.node {
            Some(node) => self.on_node(check, definition, self.view.node(node)),
            None if self.view.facts.cluster.nodes.get().is_none() => Judgement::Open,
            None => {
                let all = self.view.nodes();
                let all = all.map(|node| self.on_node(check, definition, Some(node)));
                all.max().unwrap_or(Judgement::Open)
            }
        };
        self.nodes.borrow_mut().insert(key, judgement);
        judgement
    }

    fn on_node(
        &self,
        check: &'static Check,
        definition: &'static Definition,
        node: Option<&Node>,
    ) -> Judgement {
        let Some(node) = node else { return Judgement::Open };
        if check.needs_vm() && self.view.only_vm(node).is_none() {
            return Judgement::Open;
        }
        let mut sink = Sink::default();
        examine_node(&self.view, node, &[check], &mut sink);
        self.results_of(&sink, definition).judge(&About::default())
    }

    fn results_of(&self, sink: &Sink, definition: &Definition) -> Results {
        let mut results = Results::default();
        let severity = |hit: &Hit| hit.severity.unwrap_or(hit.definition.severity);
        let those = sink.hits.iter().filter(|hit| hit.definition.code == definition.code);
        for hit in those.filter(|hit| severity(hit) > Severity::Info) {
            let of = |kind| {
                let those = hit.anchors.iter().filter(move |(anchor, _)| *anchor == kind);
                those.map(|(_, name)| name.as_str())
            };
            results.is_found = true;
            results.vcenters.add(of(Anchor::Vcenter));
            results.volumes.add(of(Anchor::Volume));
            let class = Some(&hit.subject).filter(|subject| subject.kind == "StorageClass");
            results.classes.add(class.map(|subject| subject.name.as_str()));
        }
        let unknown = codes::CHECK_INCOMPLETE.code;
        let is_complete = sink.hits.iter().all(|hit| hit.definition.code != unknown);
        // Without a desired state, the checks of a driver do not run.
        let wanted = &self.view.facts.wanted;
        let is_run = wanted.storage.is_some() && wanted.read.get().is_some();
        // After a grace period, the check can report it.
        let is_final = sink.recheck_at.is_none();
        let is_known = is_complete && is_run && is_final && !sink.is_open;
        results.is_proof = PROVEN.contains(&definition) && is_known;
        results
    }

    /// The vCenter whose address a line names, by the name of its VsphereCloudConfig.
    pub(crate) fn vcenter(&self, line: &str) -> Option<&'a str> {
        let named = server(line)?;
        let mut vcenters = self.view.facts.vcenters.values();
        let found = vcenters.find(|vcenter| host(&vcenter.address).eq_ignore_ascii_case(named));
        found.map(|vcenter| vcenter.name.as_str())
    }

    /// Whether a line names a server that is no vCenter. A driver can have another name for a vCenter than VDO: an address,
    /// or a name where VDO has the address.
    fn names_another_server(&self, line: &str) -> bool {
        let Some(server) = server(line) else { return false };
        let addresses = || self.view.facts.vcenters.values().map(|vcenter| host(&vcenter.address));
        let is_address = |name: &str| name.parse::<IpAddr>().is_ok();
        let is_known = addresses().len() > 0 && addresses().all(|name| !name.is_empty());
        let is_alike = addresses().any(|name| is_address(name) != is_address(server));
        is_known && self.vcenter(line).is_none() && !asks_vcenter(line) && !is_alike
    }

    /// Whether another VM than the node's has the disk of a volume.
    fn held_elsewhere(&self, about: &About<'_>) -> Judgement {
        let Some(volume) = about.volume else { return Judgement::Open };
        let node = about.node.and_then(|node| self.view.node(node));
        let own = node.and_then(|node| self.view.only_vm(node));
        let is_other = |at: &VmRef| {
            own.as_ref().is_none_or(|own| own.id != at.vm || own.vcenter.name != at.vcenter)
        };
        let mut vcenters = self.view.facts.vcenters.values();
        if self.view.index.vms_with_volume(volume).iter().any(is_other) {
            Judgement::Confirmed
        } else if vcenters.all(|vcenter| vcenter.inventory.get().is_some()) {
            Judgement::Refuted
        } else {
            Judgement::Open
        }
    }

    fn file_service(&self) -> Judgement {
        let mut all = self.view.facts.vcenters.values().map(|vcenter| {
            let clusters = vcenter.inventory.get().and_then(|all| all.file_service.get());
            clusters.map(|clusters| !clusters.is_empty())
        });
        match all.try_fold(false, |any, one| one.map(|one| any | one)) {
            Some(true) => Judgement::Refuted,
            Some(false) => Judgement::Confirmed,
            None => Judgement::Open,
        }
    }

    /// The step that shows whether an open finding is the cause.
    pub(crate) fn question(&self, definition: &Definition, about: &About<'_>) -> String {
        let code = definition.code;
        if let Some((driver, workload)) = about.writer {
            let namespace = quoted(&driver.namespace);
            if code == codes::NAME_UNRESOLVED.code {
                return format!(
                    "kubectl get --namespace {namespace} {} -o jsonpath='{{.spec.template.spec.dnsPolicy}}'   shows whose \
                     DNS its pods use: Default is that of their node, ClusterFirst that of the cluster",
                    quoted(&workload.argument())
                );
            }
            if is_about_connection(definition) {
                return format!(
                    "kubectl get networkpolicies,pods --namespace {namespace} --output wide   shows the network policies \
                     that can keep the driver from vCenter, and the nodes of its pods"
                );
            }
        }
        let node = about.node.and_then(|node| self.view.node(node));
        let vm = node.and_then(|node| self.view.only_vm(node));
        if code.starts_with("VDO-12")
            && let Some(found) = vm
        {
            let path = quoted(&found.vm.path);
            return format!(
                "govc vm.info -e {path}   shows the state and the settings of the VM; compare them with vdoctl explain {code}"
            );
        }
        format!("vdoctl explain {code}   explains how to find out whether it is the cause")
    }
}

impl Results {
    fn judge(&self, about: &About<'_>) -> Judgement {
        let is_about_it = self.vcenters.fits(about.vcenter)
            && self.volumes.fits(about.volume)
            && self.classes.fits(about.class);
        if self.is_found && is_about_it {
            Judgement::Confirmed
        } else if self.is_proof {
            Judgement::Refuted
        } else {
            Judgement::Open
        }
    }
}

/// Whether a finding is about the connection to a vCenter.
fn is_about_connection(definition: &Definition) -> bool {
    let those = [
        codes::NAME_UNRESOLVED,
        codes::VCENTER_UNREACHABLE,
        codes::CERTIFICATE_DISTRUSTED,
        codes::SERVICE_DOWN,
        codes::SESSIONS_MANY,
    ];
    those.iter().any(|one| **one == *definition)
}

/// The paths of vCenter's interfaces.
const INTERFACES: [&str; 7] =
    ["/sdk", "/pbm", "/vsanHealth", "/sms", "/rest/", "/api/", "/lookupservice/"];

/// Whether the message of a failed request has the URL of a vCenter, whatever the name of its server.
fn asks_vcenter(line: &str) -> bool {
    let path = line.split_once("://").and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..]));
    path.is_some_and(|path| INTERFACES.iter().any(|interface| path.starts_with(interface)))
}

/// The name of the server in the message of a failed request: `Post "https://NAME/sdk"`, `lookup NAME: no such host`. A
/// request through a proxy can also contain the name of the proxy.
fn server(line: &str) -> Option<&str> {
    let after = |mark: &str| line.split_once(mark).map(|(_, rest)| rest);
    let rest = after("://").or_else(|| after("lookup ")).or_else(|| after("the name of "))?;
    let end = rest.find([' ', '"', '\'', '/', ',', ')']).unwrap_or(rest.len());
    Some(host(&rest[..end])).filter(|name| !name.is_empty())
}

/// A name or address without its port.
fn host(address: &str) -> &str {
    let address = address.trim_end_matches(':');
    if let Some((inside, _)) = address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return inside;
    }
    match address.split_once(':') {
        Some((name, port)) if !port.contains(':') => name,
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{index::Index, sample::handle};

    /// The text about a message, its question and its causes.
    fn explained(
        facts: &Facts,
        line: &str,
        about: &About<'_>,
    ) -> Option<(String, String, Vec<&'static str>)> {
        let index = Index::new(facts);
        let meanings = Meanings::new(&FactsView { facts, index: &index });
        let meaning = meanings.explain(line, about)?;
        Some((meaning.text(), meaning.question.clone(), meaning.codes().collect()))
    }

    const SCSI: &str = "CNS: Failed to attach disk because missing SCSI controller";
    const ON_NODE: About<'_> =
        About { node: Some("worker-1"), volume: None, class: None, vcenter: None, writer: None };

    #[test]
    fn a_meaning_that_the_facts_confirm_is_shown() {
        let mut facts = healthy();
        facts.vm("worker-1").hardware = 9;
        let line = "rpc error: DeviceUnsupportedForVmVersion";
        let (text, question, causes) = explained(&facts, line, &ON_NODE).unwrap();
        assert_eq!(text, "; the VM's hardware version is too old for this disk");
        assert_eq!((question.as_str(), &causes[..]), ("", &["VDO-1204"][..]));
        let other = About { node: Some("worker-2"), ..ON_NODE };
        assert_eq!(explained(&facts, line, &other), None, "it is the version of another VM");
        assert!(explained(&facts, line, &About::default()).is_some(), "it can be any node");
    }

    #[test]
    fn the_next_meaning_follows_a_refuted_one() {
        let mut facts = healthy();
        let line = "DeviceUnsupportedForVmVersion: vim.fault.InvalidState";
        let volume = handle(1);
        let about = About { volume: Some(&volume), ..ON_NODE };
        let zombie = crate::facts::Vm { volumes: vec![handle(1)], ..Default::default() };
        facts.inventory().vms.insert("vm-zombie".into(), zombie);
        let (text, _, causes) = explained(&facts, line, &about).unwrap();
        assert_eq!(text, "; the disk is still attached to another VM");
        assert_eq!(causes, ["VDO-1518"]);
        assert_eq!(
            explained(&healthy(), SCSI, &ON_NODE),
            None,
            "the VM has a controller with slots"
        );
    }

    #[test]
    fn an_open_meaning_asks_the_question_that_answers_it() {
        let mut facts = healthy();
        facts.vcenter().inventory = Known::unknown("vcenter-a does not answer");
        let (text, question, _) = explained(&facts, SCSI, &ON_NODE).unwrap();
        assert!(text.starts_with("; possible meaning, not confirmed: all slots"), "{text}");
        assert!(question.starts_with("vdoctl explain VDO-1205 "), "{question}");
        let facts = healthy();
        let line = "failed to get shared datastores in kubernetes cluster";
        let (text, question, causes) = explained(&facts, line, &About::default()).unwrap();
        assert!(text.starts_with("; possible cause, not confirmed: VDO-1402, "), "{text}");
        assert!(question.starts_with("vdoctl explain VDO-1402 "), "{question}");
        assert_eq!(causes, ["VDO-1402"], "VDO sees shared datastores");
    }

    #[test]
    fn the_server_in_a_message_must_be_a_vcenter() {
        let facts = healthy();
        let about = About::default();
        let refused = |server: &str| {
            let line = format!("Get \"https://{server}/v2/\": dial tcp: connection refused");
            explained(&facts, &line, &about).is_some()
        };
        assert!(refused("vc-a.example.com") && refused("VC-A.example.com:443"));
        assert!(!refused("registry.example.com"));
        // It can be the address of a vCenter.
        assert!(refused("10.0.0.9"));
        for line in [
            r#"Post "https://vcenter/sdk": dial tcp: connection refused"#,
            r#"Post "https://vc-a.example.com/sdk": proxyconnect tcp: dial tcp: lookup proxy: no such host"#,
            r#"failed to lookup VM x: Post "https://vc-a.example.com/sdk": i/o timeout"#,
        ] {
            assert!(explained(&facts, line, &about).is_some(), "{line}");
        }
        assert!(explained(&facts, "dial tcp: connection refused", &about).is_some(), "no name");
        for (line, name) in [
            ("lookup vc on 10.96.0.10:53: no such host", Some("vc")),
            ("lookup vc: no such host", Some("vc")),
            ("https://[fd00::1]:443/sdk", Some("fd00::1")),
            ("the name of vc, cannot be resolved", Some("vc")),
            ("connection refused", None),
        ] {
            assert_eq!(server(line), name, "{line}");
        }
    }

    #[test]
    fn a_check_that_did_not_judge_refutes_nothing() {
        let causes = |facts: &Facts, line: &str| {
            let meaning = explained(facts, line, &ON_NODE);
            meaning.map(|(_, _, causes)| causes).unwrap_or_default()
        };
        let shared = codes::NO_SHARED_DATASTORE.code;
        let line = "no shared datastores found";
        let mut facts = healthy();
        assert!(!causes(&facts, line).contains(&shared), "there is a shared datastore");
        let storage = facts.wanted.storage.as_mut().unwrap();
        storage.assumed = true;
        storage.categories.clear();
        assert!(causes(&facts, line).contains(&shared), "there can be zones");
        facts.wanted.storage.as_mut().unwrap().assumed = false;
        assert!(!causes(&facts, line).contains(&shared), "there are no zones");
        facts.inventory().hosts.values_mut().for_each(|host| host.connected = false);
        assert!(causes(&facts, line).contains(&shared), "no host shows its datastores");
        let mut facts = healthy();
        facts.inventory().hosts.values_mut().for_each(|host| host.version = Version::default());
        assert!(causes(&facts, SCSI).contains(&codes::SCSI_SLOTS.code), "it can have few slots");
    }

    #[test]
    fn a_volume_younger_than_the_answer_of_vcenter_refutes_nothing() {
        let mut facts = healthy();
        let volume = handle(1);
        let about = About { volume: Some(&volume), ..ON_NODE };
        let line = "volumeID \"volume-1\" not found in QueryVolume";
        let causes = |facts: &Facts| explained(facts, line, &about).unwrap().2;
        assert_eq!(causes(&facts), ["VDO-1512"], "vCenter knows the volume");
        let asked = facts.storage.cns_asked;
        facts.storage.volumes.get_mut().unwrap().get_mut(&volume).unwrap().created = asked;
        facts.storage.cns.get_mut().unwrap().remove(&volume);
        assert_eq!(causes(&facts), ["VDO-1515", "VDO-1512"]);
    }

    #[test]
    fn one_check_reports_each_finding_that_can_be_refuted() {
        for definition in PROVEN {
            let gives = |check: &&&Check| check.gives.contains(definition);
            assert_eq!(crate::checks::all().iter().filter(gives).count(), 1, "{}", definition.code);
        }
        for name in READERS {
            assert!(crate::checks::all().iter().any(|check| check.name == name), "{name}");
        }
    }
}
