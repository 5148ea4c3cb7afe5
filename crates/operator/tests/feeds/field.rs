//! Faults from the field, with their numbers in the benchmark. The test injects several at a time where none hides
//! another. VDO reports each with its object, and clears it once it is fixed.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use api::Finding;
use serde_json::json;
use testkit::eventually;
use tokio::time::Instant;
use vsphere::cns::VolumeId;

use super::{DRIVER, Fixture};

/// A fault and the findings it must cause.
pub(super) struct FaultCase {
    /// The number in the benchmark, or a word for a fault that is not in it.
    row: &'static str,
    what: &'static str,
    code: &'static str,
    /// A part of the name or path of the affected object.
    object: &'static str,
    /// Other findings that the fault causes.
    also: &'static [&'static str],
}

/// Faults that are injected, reported and fixed together.
pub(super) struct Batch {
    /// vCenter does not notify about these faults: they need a check on request.
    on_request: bool,
    pub(super) cases: &'static [FaultCase],
}

const fn case(
    row: &'static str,
    code: &'static str,
    object: &'static str,
    what: &'static str,
) -> FaultCase {
    FaultCase { row, what, code, object, also: &[] }
}

impl FaultCase {
    const fn with(mut self, also: &'static [&'static str]) -> Self {
        self.also = also;
        self
    }

    pub(super) fn codes(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.code).chain(self.also.iter().copied())
    }
}

pub(super) const ALL: &[Batch] = &[
    Batch {
        on_request: false,
        cases: &[
            case("4", "VDO-1223", "metal", "a bare-metal node with the storage driver"),
            case("10", "VDO-1513", "vsphere-config-secret", "cluster id in two places"),
            case("21", "VDO-1225", "down", "a node that is down keeps its volume"),
            case("45", "VDO-1226", "node-2", "fewer volumes per node than asked for"),
            case("CPI-1", "VDO-1217", "late", "a node that did not wait"),
            case("CPI-2", "VDO-1209", "short", "guest and node are called differently")
                .with(&["VDO-1216"]),
            case("CPI-3", "VDO-1210", "twice", "two VMs with one host name"),
            case("provider-id", "VDO-1215", "mislabelled", "provider id of another VM")
                .with(&["VDO-1206"]),
            case("unregistered", "VDO-1221", "node-1", "storage driver not registered"),
            case("claim", "VDO-1527", "waiting", "a claim waits for its volume"),
            case("CPI-7", "VDO-1214", "foreign", "provider id of another cloud"),
        ],
    },
    Batch {
        on_request: false,
        cases: &[
            case("12", "VDO-1607", "vsphere-csi-controller", "a backslash that is not escaped")
                .with(&["VDO-1604", "VDO-1621"]),
            case(
                "16",
                "VDO-1609",
                "internal-feature-states",
                "feature switches of an older release",
            ),
            case("31", "VDO-1614", "vsphere-csi-node", "port taken on the host"),
            case("CPI-6", "VDO-1618", "vsphere-cloud-controller", "name of vCenter not resolved"),
        ],
    },
    Batch {
        on_request: false,
        cases: &[
            case("14", "VDO-1602", "vsphere-csi-controller", "image of a registry that is gone"),
            case("older", "VDO-1620", "CSI", "a release that does not suit"),
            case("17", "VDO-1601", "vsphere-csi-controller", "no node for the controller"),
            case("32", "VDO-1615", "vsphere-csi-controller", "zones the driver knows nothing of"),
            case(
                "CPI-8",
                "VDO-1608",
                "vsphere-cloud-controller",
                "no vCenter in the configuration",
            ),
            case(
                "CPI-9",
                "VDO-1602",
                "vsphere-cloud-controller",
                "cloud image of a registry that is gone",
            ),
        ],
    },
    Batch {
        on_request: false,
        cases: &[
            case(
                "1",
                "VDO-1601",
                "vsphere-csi-controller",
                "no controller, so a kind is not defined",
            )
            .with(&["VDO-1604", "VDO-1605"]),
            case("5", "VDO-1501", "vc", "no datastore on all hosts"),
            case("narrow", "VDO-1504", "narrow", "a class names a datastore of few hosts"),
        ],
    },
    Batch {
        on_request: true,
        cases: &[
            case("9", "VDO-1512", "vsphere-config-secret", "another cluster with the same id"),
            case("20", "VDO-1205", "node-2", "no room for another disk").with(&["VDO-1233"]),
            case("22", "VDO-1515", "forgotten", "a volume vCenter has forgotten")
                .with(&["VDO-1519"]),
            case("23", "VDO-1518", "held", "a disk on the VM of a node that is gone")
                .with(&["VDO-1520"]),
            case("24", "VDO-1517", "diskless", "a volume whose disk is gone"),
            case("26", "VDO-1522", "growing", "a snapshot hinders growth").with(&["VDO-1523"]),
            case("40", "VDO-1526", "doubled", "a volume with doubled metadata"),
            case("43", "VDO-1524", "shared", "disks nobody refers to"),
        ],
    },
    Batch {
        on_request: true,
        cases: &[
            case(
                "6",
                "VDO-1402",
                "/DC0/datastore/shared",
                "no volumes on the datastore of a class",
            ),
            case("35", "VDO-1502", "zone-a", "a zone without a datastore"),
            case("tags", "VDO-1703", "node-1", "two tags of one category"),
            case("keys", "VDO-1709", "node-1", "registered without its zone"),
            case("41", "VDO-1312", "vc", "sessions that are never ended"),
        ],
    },
    Batch {
        on_request: true,
        cases: &[
            case("clock", "VDO-1309", "vc", "a clock ten minutes behind"),
            case("vm", "VDO-1403", "node-2", "no disks for a VM"),
            case("7", "VDO-1402", "/DC0/datastore/shared-b", "no volumes on any datastore"),
            case("36", "VDO-1515", "lost-", "too many volumes vCenter does not know")
                .with(&["VDO-1516"]),
        ],
    },
    Batch {
        on_request: true,
        cases: &[
            case("8", "VDO-1404", "esx-a", "hosts that the account cannot read"),
            case("category", "VDO-1701", "vc", "no such category of tags"),
            case("44", "VDO-1514", "vsphere-config-secret", "volumes made under another id")
                .with(&["VDO-1515"]),
        ],
    },
    Batch {
        on_request: true,
        cases: &[case(
            "unavailable",
            "VDO-1528",
            "reached",
            "a volume on an unavailable datastore",
        )
        .with(&["VDO-1232"])],
    },
    Batch {
        on_request: false,
        cases: &[
            case("11", "VDO-1307", "vc", "a user name without its domain"),
            case("29", "VDO-1612", "vsphere-csi-node", "the driver has another kubelet directory")
                .with(&["VDO-1221"]),
        ],
    },
];

/// Findings that `feeds.rs` causes with objects around the drivers.
pub(super) const AROUND: &[&str] = &[
    "VDO-1224", "VDO-1308", "VDO-1410", "VDO-1521", "VDO-1606", "VDO-1610", "VDO-1611", "VDO-1613",
    "VDO-1616", "VDO-1617", "VDO-1619", "VDO-1622", "VDO-1807",
];

/// The state of the injected faults, for their removal, and the measurements.
#[derive(Default)]
pub(super) struct Field {
    /// Volumes created in vCenter, by row.
    pub(super) volumes: BTreeMap<&'static str, Vec<VolumeId>>,
    /// Objects before the fault, by row.
    pub(super) saved: BTreeMap<&'static str, serde_json::Value>,
    requests: u32,
    /// Findings that were reported.
    pub(super) reported: BTreeSet<String>,
    /// The output for `make health-seconds`.
    pub(super) seconds: String,
}

impl FaultCase {
    /// Whether the finding names the object, and the other findings exist.
    fn is_reported(&self, findings: &[Finding]) -> bool {
        let with_object = |finding: &Finding| {
            finding.objects.iter().any(|object| {
                let path = object.path.as_deref().unwrap_or_default();
                object.name.contains(self.object) || path.contains(self.object)
            })
        };
        findings.iter().any(|finding| finding.code == self.code && with_object(finding))
            && self.also.iter().all(|code| findings.iter().any(|finding| finding.code == *code))
    }
}

impl Field {
    /// Records after how many seconds a fault was reported, and cleared once it was fixed.
    pub(super) fn note(
        &mut self,
        code: &str,
        what: &str,
        [reported, cleared]: [f64; 2],
        row: &str,
    ) {
        self.reported.insert(code.to_owned());
        writeln!(self.seconds, "{code}\t{what}\t{reported:.1}\t{cleared:.1}\t{row}\tgrace")
            .unwrap();
    }
}

fn describe(finding: &Finding) -> String {
    let objects: Vec<&str> = finding.objects.iter().map(|object| object.name.as_str()).collect();
    let seen = finding.seen.as_deref().unwrap_or_default();
    format!("{} {objects:?} {:?} {seen}", finding.code, finding.consequence_of)
}

impl Fixture {
    /// Injects and fixes all batches.
    pub(super) async fn run_batches(&self, field: &mut Field) {
        for batch in ALL {
            for case in batch.cases {
                self.prepare(field, case.row, true).await;
            }
            let appeared = self.turn(field, batch, true).await;
            let cleared = self.turn(field, batch, false).await;
            for case in batch.cases.iter().rev() {
                self.prepare(field, case.row, false).await;
            }
            let rows: Vec<&str> = batch.cases.iter().map(|case| case.row).collect();
            self.healthy(&format!("after {rows:?}")).await;
            let suffix = if batch.on_request { ", asked for" } else { "" };
            for (case, (appeared, cleared)) in
                batch.cases.iter().zip(appeared.into_iter().zip(cleared))
            {
                let FaultCase { row, what, code, .. } = case;
                // A word is not a number of the benchmark.
                let row = if row.starts_with(|c: char| c.is_ascii_lowercase()) { "" } else { row };
                field.note(code, &format!("{what}{suffix}"), [appeared, cleared], row);
            }
        }
    }

    /// Injects or fixes a batch, and waits until all faults are reported or cleared. Returns the seconds for each: since
    /// before its change or, for a check on request, since the request.
    async fn turn(&self, field: &mut Field, batch: &Batch, broken: bool) -> Vec<f64> {
        let started = RefCell::new(vec![None::<Instant>; batch.cases.len()]);
        let change = async {
            let mut places: Vec<usize> = (0..batch.cases.len()).collect();
            if !broken {
                places.reverse();
            }
            for place in places {
                if !batch.on_request {
                    started.borrow_mut()[place] = Some(Instant::now());
                }
                self.change(field, batch.cases[place].row, broken).await;
            }
            if batch.on_request {
                field.requests += 1;
                started.borrow_mut().fill(Some(Instant::now()));
                self.testbed.check_now(&field.requests.to_string()).await;
            }
        };
        let ((), seconds) = tokio::join!(change, self.watch(batch, broken, &started));
        seconds
    }

    /// Waits until all started faults are reported, or cleared, and returns the seconds for each.
    async fn watch(
        &self,
        batch: &Batch,
        reported: bool,
        started: &RefCell<Vec<Option<Instant>>>,
    ) -> Vec<f64> {
        let mut after: Vec<Option<f64>> = vec![None; batch.cases.len()];
        let verb = if reported { "reported" } else { "cleared" };
        eventually(&format!("all are {verb}"), 60, async || {
            let status = self.testbed.config().await.status.unwrap_or_default();
            for (place, case) in batch.cases.iter().enumerate() {
                let as_wanted = if reported {
                    case.is_reported(&status.findings)
                } else {
                    !status.findings.iter().any(|finding| finding.code == case.code)
                };
                match started.borrow()[place].filter(|_| as_wanted) {
                    Some(since) => {
                        after[place].get_or_insert_with(|| since.elapsed().as_secs_f64());
                    }
                    None => after[place] = None,
                }
            }
            let left = batch.cases.iter().zip(&after).filter(|(_, after)| after.is_none());
            let left: Vec<String> =
                left.map(|(case, _)| format!("{} {}", case.row, case.code)).collect();
            let findings: Vec<String> = status.findings.iter().map(describe).collect();
            let findings = findings.join("\n");
            left.is_empty().then_some(()).ok_or(format!("{left:?} not {verb}:\n{findings}"))
        })
        .await;
        after.into_iter().flatten().collect()
    }

    /// Sets up conditions of a fault that are no fault themselves, before the clock starts.
    async fn prepare(&self, field: &mut Field, row: &'static str, broken: bool) {
        if ["12", "CPI-6"].contains(&row) {
            self.set_foreign_installer(field, row, broken).await;
        }
    }

    async fn change(&self, field: &mut Field, row: &'static str, broken: bool) {
        match row {
            "4" | "21" | "45" | "provider-id" | "unregistered" | "keys" | "CPI-1" | "CPI-2"
            | "CPI-3" | "CPI-7" => {
                self.change_node(row, broken).await;
            }
            "1" | "12" | "14" | "older" | "16" | "17" | "29" | "31" | "32" | "CPI-6" | "CPI-8"
            | "CPI-9" => {
                self.change_driver(field, row, broken).await;
            }
            "5" | "narrow" | "6" | "7" | "8" | "11" | "35" | "41" | "tags" | "clock" | "vm"
            | "category" => self.change_vcenter(row, broken).await,
            _ => self.change_volumes(field, row, broken).await,
        }
    }

    pub(super) fn volume(name: &str, handle: &str) -> serde_json::Value {
        super::with(
            super::object("v1", "PersistentVolume", None, name),
            json!({"spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "none",
                "csi": {"driver": DRIVER, "volumeHandle": handle},
            }}),
        )
    }
}
