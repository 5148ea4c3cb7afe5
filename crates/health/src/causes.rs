//! Causes and consequences among findings.
//!
//! Only causes raise alarms. VDO still shows a consequence, marked with the code of its cause, because an
//! admin may notice it first.

use std::collections::{HashMap, HashSet};

use api::{
    Severity,
    finding::{Definition, codes},
};

use crate::check::{Anchor, Hit};

#[derive(Debug)]
pub struct Cause {
    pub effect: &'static Definition,
    pub cause: &'static Definition,
    /// Cause and effect must share an anchor of this kind; `None` means any pair matches.
    pub shares: Option<Anchor>,
}

const fn follows(
    effect: &'static Definition,
    cause: &'static Definition,
    shares: Option<Anchor>,
) -> Cause {
    Cause { effect, cause, shares }
}

const NODE: Option<Anchor> = Some(Anchor::Node);
const VCENTER: Option<Anchor> = Some(Anchor::Vcenter);
const DRIVER: Option<Anchor> = Some(Anchor::Driver);
const VOLUME: Option<Anchor> = Some(Anchor::Volume);
const DATASTORE: Option<Anchor> = Some(Anchor::Datastore);
const HOST: Option<Anchor> = Some(Anchor::Host);

/// For each effect, likelier causes come first.
pub const CAUSES: &[Cause] = &[
    // An unreachable vCenter.
    follows(codes::CHECK_INCOMPLETE, codes::VCENTER_UNREACHABLE, VCENTER),
    follows(codes::CHECK_INCOMPLETE, codes::CERTIFICATE_DISTRUSTED, VCENTER),
    follows(codes::CHECK_INCOMPLETE, codes::CREDENTIALS_MISSING, VCENTER),
    follows(codes::CHECK_INCOMPLETE, codes::CREDENTIALS_UNUSABLE, VCENTER),
    follows(codes::CHECK_INCOMPLETE, codes::LOGIN_REFUSED, VCENTER),
    follows(codes::CHECK_INCOMPLETE, codes::ACCOUNT_LOCKED, VCENTER),
    follows(codes::CHECK_INCOMPLETE, codes::SERVICE_DOWN, VCENTER),
    follows(codes::CHECK_INCOMPLETE, codes::PERMISSIONS_MISSING, None),
    follows(codes::ACCOUNT_LOCKED, codes::LOGIN_REFUSED, VCENTER),
    follows(codes::CERTIFICATE_DISTRUSTED, codes::CERTIFICATE_EXPIRING, VCENTER),
    // The cloud provider could not initialise a node.
    follows(codes::NODE_UNINITIALIZED, codes::VM_NOT_FOUND, NODE),
    follows(codes::NODE_UNINITIALIZED, codes::VM_AMBIGUOUS, NODE),
    follows(codes::NODE_UNINITIALIZED, codes::VM_OUT_OF_SIGHT, NODE),
    follows(codes::NODE_UNINITIALIZED, codes::GUEST_NAME_DIFFERS, NODE),
    follows(codes::NODE_UNINITIALIZED, codes::GUEST_NAME_SHARED, NODE),
    follows(codes::NODE_UNINITIALIZED, codes::TOOLS_NOT_RUNNING, NODE),
    follows(codes::NODE_UNINITIALIZED, codes::ADDRESS_WRONG, NODE),
    follows(codes::NODE_UNINITIALIZED, codes::ADDRESS_NONE, NODE),
    follows(codes::NODE_UNINITIALIZED, codes::TAG_MISSING, NODE),
    follows(codes::NODE_UNINITIALIZED, codes::CATEGORY_MISSING, None),
    follows(codes::NODE_UNINITIALIZED, codes::PROVIDER_ID_FOREIGN, NODE),
    follows(codes::NODE_UNINITIALIZED, codes::NAME_UNRESOLVED, None),
    follows(codes::NODE_UNINITIALIZED, codes::CPI_CONFIG_SHAPE, None),
    follows(codes::GUEST_NAME_DIFFERS, codes::TOOLS_NOT_RUNNING, NODE),
    follows(codes::ADDRESS_NONE, codes::TOOLS_NOT_RUNNING, NODE),
    follows(codes::ADDRESS_NONE, codes::VM_OFF, NODE),
    follows(codes::TOOLS_NOT_RUNNING, codes::VM_OFF, NODE),
    follows(codes::NODE_DELETION_RISK, codes::VM_OUT_OF_SIGHT, NODE),
    follows(codes::NODE_HOLDS_VOLUMES, codes::VM_OFF, NODE),
    // The storage driver does not serve a node.
    follows(codes::CSI_NODE_MISSING, codes::NODE_FOREIGN, NODE),
    follows(codes::CSI_NODE_MISSING, codes::VM_NOT_FOUND, NODE),
    follows(codes::CSI_NODE_MISSING, codes::VM_AMBIGUOUS, NODE),
    follows(codes::CSI_NODE_MISSING, codes::VM_OUT_OF_SIGHT, NODE),
    follows(codes::CSI_NODE_MISSING, codes::TOPOLOGY_NOT_SET, NODE),
    follows(codes::CSI_NODE_MISSING, codes::POD_CRASHES, NODE),
    follows(codes::CSI_NODE_MISSING, codes::IMAGE_NOT_PULLED, NODE),
    follows(codes::CSI_NODE_MISSING, codes::KUBELET_PATH_WRONG, None),
    follows(codes::CSI_NODE_MISSING, codes::POD_REFUSED, DRIVER),
    follows(codes::CSI_NODE_MISSING, codes::CONFIG_SECRET_MISSING, DRIVER),
    follows(codes::CSI_NODE_MISSING, codes::IMAGE_MOVED, DRIVER),
    follows(codes::TOPOLOGY_NOT_SET, codes::TAG_MISSING, NODE),
    follows(codes::TOPOLOGY_NOT_SET, codes::VM_NOT_FOUND, NODE),
    follows(codes::TOPOLOGY_NOT_SET, codes::VM_OUT_OF_SIGHT, NODE),
    follows(codes::TOPOLOGY_NOT_SET, codes::VM_AMBIGUOUS, NODE),
    follows(codes::TAG_MISSING, codes::CATEGORY_MISSING, Some(Anchor::Category)),
    follows(codes::ZONE_LABELS_DISAGREE, codes::ZONE_MOVED, NODE),
    follows(codes::CSI_NODE_STALE, codes::NODE_FOREIGN, NODE),
    // Drivers.
    follows(codes::CRD_MISSING, codes::CONTROLLER_PENDING, DRIVER),
    follows(codes::LEASE_STALE, codes::CONTROLLER_PENDING, DRIVER),
    follows(codes::LEASE_STALE, codes::IMAGE_MOVED, DRIVER),
    follows(codes::LEASE_STALE, codes::IMAGE_NOT_PULLED, DRIVER),
    follows(codes::LEASE_STALE, codes::POD_CRASHES, DRIVER),
    follows(codes::WEBHOOK_UNANSWERED, codes::IMAGE_MOVED, DRIVER),
    follows(codes::ROLLOUT_INCOMPLETE, codes::CONTROLLER_PENDING, DRIVER),
    follows(codes::ROLLOUT_INCOMPLETE, codes::IMAGE_MOVED, DRIVER),
    follows(codes::ROLLOUT_INCOMPLETE, codes::IMAGE_NOT_PULLED, DRIVER),
    follows(codes::ROLLOUT_INCOMPLETE, codes::POD_CRASHES, DRIVER),
    follows(codes::ROLLOUT_INCOMPLETE, codes::POD_REFUSED, DRIVER),
    follows(codes::ROLLOUT_INCOMPLETE, codes::CONFIG_SECRET_MISSING, DRIVER),
    follows(codes::ROLLOUT_INCOMPLETE, codes::KUBELET_PATH_WRONG, None),
    follows(codes::ROLLOUT_INCOMPLETE, codes::PORT_IN_USE, DRIVER),
    follows(codes::ROLLOUT_INCOMPLETE, codes::VM_OFF, NODE),
    follows(codes::ROLLOUT_INCOMPLETE, codes::HOST_UNUSABLE, NODE),
    follows(codes::POD_CRASHES, codes::CSI_NODE_STALE, DRIVER),
    // Storage.
    follows(codes::VOLUMES_BEYOND_THRESHOLD, codes::CLUSTER_ID_SHARED, None),
    follows(codes::VOLUMES_BEYOND_THRESHOLD, codes::CLUSTER_ID_CHANGED, None),
    follows(codes::VOLUMES_BEYOND_THRESHOLD, codes::VOLUME_NOT_IN_CNS, None),
    follows(codes::VOLUME_NOT_IN_CNS, codes::CLUSTER_ID_SHARED, None),
    follows(codes::VOLUME_NOT_IN_CNS, codes::CLUSTER_ID_CHANGED, None),
    follows(codes::DETACH_STUCK, codes::VOLUME_NOT_IN_CNS, VOLUME),
    follows(codes::ATTACH_FAILS, codes::DISK_UUID_OFF, NODE),
    follows(codes::ATTACH_FAILS, codes::HARDWARE_TOO_OLD, NODE),
    follows(codes::ATTACH_FAILS, codes::HOST_TOO_OLD, NODE),
    follows(codes::ATTACH_FAILS, codes::SCSI_SLOTS, NODE),
    follows(codes::ATTACH_FAILS, codes::VM_SNAPSHOTS, NODE),
    follows(codes::ATTACH_FAILS, codes::DISK_HELD_ELSEWHERE, VOLUME),
    follows(codes::ATTACH_FAILS, codes::VOLUME_DISK_LOST, VOLUME),
    follows(codes::ATTACH_FAILS, codes::VOLUME_NOT_IN_CNS, VOLUME),
    follows(codes::ATTACH_FAILS, codes::VOLUME_UNREACHABLE, VOLUME),
    follows(codes::ATTACH_FAILS, codes::NODE_HOLDS_VOLUMES, VOLUME),
    follows(codes::ATTACH_FAILS, codes::PRIVILEGE_VM, VCENTER),
    follows(codes::ATTACH_FAILS, codes::SERVICE_DOWN, VCENTER),
    follows(codes::ATTACH_FAILS, codes::VCENTER_UNREACHABLE, VCENTER),
    follows(codes::ATTACH_FAILS, codes::LOGIN_REFUSED, VCENTER),
    follows(codes::ATTACH_FAILS, codes::ACCOUNT_LOCKED, VCENTER),
    follows(codes::ATTACH_FAILS, codes::CONTROLLER_PENDING, DRIVER),
    follows(codes::DISK_HELD_ELSEWHERE, codes::NODE_HOLDS_VOLUMES, VOLUME),
    follows(codes::CLAIM_PENDING, codes::NO_SHARED_DATASTORE, None),
    follows(codes::CLAIM_PENDING, codes::PRIVILEGE_DATASTORE, None),
    follows(codes::CLAIM_PENDING, codes::SERVICE_DOWN, None),
    follows(codes::CLASS_DATASTORE_UNREACHABLE, codes::NO_SHARED_DATASTORE, VCENTER),
    follows(codes::DATASTORE_DOWN, codes::HOST_UNUSABLE, HOST),
    follows(codes::NO_SHARED_DATASTORE, codes::DATASTORE_DOWN, VCENTER),
    follows(codes::ZONE_WITHOUT_DATASTORE, codes::DATASTORE_DOWN, VCENTER),
    follows(codes::CLASS_DATASTORE_UNREACHABLE, codes::DATASTORE_DOWN, DATASTORE),
    follows(codes::VOLUME_UNREACHABLE, codes::DATASTORE_DOWN, DATASTORE),
    // Without the privilege to see policies and volumes, vCenter reports none.
    follows(codes::CLASS_POLICY_UNKNOWN, codes::PRIVILEGE_ROOT, VCENTER),
    follows(codes::VOLUME_NOT_IN_CNS, codes::PRIVILEGE_ROOT, None),
];

/// Returns the code of the root cause for each hit. `vcenters` is how many vCenters are configured.
pub(crate) fn root_causes(hits: &[&Hit], vcenters: usize) -> Vec<Option<&'static str>> {
    let present = Present::new(hits, vcenters);
    let direct: Vec<Option<&'static str>> = hits.iter().map(|hit| present.cause(hit)).collect();
    let mut above: HashMap<&str, Option<&'static str>> = HashMap::new();
    for (hit, cause) in hits.iter().zip(&direct) {
        let code = hit.definition.code;
        above.entry(code).and_modify(|known| *known = known.and(*cause)).or_insert(*cause);
    }
    direct.into_iter().map(|cause| cause.map(|code| root(code, &above))).collect()
}

/// Follows the chain while every hit of the cause is itself a consequence.
fn root(code: &'static str, above: &HashMap<&str, Option<&'static str>>) -> &'static str {
    let mut code = code;
    for _ in 0..8 {
        match above.get(code) {
            Some(Some(cause)) if *cause != code => code = cause,
            _ => break,
        }
    }
    code
}

/// The kinds of objects on which a cause and its consequence must agree, if both name one.
const COMPARED: &[Anchor] = &[Anchor::Vcenter, Anchor::Node, Anchor::Vm, Anchor::Volume];
const VCENTERS: &[Anchor] = &[Anchor::Vcenter];

fn names(hit: &Hit, kind: Anchor) -> impl Iterator<Item = &str> {
    let of = hit.anchors.iter().filter(move |(anchor, _)| *anchor == kind);
    of.map(|(_, name)| name.as_str())
}

/// The hits that can be causes. Those of severity Info cannot: they raise no alert, and their consequences would raise
/// none either.
struct Present<'a> {
    codes: HashSet<&'static str>,
    /// The objects of the hits of each possible cause, by kind; `None` for a hit that names no such object.
    objects: HashMap<(&'static str, Anchor), HashSet<Option<&'a str>>>,
    anchored: HashSet<(&'static str, Anchor, &'a str)>,
    rules: HashMap<&'static str, Vec<&'static Cause>>,
    /// How many vCenters are configured.
    vcenters: usize,
}

impl<'a> Present<'a> {
    fn new(hits: &[&'a Hit], vcenters: usize) -> Self {
        let severity = |hit: &Hit| hit.severity.unwrap_or(hit.definition.severity);
        let faults = || hits.iter().filter(move |hit| severity(hit) > Severity::Info);
        let codes: HashSet<&'static str> = faults().map(|hit| hit.definition.code).collect();
        let mut rules: HashMap<&str, Vec<&Cause>> = HashMap::new();
        let mut causes = HashSet::new();
        let effects: HashSet<&str> = hits.iter().map(|hit| hit.definition.code).collect();
        let alive = |cause: &&Cause| {
            effects.contains(cause.effect.code) && codes.contains(cause.cause.code)
        };
        for cause in CAUSES.iter().filter(alive) {
            causes.insert(cause.cause.code);
            rules.entry(cause.effect.code).or_default().push(cause);
        }
        let causing = faults().filter(|hit| causes.contains(hit.definition.code));
        let anchored = causing
            .flat_map(|hit| {
                hit.anchors.iter().map(|(a, name)| (hit.definition.code, *a, name.as_str()))
            })
            .collect();
        causes
            .extend(hits.iter().flat_map(|hit| &hit.because).filter(|code| codes.contains(*code)));
        let mut objects: HashMap<_, HashSet<Option<&'a str>>> = HashMap::new();
        for hit in faults().filter(|hit| causes.contains(hit.definition.code)) {
            for kind in COMPARED.iter().copied() {
                let there = objects.entry((hit.definition.code, kind)).or_default();
                there.extend(names(hit, kind).map(Some));
                if names(hit, kind).next().is_none() {
                    there.insert(None);
                }
            }
        }
        Self { codes, objects, anchored, rules, vcenters }
    }

    /// Whether a finding exists that can be about the objects of this hit.
    fn is_related(&self, hit: &Hit, code: &'static str) -> bool {
        self.codes.contains(code) && self.agrees(hit, code)
    }

    /// Whether a finding can be in the vCenter of a hit that names none: all vCenters have it, or it is in none. The
    /// cluster uses all vCenters.
    fn can_be_in_its_vcenter(&self, hit: &Hit, code: &'static str) -> bool {
        let is_known = names(hit, Anchor::Vcenter).next().is_some();
        let there = self.objects.get(&(code, Anchor::Vcenter));
        is_known
            || hit.subject.kind == "Cluster"
            || there.is_some_and(|there| there.contains(&None) || there.len() >= self.vcenters)
    }

    /// Whether a finding names one of the objects of this hit, for each kind that both name.
    ///
    /// A volume fails to attach because of its own node, or because another node has it. A driver crashes because of any
    /// node.
    fn agrees(&self, hit: &Hit, code: &'static str) -> bool {
        let shares = |kind| {
            let there = self.objects.get(&(code, kind));
            there.is_some_and(|there| names(hit, kind).any(|name| there.contains(&Some(name))))
        };
        let names_none = |kind| {
            let there = self.objects.get(&(code, kind));
            names(hit, kind).next().is_none() || there.is_none_or(|there| there.contains(&None))
        };
        let is_of_volume = names(hit, Anchor::Volume).next().is_some();
        let compared = if is_of_volume && !shares(Anchor::Volume) { COMPARED } else { VCENTERS };
        compared.iter().all(|kind| names_none(*kind) || shares(*kind))
    }

    fn cause(&self, hit: &Hit) -> Option<&'static str> {
        let named = hit.because.iter().find(|code| self.is_related(hit, code)).copied();
        if named.is_some() {
            return named;
        }
        let rules = self.rules.get(hit.definition.code)?;
        let holds = |cause: &&&Cause| match cause.shares {
            None => {
                let code = cause.cause.code;
                self.is_related(hit, code) && self.can_be_in_its_vcenter(hit, code)
            }
            Some(anchor) => {
                let mut own = names(hit, anchor);
                own.any(|name| self.anchored.contains(&(cause.cause.code, anchor, name)))
                    && self.agrees(hit, cause.cause.code)
            }
        };
        rules.iter().find(holds).map(|cause| cause.cause.code)
    }
}

#[cfg(test)]
mod tests {
    use api::finding::Subject;

    use super::*;

    #[test]
    fn nothing_follows_from_itself_not_even_round_about() {
        for start in CAUSES {
            let mut seen = HashSet::new();
            let mut open = vec![start.effect.code];
            while let Some(code) = open.pop() {
                for cause in CAUSES.iter().filter(|c| c.effect.code == code) {
                    assert_ne!(cause.cause.code, start.effect.code, "{code} closes a circle");
                    if seen.insert(cause.cause.code) {
                        open.push(cause.cause.code);
                    }
                }
            }
        }
    }

    fn hit(definition: &'static Definition, node: &str) -> Hit {
        Hit::new(definition, Subject::kubernetes("Node", None, node)).node(node)
    }

    #[test]
    fn a_cause_explains_what_happens_on_its_own_node_only() {
        let off = hit(codes::VM_NOT_FOUND, "a");
        let here = hit(codes::NODE_UNINITIALIZED, "a");
        let there = hit(codes::NODE_UNINITIALIZED, "b");
        let causes = root_causes(&[&off, &here, &there], 1);
        assert_eq!(causes, [None, Some(codes::VM_NOT_FOUND.code), None]);
    }

    #[test]
    fn a_fault_of_one_vcenter_does_not_explain_a_hit_of_another() {
        let subject = || Subject::kubernetes("VsphereCloudConfig", None, "any");
        let down = Hit::new(codes::SERVICE_DOWN, subject()).vcenter("a");
        let here = Hit::new(codes::CLAIM_PENDING, subject()).vcenter("a");
        let there = Hit::new(codes::CLAIM_PENDING, subject()).vcenter("b");
        let named = Hit::new(codes::POD_CRASHES, subject())
            .vcenter("b")
            .because([codes::SERVICE_DOWN.code]);
        let unknown = Hit::new(codes::CLAIM_PENDING, subject());
        let hits = [&down, &here, &there, &named, &unknown];
        let down = Some(codes::SERVICE_DOWN.code);
        assert_eq!(root_causes(&hits, 2), [None, down, None, None, None]);
        assert_eq!(root_causes(&hits, 1)[4], down, "there is only one vCenter");
        let both = Hit::new(codes::SERVICE_DOWN, subject()).vcenter("b");
        assert_eq!(root_causes(&[&unknown, hits[0], &both], 2)[0], down, "all vCenters have it");
        let pod = Hit::new(codes::POD_CRASHES, Subject::kubernetes("Pod", None, "csi"))
            .because([codes::SERVICE_DOWN.code]);
        assert_eq!(root_causes(&[&pod, hits[0]], 2)[0], down, "its message proposes it");
    }

    #[test]
    fn a_fault_of_another_node_or_vm_does_not_keep_a_volume_from_its_node() {
        let subject = || Subject::kubernetes("VolumeAttachment", None, "any");
        let off = hit(codes::DISK_UUID_OFF, "a").vcenter("vc");
        let on = |node: &str| {
            let hit = Hit::new(codes::ATTACH_FAILS, subject()).node(node).vcenter("vc");
            hit.at(Anchor::Volume, "v").because([codes::DISK_UUID_OFF.code])
        };
        let causes = root_causes(&[&off, &on("a"), &on("b")], 1);
        assert_eq!(causes, [None, Some(codes::DISK_UUID_OFF.code), None]);
        let lost = Hit::new(codes::NODE_HOLDS_VOLUMES, subject()).node("c").at(Anchor::Volume, "v");
        let causes = root_causes(&[&lost, &on("b")], 1);
        assert_eq!(causes, [None, Some(codes::NODE_HOLDS_VOLUMES.code)], "it has the volume");
        let lacking = Hit::new(codes::PRIVILEGE_VM, subject()).vcenter("vc").at(Anchor::Vm, "/a");
        let on = |vm: &str| {
            let hit = Hit::new(codes::ATTACH_FAILS, subject()).vcenter("vc").at(Anchor::Vm, vm);
            hit.at(Anchor::Volume, "v")
        };
        let causes = root_causes(&[&lacking, &on("/a"), &on("/b")], 1);
        assert_eq!(causes, [None, Some(codes::PRIVILEGE_VM.code), None]);
    }

    #[test]
    fn a_hint_is_never_a_cause() {
        let subject = |name: &str| Subject::kubernetes("PersistentVolumeClaim", None, name);
        let pending = Hit::new(codes::CLAIM_PENDING, subject("claim"));
        let lacking = |severity| {
            let hit = Hit::new(codes::PRIVILEGE_DATASTORE, subject("datastore"));
            if let Some(severity) = severity { hit.severity(severity) } else { hit }
        };
        let cause = |hit: &Hit, cause: &Hit| root_causes(&[hit, cause], 1)[0];
        assert_eq!(cause(&pending, &lacking(Some(Severity::Info))), None);
        let code = Some(codes::PRIVILEGE_DATASTORE.code);
        assert_eq!(cause(&pending, &lacking(Some(Severity::Error))), code);
        assert_eq!(cause(&pending, &lacking(None)), code, "the severity of the definition");
        let named = pending.clone().because([codes::PRIVILEGE_DATASTORE.code]);
        assert_eq!(cause(&named, &lacking(Some(Severity::Info))), None);
        let limit = || Hit::new(codes::VOLUMES_AT_LIMIT, subject("node"));
        let effect = pending.because([codes::VOLUMES_AT_LIMIT.code]);
        assert_eq!(cause(&effect, &limit()), None, "a definition can be a hint too");
        assert!(cause(&effect, &limit().severity(Severity::Warning)).is_some());
    }

    #[test]
    fn a_chain_leads_to_its_root() {
        let hits = [
            hit(codes::VM_OFF, "a"),
            hit(codes::TOOLS_NOT_RUNNING, "a"),
            hit(codes::NODE_UNINITIALIZED, "a"),
        ];
        let root = Some(codes::VM_OFF.code);
        assert_eq!(root_causes(&hits.iter().collect::<Vec<_>>(), 1), [None, root, root]);
    }
}
