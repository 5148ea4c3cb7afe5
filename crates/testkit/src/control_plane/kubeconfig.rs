//! Who talks to the API server, and the kubeconfig that says so.

use std::net::SocketAddr;

use kube::{Client, Config, config::Kubeconfig};

use crate::authority::Identity;

/// An identity towards the API server. RBAC decides what it may do.
///
/// The API server is told by impersonation (the admin's certificate and `as`), so that any name and
/// any set of groups is one line, also in the kubeconfig of a Go program.
#[derive(Clone, Debug, Default)]
pub struct User {
    name: Option<String>,
    groups: Vec<String>,
}

impl User {
    /// Somebody who may do everything.
    pub fn admin() -> Self {
        Self::default()
    }

    /// A user of this name, in no group of ours.
    pub fn named(name: &str) -> Self {
        Self { name: Some(name.into()), groups: Vec::new() }
    }

    /// The service account `name` of `namespace`, in the groups the API server gives it.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self::named(&format!("system:serviceaccount:{namespace}:{name}"))
            .in_group("system:serviceaccounts")
            .in_group(&format!("system:serviceaccounts:{namespace}"))
            .in_group("system:authenticated")
    }

    /// Also in this group.
    #[must_use]
    pub fn in_group(mut self, group: &str) -> Self {
        self.groups.push(group.into());
        self
    }

    pub(super) fn file_name(&self) -> String {
        let groups = self.groups.iter().map(String::as_str);
        let parts: Vec<&str> = self.name.as_deref().into_iter().chain(groups).collect();
        if parts.is_empty() { "admin".into() } else { parts.join("+").replace([':', '/'], "-") }
    }
}

pub(super) fn render(
    user: &User,
    address: SocketAddr,
    authority: &str,
    admin: &Identity,
) -> Kubeconfig {
    let mut auth = serde_json::json!({
        "client-certificate-data": base64(&admin.certificate),
        "client-key-data": base64(&admin.key),
    });
    if let Some(name) = &user.name {
        auth["as"] = name.as_str().into();
        auth["as-groups"] = user.groups.clone().into();
    }
    serde_json::from_value(serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "vdo",
        "clusters": [{"name": "vdo", "cluster": {
            "server": format!("https://{address}"),
            // A proxy in front of the API server has another address than the certificate.
            "tls-server-name": "localhost",
            "certificate-authority-data": base64(authority),
        }}],
        "users": [{"name": "vdo", "user": auth}],
        "contexts": [{"name": "vdo", "context": {"cluster": "vdo", "user": "vdo"}}],
    }))
    .expect("a kubeconfig of ours has the right shape")
}

pub(super) fn client(kubeconfig: Kubeconfig) -> Result<Client, kube::Error> {
    let options = kube::config::KubeConfigOptions::default();
    // Everything is in the value: no file and no exec plugin makes this wait.
    let config = futures::executor::block_on(Config::from_custom_kubeconfig(kubeconfig, &options))
        .map_err(kube::Error::InferKubeconfig)?;
    Client::try_from(config)
}

fn base64(text: &str) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.encode(text)
}
