//! Executes the fixes that VDO prints, step by step as an admin does, and counts how the findings resolve.

#![allow(clippy::print_stdout, reason = "the counts are a result of the test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use api::{Finding, VDOConfigStatus};
use testkit::{Logs, Permission, VcenterUser};

use super::{GOVC_PASSWORD, GOVC_USER, Testbed};

/// How the admin types commands that are part of a sentence, have a blank or open an editor. `{rest}` is what follows the
/// printed text.
const TYPED: [(&str, &str); 8] = [
    (
        "kubectl edit secret --namespace vmware-system-vdo vc-credentials",
        r#"EDITOR='sed -i "s/^kind: Secret/&\nstringData: {username: $VCENTER_USER, password: $VCENTER_PASSWORD}/"' kubectl edit secret --namespace vmware-system-vdo vc-credentials"#,
    ),
    (
        "govc vm.change -vm THE_OTHER -uuid $(uuidgen)",
        "govc vm.power -off /DC0/vm/copy && govc vm.change -vm /DC0/vm/copy -uuid $(cat /proc/sys/kernel/random/uuid)",
    ),
    (
        "govc role.update -a ROLE ",
        "govc role.update -a $(govc permissions.ls / | awk -v user=$VCENTER_USER '$3 == user {print $1}') {rest}",
    ),
    ("kubectl delete storageclass odd", "kubectl delete storageclass odd"),
    (
        "kubectl create -f class.yaml",
        r"sed -i '/^  \(datastoreurl\|speed\): /d' class.yaml && kubectl create -f class.yaml",
    ),
    ("govc datastore.ls ", "govc datastore.ls {rest}"),
    ("govc disk.ls -R -ds DATASTORE", "govc disk.ls -R -ds /DC0/datastore/shared"),
    (
        "govc tags.attach -c k8s-zone NAME /DC0/host/cluster-a/",
        "govc tags.attach -c k8s-zone zone-a /DC0/host/cluster-a",
    ),
];

/// Programs that cannot run here.
const ELSEWHERE: [(&str, &str); 4] = [
    ("crictl", "typed on a node, and nodes are simulated"),
    ("openssl", "typed on the console of a vCenter, and the simulator has none"),
    ("service-control", "typed on the console of a vCenter, and the simulator has none"),
    ("systemctl", "typed on a node, and nodes are simulated"),
];

/// Commands of kubectl that change nothing.
const KUBECTL_QUERIES: [&str; 5] = ["auth", "describe", "get", "logs", "wait"];
/// The same of govc, by the last part of the name.
const GOVC_QUERIES: [&str; 6] = ["about", "collect", "find", "info", "ls", "tree"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resolution {
    /// These many commands alone resolve the finding.
    ByCommands(usize),
    /// The commands only show something. The admin then makes the change: in the vSphere Client, or in a spec.
    ByAdmin(usize),
    /// The fix has no command.
    InWords,
    /// Its commands cannot run here.
    NotExecuted(&'static str),
}

impl fmt::Display for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByCommands(count) => write!(f, "resolved by the commands ({count})"),
            Self::ByAdmin(count) => write!(f, "resolved by the admin after the commands ({count})"),
            Self::InWords => write!(f, "resolved by the admin, without a command"),
            Self::NotExecuted(reason) => write!(f, "not executed: {reason}"),
        }
    }
}

/// The executed fixes.
pub struct Fixes {
    resolutions: Vec<Resolution>,
    /// Printed texts and programs of the tables that were found.
    used: BTreeSet<&'static str>,
    failures: Vec<String>,
    /// Commands read the logs of pods.
    _logs: Logs,
}

impl Fixes {
    /// Creates the vCenter account of the admin: a fault can remove the privileges of VDO's account.
    pub async fn start(testbed: &Testbed) -> Self {
        testbed.vcenter.set_user(&VcenterUser::new(GOVC_USER, GOVC_PASSWORD)).await;
        testbed.vcenter.permit(&Permission::new(GOVC_USER, "Admin", "/")).await;
        Self {
            resolutions: Vec::new(),
            used: BTreeSet::new(),
            failures: Vec::new(),
            _logs: testbed.nodes.as_ref().unwrap().serve_logs().await,
        }
    }

    /// Runs the commands of all findings with this code. If they change something, the findings must resolve.
    /// Otherwise the caller plays the admin, and reverts the fault.
    pub async fn execute(&mut self, testbed: &Testbed, fault: &str, code: &str) {
        let status = testbed.config().await.status.unwrap();
        let findings: Vec<&Finding> = status.findings.iter().filter(|f| f.code == code).collect();
        if findings.is_empty() {
            // VDO has restored the object meanwhile.
            return;
        }
        let mut commands = Vec::new();
        for step in findings.iter().flat_map(|finding| &finding.remedy) {
            commands.extend(self.commands(step));
        }
        commands.dedup();
        let resolution = self.resolution(&findings, &commands);
        println!("{code} {fault}: {resolution}");
        let executed = tokio::select! {
            executed = run_all(testbed, &commands) => executed,
            () = kubelets_follow_their_vms(testbed) => Ok(()),
        };
        if let Err(failure) = executed {
            self.failures.push(format!("{code} {fault}: {failure}"));
        } else if matches!(resolution, Resolution::ByCommands(_)) {
            // vCenter does not notify about tags and permissions.
            testbed.check_now(&format!("{code} {fault}")).await;
            let gone = |status: &VDOConfigStatus| status.findings.iter().all(|f| f.code != code);
            if !testbed.becomes(Duration::from_secs(20), gone).await {
                self.failures.push(format!("{code} {fault}: unresolved after {commands:#?}"));
            }
        }
        self.resolutions.push(resolution);
    }

    /// The commands of a step, as the admin types them.
    fn commands(&mut self, step: &str) -> Vec<String> {
        let (command, explanation) = step.split_once("   ").unwrap_or((step, ""));
        let mut commands = Vec::new();
        for (printed, typed) in TYPED {
            if let Some((_, rest)) = step.split_once(printed) {
                let rest = rest.split("   ").next().unwrap_or_default();
                commands.push(typed.replace("{rest}", rest));
                self.used.insert(printed);
            }
        }
        let is_sentence = step.starts_with('#');
        // The faults do not meet the conditions.
        if commands.is_empty() && !is_sentence && !explanation.starts_with("# if ") {
            commands.push(command.to_owned());
        }
        commands
    }

    fn resolution(&mut self, findings: &[&Finding], commands: &[String]) -> Resolution {
        if commands.iter().any(|command| !is_query(command)) {
            return Resolution::ByCommands(commands.len());
        }
        if !commands.is_empty() {
            return Resolution::ByAdmin(commands.len());
        }
        let names = |program: &str| {
            let program = format!(" {program} ");
            findings.iter().flat_map(|f| &f.remedy).any(|step| step.contains(&program))
        };
        let elsewhere = ELSEWHERE.into_iter().find(|(program, _)| names(program));
        elsewhere.map_or(Resolution::InWords, |(program, reason)| {
            self.used.insert(program);
            Resolution::NotExecuted(reason)
        })
    }

    /// # Panics
    /// If a command failed, or commands did not resolve their finding.
    pub fn assert_resolved(&self) {
        let counted = |of: fn(&Resolution) -> Option<usize>| {
            let commands: Vec<usize> = self.resolutions.iter().filter_map(of).collect();
            (commands.len(), commands.iter().sum::<usize>())
        };
        let (by_commands, changes) = counted(|it| match it {
            Resolution::ByCommands(count) => Some(*count),
            _ => None,
        });
        let (by_admin, queries) = counted(|it| match it {
            Resolution::ByAdmin(count) => Some(*count),
            _ => None,
        });
        println!(
            "{} fixes: {by_commands} resolved by {changes} commands, {by_admin} by the admin after {queries} commands, \
             {} by the admin without a command, {} not executed",
            self.resolutions.len(),
            self.resolutions.iter().filter(|it| matches!(it, Resolution::InWords)).count(),
            self.not_executed(),
        );
        assert!(self.failures.is_empty(), "{}", self.failures.join("\n"));
    }

    /// # Panics
    /// As [`Self::assert_resolved`]; also if 15 % of the fixes cannot be executed, or an entry of a table is not needed.
    pub fn assert_complete(&self, faults: usize) {
        self.assert_resolved();
        assert_eq!(self.resolutions.len(), faults, "every fault has a fix");
        assert!(self.not_executed() * 100 < self.resolutions.len() * 15, "{:?}", self.resolutions);
        let entries = TYPED.iter().chain(&ELSEWHERE).map(|(text, _)| *text);
        let unneeded: Vec<&str> = entries.filter(|text| !self.used.contains(text)).collect();
        assert_eq!(unneeded, Vec::<&str>::new(), "remove unneeded entries");
    }

    fn not_executed(&self) -> usize {
        self.resolutions.iter().filter(|it| matches!(it, Resolution::NotExecuted(_))).count()
    }
}

async fn run_all(testbed: &Testbed, commands: &[String]) -> Result<(), String> {
    for command in commands {
        match command.split_once(" | grep ") {
            // An empty answer is no failure, a query that fails is one.
            Some((query, text)) => {
                let found = format!("{{ echo \"$answer\" | grep {text} || [ $? = 1 ]; }}");
                testbed.shell(&format!("answer=$({query}) && {found}")).await?;
            }
            None => drop(testbed.shell(command).await?),
        }
    }
    Ok(())
}

fn is_query(command: &str) -> bool {
    command.split(" && ").all(|command| {
        let mut words = command.split(' ');
        let (program, verb) = (words.next(), words.next().unwrap_or_default());
        match program {
            Some("kubectl") => KUBECTL_QUERIES.contains(&verb),
            _ => verb.rsplit('.').next().is_some_and(|last| GOVC_QUERIES.contains(&last)),
        }
    })
}

/// The kubelet of a node reports nothing while its VM is off.
async fn kubelets_follow_their_vms(testbed: &Testbed) {
    let nodes = testbed.nodes.as_ref().unwrap();
    let mut known = BTreeMap::new();
    loop {
        let truth = testbed.vcenter.truth().await;
        for vm in truth["datacenters"][0]["vms"].as_array().unwrap() {
            let (name, is_on) = (vm["name"].as_str().unwrap(), vm["power"] == "on");
            let before = known.insert(name.to_owned(), is_on).unwrap_or(is_on);
            match (before, is_on) {
                (false, true) => nodes.set_ready(name, true).await,
                (true, false) if name.starts_with("node-") => nodes.silence(name).await,
                _ => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
