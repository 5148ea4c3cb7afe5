//! Files and arguments of the control plane's programs.

use std::path::Path;

use rcgen::KeyPair;
use serde_json::json;
use snafu::ResultExt;

use crate::{
    authority::Authority,
    error::{CertificateSnafu, Error},
    workdir::Workdir,
};

/// The log has the bodies of status writes, so that tests can tell whether something changed.
const AUDIT_POLICY: &str = r#"{"apiVersion":"audit.k8s.io/v1","kind":"Policy","omitStages":["RequestReceived"],"rules":[{"level":"Request","verbs":["patch","update"],"resources":[{"group":"vdo.vmware.com","resources":["vdoconfigs/status","vspherecloudconfigs/status","compatibilityconfigs/status"]}]},{"level":"Metadata"}]}"#;

/// Writes certificates, the service-account key and the audit policy into `workdir`.
pub(super) fn write_files(authority: &Authority, workdir: &Workdir) -> Result<(), Error> {
    let names = ["localhost", "127.0.0.1", "10.96.0.1", "kubernetes", "kubernetes.default.svc"];
    let server = authority.server(&names)?;
    let service_accounts =
        KeyPair::generate().context(CertificateSnafu { name: "service accounts" })?;
    workdir.write("ca.crt", authority.certificate())?;
    workdir.write("server.crt", &server.certificate)?;
    workdir.write("server.key", &server.key)?;
    workdir.write("service-accounts.key", service_accounts.serialize_pem())?;
    workdir.write("service-accounts.pub", service_accounts.public_key_pem())?;
    workdir.write("audit-policy.json", AUDIT_POLICY)?;
    Ok(())
}

pub(super) fn etcd(workdir: &Workdir, client_port: u16, peer_port: u16) -> Vec<String> {
    vec![
        flag_path("--data-dir", &workdir.path().join("etcd")),
        format!("--listen-client-urls=http://127.0.0.1:{client_port}"),
        format!("--advertise-client-urls=http://127.0.0.1:{client_port}"),
        format!("--listen-peer-urls=http://127.0.0.1:{peer_port}"),
        // Nothing has to survive a power failure.
        "--unsafe-no-fsync=true".into(),
        "--log-level=warn".into(),
    ]
}

pub(super) fn api_server(
    workdir: &Workdir,
    port: u16,
    etcd_port: u16,
    controllers: bool,
    audit: bool,
    nodes: bool,
) -> Vec<String> {
    let file = |name: &str| workdir.path().join(name);
    let mut arguments = vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        flag_path("--cert-dir", workdir.path()),
        flag_path("--tls-cert-file", &file("server.crt")),
        flag_path("--tls-private-key-file", &file("server.key")),
        flag_path("--client-ca-file", &file("ca.crt")),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".into(),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
        "--allow-privileged=true".into(),
        // The address type of simulated kubelets that serve logs; no real kubelet has it.
        "--kubelet-preferred-address-types=ExternalDNS,InternalIP,Hostname".into(),
        format!("--service-account-issuer=https://127.0.0.1:{port}/"),
        flag_path("--service-account-key-file", &file("service-accounts.pub")),
        flag_path("--service-account-signing-key-file", &file("service-accounts.key")),
    ];
    if !controllers {
        // Without a controller-manager, nothing creates the default service accounts that this plugin requires.
        arguments.push("--disable-admission-plugins=ServiceAccount".into());
    }
    if audit {
        arguments.push(flag_path("--audit-policy-file", &file("audit-policy.json")));
        arguments.push(flag_path("--audit-log-path", &file(&format!("audit-{port}.log"))));
    }
    if nodes {
        arguments.push(flag_path("--egress-selector-config-file", &file("egress.json")));
        arguments.push(flag_path("--kubelet-client-certificate", &file("kubelet-client.crt")));
        arguments.push(flag_path("--kubelet-client-key", &file("kubelet-client.key")));
    }
    arguments
}

/// The files for connections to real kubelets: a certificate of the API server, and the proxy on `socket`.
pub(super) fn write_node_files(
    authority: &Authority,
    workdir: &Workdir,
    socket: &Path,
) -> Result<(), Error> {
    let client = authority.client("kube-apiserver-kubelet-client", "system:masters")?;
    workdir.write("kubelet-client.crt", &client.certificate)?;
    workdir.write("kubelet-client.key", &client.key)?;
    let egress = json!({
        "apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": {
            "proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": socket}},
        }}],
    });
    workdir.write("egress.json", egress.to_string()).map(drop)
}

pub(super) fn controller_manager(workdir: &Workdir, kubeconfig: &Path, port: u16) -> Vec<String> {
    vec![
        flag_path("--kubeconfig", kubeconfig),
        flag_path("--authentication-kubeconfig", kubeconfig),
        flag_path("--authorization-kubeconfig", kubeconfig),
        "--leader-elect=false".into(),
        flag_path(
            "--service-account-private-key-file",
            &workdir.path().join("service-accounts.key"),
        ),
        flag_path("--root-ca-file", &workdir.path().join("ca.crt")),
        "--use-service-account-credentials=true".into(),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        // The defaults are for production clusters; these values keep a thousand nodes fast.
        "--kube-api-qps=500".into(),
        "--kube-api-burst=1000".into(),
        "--concurrent-deployment-syncs=10".into(),
        "--concurrent-daemonset-syncs=10".into(),
    ]
}

pub(super) fn scheduler(kubeconfig: &Path, port: u16) -> Vec<String> {
    vec![
        flag_path("--kubeconfig", kubeconfig),
        flag_path("--authentication-kubeconfig", kubeconfig),
        flag_path("--authorization-kubeconfig", kubeconfig),
        "--leader-elect=false".into(),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        "--kube-api-qps=500".into(),
        "--kube-api-burst=1000".into(),
    ]
}

fn flag_path(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}
