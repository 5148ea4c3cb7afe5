//! The command line, with the flag names of the Kubernetes cloud controller framework.

mod duration;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::{ArgAction, Parser};
use snafu::{ResultExt as _, Snafu};

pub use self::duration::GoDuration;
use crate::{catalogue::Scope, initialise, lifecycle::Policy};

const MIN_TAG_PERIOD: Duration = Duration::from_secs(1);

/// The vSphere cloud controller manager.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "vsphere-cloud-controller-manager",
    disable_version_flag = true,
    args_override_self = true
)]
pub struct Flags {
    /// The cloud configuration, YAML or INI. The environment (`VSPHERE_...`) overrides it.
    #[arg(long, env = "CCM_CLOUD_CONFIG")]
    pub cloud_config: Option<PathBuf>,

    /// The cloud provider; only `vsphere` is supported.
    #[arg(long, default_value = "vsphere")]
    pub cloud_provider: String,

    /// Kubeconfig, if the controller does not run in a pod.
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,

    /// The controllers to run: `*`, names, and `-name` to exclude one.
    #[arg(long, default_value = "*", value_delimiter = ',', allow_hyphen_values = true)]
    pub controllers: Vec<String>,

    /// Number of nodes synced at the same time.
    #[arg(long, env = "CCM_CONCURRENT_NODE_SYNCS", default_value_t = 16)]
    pub concurrent_node_syncs: usize,

    /// Labels that every node gets when it is initialised: `key=value,...`.
    #[arg(long, env = "CCM_NODE_LABELS", default_value = "")]
    pub node_labels: String,

    /// Only VMs below these folders are nodes: inventory paths such as `/DC0/vm/k8s`.
    #[arg(long, env = "CCM_VM_FOLDERS", value_delimiter = ',')]
    pub vm_folders: Vec<String>,

    /// Only VMs on these clusters are nodes.
    #[arg(long, env = "CCM_VM_CLUSTERS", value_delimiter = ',')]
    pub vm_clusters: Vec<String>,

    /// Keep a node uninitialised while a tag of its zone or region is missing.
    #[arg(long, env = "CCM_REQUIRE_ZONES", num_args = 0..=1, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub require_zones: bool,

    /// Update the zone, region and instance type labels when the VM changes after initialisation.
    #[arg(long, env = "CCM_REFRESH_LABELS", num_args = 0..=1, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub refresh_labels: bool,

    /// Label nodes with the ESXi host and the cluster of their VM, and update the labels after vMotion.
    #[arg(long, env = "CCM_HOST_LABELS", num_args = 0..=1, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub host_labels: bool,

    /// How often to read tags; at most once per second.
    #[arg(long, env = "CCM_TAG_REFRESH_PERIOD", default_value = "4m")]
    pub tag_refresh_period: GoDuration,

    /// How long a VM must be gone before its node is deleted.
    #[arg(long, env = "CCM_NODE_DELETION_DELAY", default_value = "30s")]
    pub node_deletion_delay: GoDuration,

    /// The most nodes deleted within the window; 0 deletes none.
    #[arg(long, env = "CCM_NODE_DELETION_LIMIT", default_value_t = 20)]
    pub node_deletion_limit: usize,

    /// The period of the limit.
    #[arg(long, env = "CCM_NODE_DELETION_WINDOW", default_value = "10m")]
    pub node_deletion_window: GoDuration,

    /// If more than this percentage of all nodes lose their VM at once, none of them is deleted. Three
    /// are always allowed.
    #[arg(long, env = "CCM_NODE_DELETION_SHARE", default_value_t = 30)]
    pub node_deletion_share: usize,

    /// Also taint nodes of powered-off VMs `out-of-service`, so that their volumes move at once.
    #[arg(long, env = "CCM_OUT_OF_SERVICE_TAINT", num_args = 0..=1, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub out_of_service_taint: bool,

    /// The longest pause before the controller tries a failed vCenter again.
    #[arg(long, env = "CCM_VCENTER_RETRY_PERIOD", default_value = "30s")]
    pub vcenter_retry_period: GoDuration,

    /// Timeout for one vCenter call.
    #[arg(long, env = "CCM_VCENTER_CALL_TIMEOUT", default_value = "1m")]
    pub vcenter_call_timeout: GoDuration,

    /// The address of `/metrics`, `/livez` and `/readyz`.
    #[arg(long, env = "CCM_BIND_ADDRESS", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,

    /// The port of these endpoints; 0 disables them.
    #[arg(long, env = "CCM_SECURE_PORT", default_value_t = 10258)]
    pub secure_port: u16,

    /// Elect a leader among several instances.
    #[arg(long, num_args = 0..=1, default_value = "true", default_missing_value = "true", action = ArgAction::Set)]
    pub leader_elect: bool,
    /// How long a lease is valid.
    #[arg(long, default_value = "15s")]
    pub leader_elect_lease_duration: GoDuration,
    /// How long a leader keeps leading without renewal.
    #[arg(long, default_value = "10s")]
    pub leader_elect_renew_deadline: GoDuration,
    /// The pause between two attempts.
    #[arg(long, default_value = "2s")]
    pub leader_elect_retry_period: GoDuration,
    /// The name of the lease.
    #[arg(long, default_value = "cloud-controller-manager")]
    pub leader_elect_resource_name: String,
    /// The namespace of the lease.
    #[arg(long, default_value = "kube-system")]
    pub leader_elect_resource_namespace: String,

    /// Log verbosity: 0 to 2 is `info`, 3 and 4 `debug`, more is `trace`.
    #[arg(long = "v", short = 'v', default_value_t = 0)]
    pub verbosity: u8,
    /// Log filter by module: `info,vsphere=debug`. Takes precedence over `--v`.
    #[arg(long, env = "CCM_LOG")]
    pub log: Option<String>,
    /// `json` or `human`; by default, `human` on a terminal.
    #[arg(long, env = "CCM_LOG_FORMAT")]
    pub log_format: Option<String>,

    /// Explain which VM a node is and which addresses it gets, and exit.
    #[arg(long, value_name = "NODE")]
    pub explain_node: Option<String>,

    /// Show the version and exit.
    #[arg(long, num_args = 0..=1, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub version: bool,
}

#[derive(Debug, Snafu)]
pub enum SettingsError {
    #[snafu(display("{source}"))]
    Flags { source: clap::Error },
    #[snafu(display("--cloud-provider={given}: this controller supports only `vsphere`"))]
    Provider { given: String },
    #[snafu(display("--concurrent-node-syncs must be at least 1"))]
    NoWorkers,
    #[snafu(display("--node-labels: `{part}` is not a label; write key=value,key=value"))]
    Label { part: String },
    #[snafu(display("--controllers: unknown controller `{name}`; use {}", NODE[0].to_owned() + " and " + LIFECYCLE[0]))]
    Controller { name: String },
}

const NODE: [&str; 2] = ["cloud-node-controller", "cloud-node"];
const LIFECYCLE: [&str; 2] = ["cloud-node-lifecycle-controller", "cloud-node-lifecycle"];
/// Controllers of the framework that this controller does not have.
const UPSTREAM_ONLY: [&str; 4] =
    ["service-lb-controller", "service", "node-route-controller", "route"];

/// Flags of the framework without effect here, and whether each takes a value. The controller accepts
/// them, so that a manifest needs no change, and lists them in a warning.
const IGNORED_FLAGS: &[(&str, bool)] = &[
    ("master", true),
    ("cert-dir", true),
    ("cluster-name", true),
    ("cluster-cidr", true),
    ("allocate-node-cidrs", false),
    ("cidr-allocator-type", true),
    ("configure-cloud-routes", false),
    ("route-reconciliation-period", true),
    ("node-monitor-period", true),
    ("node-status-update-frequency", true),
    ("concurrent-node-status-updates", true),
    ("concurrent-service-syncs", true),
    ("controller-start-interval", true),
    ("min-resync-period", true),
    ("kube-api-qps", true),
    ("kube-api-burst", true),
    ("kube-api-content-type", true),
    ("leader-elect-resource-lock", true),
    ("enable-leader-migration", false),
    ("leader-migration-config", true),
    ("profiling", false),
    ("contention-profiling", false),
    ("authentication-kubeconfig", true),
    ("authentication-skip-lookup", false),
    ("authentication-token-webhook-cache-ttl", true),
    ("authentication-tolerate-lookup-failure", false),
    ("authorization-kubeconfig", true),
    ("authorization-always-allow-paths", true),
    ("authorization-webhook-cache-authorized-ttl", true),
    ("authorization-webhook-cache-unauthorized-ttl", true),
    ("requestheader-allowed-names", true),
    ("requestheader-client-ca-file", true),
    ("requestheader-extra-headers-prefix", true),
    ("requestheader-group-headers", true),
    ("requestheader-uid-headers", true),
    ("requestheader-username-headers", true),
    ("client-ca-file", true),
    ("http2-max-streams-per-connection", true),
    ("disable-http2-serving", false),
    ("permit-address-sharing", false),
    ("permit-port-sharing", false),
    ("tls-cert-file", true),
    ("tls-private-key-file", true),
    ("tls-cipher-suites", true),
    ("tls-min-version", true),
    ("tls-curve-preferences", true),
    ("tls-sni-cert-key", true),
    ("use-service-account-credentials", false),
    ("allow-untagged-cloud", false),
    ("node-sync-period", true),
    ("feature-gates", true),
    ("external-cloud-volume-plugin", true),
    ("webhooks", true),
    ("webhook-bind-address", true),
    ("webhook-cert-dir", true),
    ("webhook-disable-http2-serving", false),
    ("webhook-secure-port", true),
    ("webhook-tls-cert-file", true),
    ("webhook-tls-private-key-file", true),
    ("is-legacy-paravirtual", false),
    ("enable-vpc-mode", false),
    ("pod-ip-pool-type", true),
    ("enable-service-annotation-propagation", false),
    ("vm-operator-api-version", true),
    ("cluster-ip-family", true),
    ("vmodule", true),
    ("log-flush-frequency", true),
    ("logging-format", true),
    ("logtostderr", false),
    ("alsologtostderr", false),
    ("log-dir", true),
    ("log-file", true),
    ("stderrthreshold", true),
    ("add-dir-header", false),
    ("skip-headers", false),
];

#[derive(Debug, Clone)]
pub struct Settings {
    pub flags: Flags,
    /// Flags that were given and have no effect here.
    pub ignored_flags: Vec<String>,
    pub node_controller: bool,
    pub lifecycle_controller: bool,
    pub extra_labels: BTreeMap<String, String>,
}

impl Settings {
    /// The first argument is the program.
    pub fn read(arguments: impl IntoIterator<Item = String>) -> Result<Self, SettingsError> {
        let (arguments, ignored_flags) = split_ignored(arguments);
        let flags = Flags::try_parse_from(arguments).context(FlagsSnafu)?;
        if flags.cloud_provider != "vsphere" {
            return ProviderSnafu { given: flags.cloud_provider }.fail();
        }
        if flags.concurrent_node_syncs == 0 {
            return NoWorkersSnafu.fail();
        }
        let (node_controller, lifecycle_controller) = controllers(&flags.controllers)?;
        let extra_labels = initialise::allowed_extra_labels(labels(&flags.node_labels)?);
        Ok(Self { flags, ignored_flags, node_controller, lifecycle_controller, extra_labels })
    }

    pub fn address(&self) -> Option<SocketAddr> {
        let port = self.flags.secure_port;
        (port != 0).then(|| SocketAddr::new(self.flags.bind_address, port))
    }

    pub fn policy(&self, skip_deletion: bool) -> Policy {
        Policy {
            skip_deletion,
            delay: self.flags.node_deletion_delay.0,
            limit: self.flags.node_deletion_limit,
            window: self.flags.node_deletion_window.0,
            share: self.flags.node_deletion_share,
            out_of_service: self.flags.out_of_service_taint,
        }
    }

    /// At least `MIN_TAG_PERIOD`, whatever the flag's value is.
    pub fn tag_period(&self) -> Duration {
        self.flags.tag_refresh_period.0.max(MIN_TAG_PERIOD)
    }

    pub fn scope(&self) -> Scope {
        let (folders, clusters) = (self.flags.vm_folders.clone(), self.flags.vm_clusters.clone());
        Scope { folders, clusters }
    }

    pub fn log_filter(&self) -> String {
        self.flags.log.clone().unwrap_or_else(|| {
            match self.flags.verbosity {
                0..=2 => "info",
                3 | 4 => "info,cloud_controller=debug,vsphere=debug",
                _ => "debug,cloud_controller=trace",
            }
            .to_owned()
        })
    }
}

fn split_ignored(arguments: impl IntoIterator<Item = String>) -> (Vec<String>, Vec<String>) {
    let (mut kept, mut ignored) = (Vec::new(), Vec::new());
    let mut arguments = arguments.into_iter().peekable();
    while let Some(argument) = arguments.next() {
        let name = argument.strip_prefix("--").map(|rest| rest.split('=').next().unwrap_or(rest));
        match IGNORED_FLAGS.iter().find(|(known, _)| Some(*known) == name) {
            None => kept.push(argument),
            Some((known, takes_value)) => {
                if *takes_value && !argument.contains('=') {
                    arguments.next_if(|next| !next.starts_with("--"));
                }
                ignored.push((*known).to_owned());
            }
        }
    }
    (kept, ignored)
}

fn controllers(list: &[String]) -> Result<(bool, bool), SettingsError> {
    let known = |name: &str| NODE.contains(&name) || LIFECYCLE.contains(&name);
    for item in list {
        let name = item.trim_start_matches('-');
        if name != "*" && !known(name) && !UPSTREAM_ONLY.contains(&name) {
            return ControllerSnafu { name }.fail();
        }
    }
    let all = list.iter().any(|item| item == "*");
    let runs = |names: [&str; 2]| {
        let is = |item: &String| names.contains(&item.trim_start_matches('-'));
        let out = list.iter().any(|item| item.starts_with('-') && is(item));
        let named = list.iter().any(|item| !item.starts_with('-') && is(item));
        named || (all && !out)
    };
    Ok((runs(NODE), runs(LIFECYCLE)))
}

fn labels(text: &str) -> Result<BTreeMap<String, String>, SettingsError> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| match part.split_once('=') {
            Some((key, value))
                if !key.is_empty() && (value.is_empty() || crate::zones::is_label_value(value)) =>
            {
                Ok((key.trim().to_owned(), value.trim().to_owned()))
            }
            _ => LabelSnafu { part }.fail(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &str) -> Result<Settings, String> {
        let arguments = std::iter::once("ccm").chain(arguments.split_whitespace());
        Settings::read(arguments.map(str::to_owned)).map_err(|e| e.to_string())
    }

    #[test]
    fn the_arguments_of_the_upstream_manifest_are_accepted() {
        let settings =
            read("--cloud-provider=vsphere --v=2 --cloud-config=/etc/cloud/vsphere.conf").unwrap();
        assert_eq!(settings.flags.cloud_config, Some("/etc/cloud/vsphere.conf".into()));
        assert!(settings.node_controller && settings.lifecycle_controller);
        assert_eq!(settings.log_filter(), "info");
        assert!(settings.ignored_flags.is_empty());
        assert_eq!(settings.address(), Some("0.0.0.0:10258".parse().unwrap()));
        assert_eq!(settings.flags.leader_elect_lease_duration.0.as_secs(), 15);
    }

    #[test]
    fn tags_are_read_at_most_once_per_second() {
        for (flag, seconds) in [("0", 1), ("10ms", 1), ("1s", 1), ("90s", 90)] {
            let settings = read(&format!("--tag-refresh-period={flag}")).unwrap();
            assert_eq!(settings.tag_period().as_secs(), seconds, "{flag}");
        }
    }

    #[test]
    fn flags_without_effect_are_accepted_and_listed() {
        let settings = read(
            "--kube-api-qps=50 --node-status-update-frequency 5m --allocate-node-cidrs --leader-elect=false \
             --use-service-account-credentials --tls-min-version VersionTLS12 --secure-port 0",
        )
        .unwrap();
        assert_eq!(
            settings.ignored_flags,
            [
                "kube-api-qps",
                "node-status-update-frequency",
                "allocate-node-cidrs",
                "use-service-account-credentials",
                "tls-min-version"
            ]
        );
        assert!(!settings.flags.leader_elect);
        assert_eq!(settings.address(), None);
        let settings = read(
            "--disable-http2-serving --tls-curve-preferences X25519 --webhook-disable-http2-serving=true \
             --enable-service-annotation-propagation --vm-operator-api-version v1alpha2 --cluster-ip-family=ipv4 \
             --secure-port 0",
        );
        let settings = settings.unwrap();
        assert_eq!(
            settings.ignored_flags,
            [
                "disable-http2-serving",
                "tls-curve-preferences",
                "webhook-disable-http2-serving",
                "enable-service-annotation-propagation",
                "vm-operator-api-version",
                "cluster-ip-family"
            ]
        );
        assert_eq!(settings.address(), None);
    }

    #[test]
    fn controllers_are_selected_as_in_the_framework() {
        for (list, node, lifecycle) in [
            ("*", true, true),
            ("*,-cloud-node-lifecycle", true, false),
            ("*,-cloud-node-lifecycle-controller", true, false),
            ("cloud-node", true, false),
            ("cloud-node-lifecycle-controller", false, true),
            ("*,-service,-route", true, true),
        ] {
            let settings = read(&format!("--controllers={list}")).unwrap();
            assert_eq!(
                (settings.node_controller, settings.lifecycle_controller),
                (node, lifecycle),
                "{list}"
            );
        }
    }

    #[test]
    fn errors_name_the_cause() {
        for (arguments, why) in [
            ("--cloud-provider=aws", "supports only `vsphere`"),
            ("--controllers=nodes", "unknown controller `nodes`"),
            ("--concurrent-node-syncs=0", "at least 1"),
            ("--node-labels=a", "`a` is not a label"),
            ("--no-such-flag", "unexpected argument"),
            ("--node-deletion-delay=soon", "soon"),
        ] {
            let error = read(arguments).unwrap_err();
            assert!(error.contains(why), "{arguments}: {error}");
        }
    }

    #[test]
    fn reserved_extra_labels_are_ignored() {
        let settings = read("--node-labels=site=a,node.kubernetes.io/x=y,empty=").unwrap();
        let expected = [("empty", ""), ("site", "a")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(settings.extra_labels, expected.into());
    }
}
