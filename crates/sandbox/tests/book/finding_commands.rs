//! Runs the commands on the pages of the findings, with names of this cluster and vCenter for the placeholders, in the
//! order of the pages.
//!
//! Commands that change the cluster run as a dry run. Commands that change vCenter run on a spare VM, disk, roles and
//! tags. A command that cannot run has a reason; an unneeded reason is an error.

use std::{collections::BTreeSet, fmt::Write as _};

use testkit::{Fate, eventually};

use crate::{
    names,
    pages::{self, Page},
    reader::{Reader, shown},
};

/// Programs of the findings.
const PROGRAMS: [&str; 11] = [
    "kubectl",
    "govc",
    "vdoctl",
    "oc",
    "curl",
    "openssl",
    "systemctl",
    "crictl",
    "ss",
    "multipath",
    "journalctl",
];

/// Commands that are not run, and why. An entry that ends with a space is a prefix.
const NOT_RUN: [(&str, &str); 12] = [
    ("crictl ", "typed on a node, and nodes are simulated"),
    ("multipath ", "typed on a node, and nodes are simulated"),
    ("ss ", "typed on a node, and nodes are simulated"),
    ("systemctl ", "typed on a node, and nodes are simulated"),
    ("curl ", "typed on a node, and nodes are simulated"),
    ("openssl ", "it runs on the console of a vCenter, and the simulator has none"),
    ("oc ", "the program and the objects are OpenShift's"),
    (
        "kubectl describe pod shows the reason",
        "a sentence: which pod it is shows the command before it",
    ),
    (
        "kubectl taint node <node> node.kubernetes.io/out-of-service-",
        "kubectl refuses to remove a taint that the node does not have",
    ),
    ("govc datastore.maintenance.exit ", "the simulator has no datastore maintenance"),
    ("vdoctl move ", "every object is in its namespace; the tests of vdoctl run it"),
    ("kubectl get volumesnapshots ", "the snapshot CRDs belong to another project"),
];

/// Texts that end a command in a sentence.
const ENDS: [&str; 5] = ["   ", "; ", " then ", ", kubectl ", ", or "];

/// kubectl commands that change something and support a dry run.
const DRY_RUNS: [&str; 11] = [
    "annotate", "apply", "cordon", "create", "delete", "drain", "label", "patch", "scale", "set",
    "taint",
];

/// Values of the placeholders: in commands that contain the first text, the third replaces the second. The first match
/// applies.
const PLACEHOLDERS: [(&str, &str, &str); 74] = [
    // The node stays ready, because the VM that is off is a spare one.
    ("kubectl wait", "=Ready=Unknown", "=Ready"),
    ("annotate vdoconfig", "<name>", "vdo"),
    ("annotate lease", "<lease>", "vdo-leader"),
    ("vdo-followed", "<namespace>", "vmware-system-vdo"),
    ("edit secret", "<namespace>", "vmware-system-vdo"),
    ("create clusterrolebinding", "<role>", "vdo-remediation-csinodes"),
    ("", "<node>", "worker-1"),
    ("", "<vm>", "/Frankfurt/vm/k8s/spare"),
    ("", "THE_OTHER", "/Frankfurt/vm/k8s/spare"),
    ("", "$(uuidgen)", "$(cat /proc/sys/kernel/random/uuid)"),
    ("", "<uuid>", "$UUID"),
    ("", "<needed>", "21"),
    ("", "<value>", "TRUE"),
    ("", "<place>", "/Frankfurt/host/cluster-a/esx-a2"),
    ("govc datastore", "<path>", "/Frankfurt/datastore/k8s/shared-b"),
    ("govc disk", "<path>", "/Frankfurt/datastore/k8s/shared"),
    ("govc datastore", "<name>", "/Frankfurt/datastore/k8s/shared-b"),
    ("govc", "<path>", "/Frankfurt/host/cluster-b/esx-b3"),
    ("govc", " PATH", " /Frankfurt/host/cluster-b"),
    ("", "<datastore>", "/Frankfurt/datastore/k8s/shared"),
    ("", "DATASTORE ", "/Frankfurt/datastore/k8s/shared "),
    ("", "<handle>", "$HANDLE"),
    ("disk.snapshot", " SNAPSHOT", " $SNAPSHOT"),
    ("disk.rm", " ID", " $HANDLE"),
    ("session", " ID", " $SESSION"),
    ("", "disk-...", "disk-1000-0"),
    ("govc", "<user>", "spare@vsphere.local"),
    ("auth can-i", "<user>", "system:serviceaccount:vmware-system-vdo:vdo"),
    ("govc", "<list>", "Cns.Searchable"),
    ("govc", "-a ROLE", "-a SPARE"),
    ("govc", "CNS-", "SPARE-CNS-"),
    ("govc", "<category>", "spare"),
    ("govc", "<tag>", "one"),
    ("govc", " NAME", " one"),
    ("pvc", "<namespace>", "default"),
    ("--previous", "<namespace>", "default"),
    ("--previous", "<pod>", "spare"),
    ("--previous", "<container>", "spare"),
    ("vsphere-cloud", "<namespace>", "kube-system"),
    ("vdoconfig", "<namespace>", "vmware-system-vdo"),
    ("vspherecloudconfig", "<namespace>", "vmware-system-vdo"),
    ("serviceaccount", "<namespace>", "vmware-system-vdo"),
    ("configmap --namespace <namespace> <record>", "<namespace>", "vmware-system-vdo"),
    ("delete deployment", "<namespace>", "vmware-system-vdo"),
    ("", "<namespace>", "vmware-system-csi"),
    ("", "<drivernamespace>", "vmware-system-csi"),
    ("delete deployment", "<name>", "vdo"),
    ("delete deployment", "<deployment>", "vdo"),
    ("pvc", "<name>", "spare"),
    ("vspherecloudconfig", "<config>", "vcenter-a"),
    ("vspherecloudconfig", "<first>", "vcenter-a"),
    ("vspherecloudconfig", "<others>", "vcenter-a"),
    ("vdoconfig", "<config>", "vdo"),
    ("vdoconfig", "<others>", "vdo"),
    ("", "<approval>", "vdo.vmware.com/approve-csi"),
    ("kubectl get <kind>", "<kind>", "deployment"),
    ("--show-managed-fields", "<where>", "--namespace vmware-system-csi "),
    ("--show-managed-fields", "<name>", "vsphere-csi-controller"),
    ("", "<workload>", "deployment/vsphere-csi-controller"),
    ("", "<record>", "$RECORD"),
    ("", "<attachment>", "spare"),
    ("", "<class>", "spare"),
    ("", "<webhook>", "spare"),
    ("create secret", "<secret>", "spare"),
    ("", "<secret>", "vcenter-a"),
    ("", "<secretname>", "vcenter-a"),
    ("", "<secretnamespace>", "vmware-system-vdo"),
    ("", "<verb>", "list"),
    ("", "<resource>", "nodes"),
    ("", "<remove>", "failure-domain.beta.kubernetes.io/zone-"),
    ("auth can-i", "<scope>", "--all-namespaces"),
    // Patches that every object accepts.
    ("--type json", "<patch>", r#"'[{"op":"test","path":"/kind","value":"CSINode"}]'"#),
    ("", "<patch>", r#"'{"metadata":{"annotations":{"tried":"yes"}}}'"#),
    ("", " POD ", " $POD "),
];

/// Creates spare objects.
const SPARES: &str = r"
set -e
vdoctl catalog build embedded > FILE
kubectl apply -f spare.yaml
kubectl wait --for=create crd/csinodetopologies.cns.vmware.com --timeout=1m
kubectl apply -f topology.yaml
govc vm.clone -vm worker-3 -on=false -folder /Frankfurt/vm/k8s -ds /Frankfurt/datastore/k8s/shared \
  -host /Frankfurt/host/cluster-a/esx-a1 spare
govc vm.change -vm spare -uuid 42260000-0000-4000-8000-000000000042
govc vm.power -on spare
govc snapshot.create -vm spare before
govc role.create SPARE System.Read
";

/// Looks up their generated names. Lists are read to the end, so that no writer gets a broken pipe.
const NAMES: &str = r#"
UUID=42260000-0000-4000-8000-000000000042
HANDLE=$(govc disk.create -ds /Frankfurt/datastore/k8s/shared -size 1M spare)
SNAPSHOT=$(govc disk.snapshot.create $HANDLE one)
before=$(govc session.ls | awk 'NR > 1 {print $1}' | sort)
HOME=$PWD/another govc ls / > another.txt
SESSION=$(govc session.ls | awk 'NR > 1 {print $1}' | sort | comm -13 <(echo "$before") - | sed -n 1p)
POD=$(kubectl get pods --namespace vmware-system-csi --selector app=vsphere-csi-node -o name | sed -n 1p)
RECORD=$(kubectl get configmaps --namespace vmware-system-vdo -o name | grep record | sed -n 1p | cut -d/ -f2)
export EDITOR=true
set -o pipefail
"#;

/// Checks that no spare object is left.
const LEFT: &str = "
kubectl delete -f spare.yaml -f topology.yaml --ignore-not-found --wait=false
govc vm.destroy spare
govc tags.category.rm -f $(govc tags.category.info spare | awk '$1 == \"ID:\" {print $2}')
for role in $(govc role.ls | awk '{print $1}' | grep ^SPARE); do govc role.remove -force $role; done
for disk in $(govc disk.ls -ds /Frankfurt/datastore/k8s/shared | grep spare | awk '{print $1}'); do
  govc disk.rm -ds /Frankfurt/datastore/k8s/shared $disk
done
";

const SPARE: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: spare}
provisioner: spare.example.com
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: spare}
spec: {attacher: spare.example.com, nodeName: worker-1, source: {persistentVolumeName: spare}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: spare, namespace: default}
spec: {accessModes: [ReadWriteOnce], storageClassName: spare, resources: {requests: {storage: 1Mi}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: spare}
---
apiVersion: v1
kind: Pod
metadata: {name: spare, namespace: default}
spec: {nodeName: worker-2, containers: [{name: spare, image: "spare:crashes"}]}
"#;

const TOPOLOGY: &str = "
apiVersion: cns.vmware.com/v1alpha1
kind: CSINodeTopology
metadata: {name: worker-1}
spec: {nodeID: worker-1}
";

/// The commands of a page with their placeholders: in code and in its steps.
fn commands(page: &Page) -> Vec<String> {
    let mut found = Vec::new();
    for line in page.text.lines() {
        // `*node*` in a sentence is `<node>` in a command.
        let mut line = line.replace("&gt;", ">").replace("&lt;", "<").replace('`', "   ");
        while let Some((before, rest)) = line.split_once('*')
            && let Some((name, after)) = rest.split_once('*')
            && name.chars().all(char::is_alphanumeric)
        {
            line = format!("{before}<{name}>{after}");
        }
        let mut rest = line.as_str();
        while let Some(at) = begins(rest) {
            rest = &rest[at..];
            let end = ENDS.iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len());
            found.push(rest[..end].to_owned());
            rest = &rest[end..];
        }
    }
    found
}

/// The start of the next command.
fn begins(text: &str) -> Option<usize> {
    let starts = |program: &&str| {
        let name = format!("{program} ");
        let mut places = text.match_indices(&name).map(|(at, _)| at);
        places.find(|at| *at == 0 || text[..*at].ends_with([' ', '(']))
    };
    PROGRAMS.iter().filter_map(starts).min()
}

/// Whether a command matches an entry of the table.
fn matches_entry(command: &str, named: &str) -> bool {
    command == named || named.ends_with(' ') && command.starts_with(named)
}

/// The form of a command that is run. After `&&`, the next command runs only if the one before succeeds.
pub(crate) fn typed(command: &str) -> String {
    command.split(" && ").map(typed_alone).collect::<Vec<_>>().join(" && ")
}

fn typed_alone(command: &str) -> String {
    let fill = |typed: String, (holds, blank, value): &(&str, &str, &str)| {
        if command.contains(holds) { typed.replace(blank, value) } else { typed }
    };
    let mut typed = PLACEHOLDERS.iter().fold(format!("{command} "), fill).trim_end().to_owned();
    typed = typed.replace("-f install.yaml", "-f deploy/install.yaml");
    // An empty result is no failure, an invalid query is one.
    if let Some((all, some)) = typed.split_once(" | grep ") {
        typed = format!("{all} | {{ grep {some} || [ $? = 1 ]; }}");
    }
    let verb = typed.strip_prefix("kubectl ").and_then(|rest| rest.split(' ').next());
    // The spare StorageClass is exported, deleted and created again.
    let for_good = typed.contains("storageclass spare") || typed.contains("class.yaml");
    if verb.is_some_and(|verb| DRY_RUNS.contains(&verb) || verb == "uncordon") && !for_good {
        typed += " --dry-run=server";
    }
    // The options to turn on are off.
    if let Some(vm) = typed.strip_prefix("govc vm.power -on ") {
        typed = format!("govc vm.power -off -force {vm} || true; {typed}");
    }
    // The operator of the cluster must not change.
    if typed.starts_with("vdoctl deploy") {
        typed += " --dry-run";
    }
    // The exit code depends on the findings.
    if typed.starts_with("vdoctl doctor") {
        typed = format!("{{ {typed} || [ $? = 3 ]; }}");
    }
    typed
}

impl Reader {
    /// Runs every command of the pages of the findings, and reports all failures.
    pub(crate) async fn run_finding_commands(&self) {
        let mut all: Vec<(String, String)> = Vec::new();
        for page in pages::all() {
            let findings = page.path.starts_with("docs/findings/VDO-");
            all.extend(
                commands(&page).into_iter().filter(|_| findings).map(|c| (page.path.clone(), c)),
            );
        }
        assert!(all.len() > 150, "{}", all.len());
        let reasons: BTreeSet<&str> = all
            .iter()
            .filter_map(|(_, command)| {
                NOT_RUN.iter().map(|(it, _)| *it).find(|it| matches_entry(command, it))
            })
            .collect();
        let needless = NOT_RUN.iter().filter(|(start, _)| !reasons.contains(start));
        assert_eq!(
            needless.collect::<Vec<_>>(),
            Vec::<&(&str, &str)>::new(),
            "remove unneeded entries"
        );
        all.retain(|(_, command)| !reasons.iter().any(|it| matches_entry(command, it)));

        self.workdir.write("spare.yaml", SPARE).unwrap();
        self.workdir.write("topology.yaml", TOPOLOGY).unwrap();
        self.cluster.nodes.pods("spare:crashes", Fate::Crashes);
        self.run_successfully(SPARES).await;
        let (logs, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, command)| command.starts_with("kubectl logs"));
        let output = shown(&self.run_script(&script(&others)).await);
        assert_eq!(output, "all commands ran\n", "a command of a finding failed");
        self.run_log_commands(logs).await;
        self.run_successfully(LEFT).await;
    }

    /// Runs commands that read logs, while a server simulates the kubelets and until the node addresses are rewritten.
    async fn run_log_commands(&self, mut commands: Vec<(String, String)>) {
        // Commands of other pages that read logs run here too.
        for page in pages::all() {
            let blocks = page.blocks();
            let typed = blocks.iter().filter(|block| block.of_logs()).flat_map(names::commands_in);
            commands.extend(typed.map(|line| (page.path.clone(), line)));
        }
        assert!(commands.iter().any(|(page, _)| page == "docs/health.md"), "{commands:?}");
        let script = script(&commands);
        eventually("logs are read", 60, async || {
            let _logs = self.cluster.nodes.serve_logs().await;
            let output = shown(&self.run_script(&script).await);
            if output == "all commands ran\n" { Ok(()) } else { Err(output) }
        })
        .await;
    }
}

/// A script that reports the commands that fail, and their output.
fn script(commands: &[(String, String)]) -> String {
    let mut script = format!("{{\n{NAMES}}} > names.txt 2>&1\n");
    for (page, command) in commands {
        let typed = typed(command);
        let place = page.trim_start_matches("docs/findings/");
        let label = format!("{place}: {command}").replace('\'', "");
        writeln!(
            script,
            "{{ {typed}\n}} > typed.txt 2>&1 || {{ echo '{label}'; tail -3 typed.txt; }}"
        )
        .unwrap();
    }
    // A script that ends early must not pass.
    script + "echo 'all commands ran'"
}

#[test]
fn commands_of_a_page_keep_their_placeholders() {
    let page = |text: &str| Page { path: "docs/findings/VDO-1.md".into(), text: text.into() };
    for (text, found) in [
        (
            "1. `kubectl drain <node> --ignore-daemonsets`",
            &["kubectl drain <node> --ignore-daemonsets"][..],
        ),
        (
            "2. `govc vm.power -on <vm>` then kubectl uncordon *node*",
            &["govc vm.power -on <vm>", "kubectl uncordon <node>"],
        ),
        (
            "If it is gone: kubectl delete node *node*   and restart",
            &["kubectl delete node <node>"],
        ),
        ("nothing to type", &[]),
    ] {
        assert_eq!(commands(&page(text)), found, "{text}");
    }
    assert_eq!(
        typed("kubectl drain <node> --ignore-daemonsets"),
        "kubectl drain worker-1 --ignore-daemonsets --dry-run=server"
    );
    assert_eq!(
        typed("kubectl drain <node> && govc vm.power -off <vm>"),
        "kubectl drain worker-1 --dry-run=server && govc vm.power -off /Frankfurt/vm/k8s/spare"
    );
}
