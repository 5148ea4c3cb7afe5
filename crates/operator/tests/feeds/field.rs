//! Symptoms of the field, by the numbers they have in the benchmark: each is made for real, several at a
//! time where none hides another, named with its object, and gone once it is cured.

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

use super::{DRIVER, Scene};

/// A symptom, and what is to be said of it.
pub(super) struct Case {
    /// Its number, or a word for what is none of the symptoms.
    row: &'static str,
    /// What is wrong.
    what: &'static str,
    /// The finding that names the cause.
    code: &'static str,
    /// What the name or path of the object contains.
    object: &'static str,
    /// Findings that come with it.
    also: &'static [&'static str],
}

/// Symptoms that are made, looked at and cured together.
pub(super) struct Together {
    /// Whether vCenter has to be asked, because it does not tell of them.
    asks: bool,
    pub(super) cases: &'static [Case],
}

const fn case(
    row: &'static str,
    code: &'static str,
    object: &'static str,
    what: &'static str,
) -> Case {
    Case { row, what, code, object, also: &[] }
}

impl Case {
    const fn with(mut self, also: &'static [&'static str]) -> Self {
        self.also = also;
        self
    }

    /// The findings it gives.
    pub(super) fn codes(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.code).chain(self.also.iter().copied())
    }
}

pub(super) const ALL: &[Together] = &[
    Together {
        asks: false,
        cases: &[
            case("4", "VDO-1223", "metal", "a bare-metal node with the storage driver"),
            case("10", "VDO-1513", "vsphere-config-secret", "cluster id in two places"),
            case("21", "VDO-1225", "down", "a node that is down keeps its volume"),
            case("45", "VDO-1226", "node-2", "fewer volumes per node than asked for"),
            case("CPI-1", "VDO-1217", "late", "a node that did not wait"),
            case("CPI-2", "VDO-1209", "short", "guest and node are called differently")
                .with(&["VDO-1216"]),
            case("CPI-3", "VDO-1210", "twice", "two machines with one host name"),
            case("provider-id", "VDO-1215", "mislabelled", "provider id of another machine")
                .with(&["VDO-1206"]),
            case("unregistered", "VDO-1221", "node-1", "storage driver not registered"),
            case("claim", "VDO-1527", "waiting", "a claim waits for its volume"),
            case("CPI-7", "VDO-1214", "foreign", "provider id of another cloud"),
        ],
    },
    Together {
        asks: false,
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
    Together {
        asks: false,
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
    Together {
        asks: false,
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
    Together {
        asks: true,
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
    Together {
        asks: true,
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
    Together {
        asks: true,
        cases: &[
            case("clock", "VDO-1309", "vc", "a clock ten minutes behind"),
            case("machine", "VDO-1403", "node-2", "no disks for a machine"),
            case("7", "VDO-1402", "/DC0/datastore/shared-b", "no volumes on any datastore"),
            case("36", "VDO-1515", "lost-", "too many volumes vCenter does not know")
                .with(&["VDO-1516"]),
        ],
    },
    Together {
        asks: true,
        cases: &[
            case("8", "VDO-1404", "esx-a", "hosts the account may not read"),
            case("category", "VDO-1701", "vc", "no such category of tags"),
            case("44", "VDO-1514", "vsphere-config-secret", "volumes made under another id")
                .with(&["VDO-1515"]),
        ],
    },
    Together {
        asks: true,
        cases: &[case("away", "VDO-1528", "reached", "a volume on a datastore that is away")
            .with(&["VDO-1232"])],
    },
    Together {
        asks: false,
        cases: &[
            case("11", "VDO-1307", "vc", "a user name without its domain"),
            case("29", "VDO-1612", "vsphere-csi-node", "the driver has another kubelet directory")
                .with(&["VDO-1221"]),
        ],
    },
];

/// What is made of things that stand around the drivers.
pub(super) const AROUND: &[&str] = &[
    "VDO-1224", "VDO-1308", "VDO-1410", "VDO-1521", "VDO-1606", "VDO-1610", "VDO-1611", "VDO-1613",
    "VDO-1616", "VDO-1617", "VDO-1619", "VDO-1622", "VDO-1807",
];

/// What was done, to be undone.
#[derive(Default)]
pub(super) struct Field {
    /// Volumes that were made in vCenter, by what for.
    pub(super) volumes: BTreeMap<&'static str, Vec<VolumeId>>,
    /// Objects as they were.
    pub(super) kept: BTreeMap<&'static str, serde_json::Value>,
    asked: u32,
    /// The findings that were given.
    pub(super) made: BTreeSet<String>,
    /// What `make health-seconds` writes down.
    pub(super) seconds: String,
}

impl Case {
    /// Whether it is named with its object, and what comes with it is there.
    fn is_named(&self, findings: &[Finding]) -> bool {
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
    /// Writes down after how many seconds a fault was named, and no longer named once it was cured.
    pub(super) fn note(&mut self, code: &str, what: &str, [named, cleared]: [f64; 2], row: &str) {
        self.made.insert(code.to_owned());
        writeln!(self.seconds, "{code}\t{what}\t{named:.1}\t{cleared:.1}\t{row}\tgrace").unwrap();
    }
}

/// A finding in one line.
fn told(finding: &Finding) -> String {
    let objects: Vec<&str> = finding.objects.iter().map(|object| object.name.as_str()).collect();
    let seen = finding.seen.as_deref().unwrap_or_default();
    format!("{} {objects:?} {:?} {seen}", finding.code, finding.consequence_of)
}

impl Scene {
    /// Makes all of them, a handful at a time.
    pub(super) async fn play(&self, field: &mut Field) {
        for together in ALL {
            for case in together.cases {
                self.prepare(field, case.row, true).await;
            }
            let appeared = self.turn(field, together, true).await;
            let cleared = self.turn(field, together, false).await;
            for case in together.cases.iter().rev() {
                self.prepare(field, case.row, false).await;
            }
            let rows: Vec<&str> = together.cases.iter().map(|case| case.row).collect();
            self.is_well(&format!("after {rows:?}")).await;
            let asked = if together.asks { ", asked for" } else { "" };
            for (case, (appeared, cleared)) in
                together.cases.iter().zip(appeared.into_iter().zip(cleared))
            {
                let Case { row, what, code, .. } = case;
                // A word is no number.
                let row = if row.starts_with(|c: char| c.is_ascii_lowercase()) { "" } else { row };
                field.note(code, &format!("{what}{asked}"), [appeared, cleared], row);
            }
        }
    }

    /// Makes all of them or cures them, and waits until all are named, or none. Returns how many seconds
    /// that took for each: from before it was made or cured or, where vCenter has to be asked, from the
    /// asking on.
    async fn turn(&self, field: &mut Field, together: &Together, broken: bool) -> Vec<f64> {
        let begun = RefCell::new(vec![None::<Instant>; together.cases.len()]);
        let change = async {
            let mut places: Vec<usize> = (0..together.cases.len()).collect();
            if !broken {
                places.reverse();
            }
            for place in places {
                if !together.asks {
                    begun.borrow_mut()[place] = Some(Instant::now());
                }
                self.change(field, together.cases[place].row, broken).await;
            }
            if together.asks {
                field.asked += 1;
                begun.borrow_mut().fill(Some(Instant::now()));
                self.stage.check_now(&field.asked.to_string()).await;
            }
        };
        let ((), seconds) = tokio::join!(change, self.watch(together, broken, &begun));
        seconds
    }

    /// Waits until all that were begun are named, or none, and says after how many seconds each was.
    async fn watch(
        &self,
        together: &Together,
        named: bool,
        begun: &RefCell<Vec<Option<Instant>>>,
    ) -> Vec<f64> {
        let mut after: Vec<Option<f64>> = vec![None; together.cases.len()];
        let verb = if named { "named" } else { "gone" };
        eventually(&format!("all are {verb}"), 60, async || {
            let status = self.stage.config().await.status.unwrap_or_default();
            for (place, case) in together.cases.iter().enumerate() {
                let as_wanted = if named {
                    case.is_named(&status.findings)
                } else {
                    !status.findings.iter().any(|finding| finding.code == case.code)
                };
                match begun.borrow()[place].filter(|_| as_wanted) {
                    Some(since) => {
                        after[place].get_or_insert_with(|| since.elapsed().as_secs_f64());
                    }
                    None => after[place] = None,
                }
            }
            let left = together.cases.iter().zip(&after).filter(|(_, after)| after.is_none());
            let left: Vec<String> =
                left.map(|(case, _)| format!("{} {}", case.row, case.code)).collect();
            let told: Vec<String> = status.findings.iter().map(told).collect();
            let told = told.join("\n");
            left.is_empty().then_some(()).ok_or(format!("{left:?} not {verb}:\n{told}"))
        })
        .await;
        after.into_iter().flatten().collect()
    }

    /// What has to be there for a fault and is none itself, before the clock starts.
    async fn prepare(&self, field: &mut Field, row: &'static str, broken: bool) {
        if ["12", "CPI-6"].contains(&row) {
            self.let_others_install(field, row, broken).await;
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
            "5" | "narrow" | "6" | "7" | "8" | "11" | "35" | "41" | "tags" | "clock"
            | "machine" | "category" => self.change_vcenter(row, broken).await,
            _ => self.change_volumes(field, row, broken).await,
        }
    }

    /// A PersistentVolume of this handle.
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
