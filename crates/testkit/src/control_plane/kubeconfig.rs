//! Users of the API server and their kubeconfigs.

use std::net::SocketAddr;

use kube::{Client, Config, config::Kubeconfig};

use crate::authority::Identity;

/// A user of the API server, with the permissions that RBAC grants.
///
/// It works by impersonation (the admin's certificate and `as`), so that any name and any set of groups also works in the
/// kubeconfig of a Go program.
#[derive(Clone, Debug, Default)]
pub struct User {
    name: Option<String>,
    groups: Vec<String>,
}

impl User {
    /// A cluster admin.
    pub fn admin() -> Self {
        Self::default()
    }

    /// A user with this name and without groups.
    pub fn named(name: &str) -> Self {
        Self { name: Some(name.into()), groups: Vec::new() }
    }

    /// The service account `name` of `namespace`, with the groups that the API server gives it.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self::named(&format!("system:serviceaccount:{namespace}:{name}"))
            .in_group("system:serviceaccounts")
            .in_group(&format!("system:serviceaccounts:{namespace}"))
            .in_group("system:authenticated")
    }

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
    // The value contains everything: no file and no exec plugin can block here.
    let config = futures::executor::block_on(Config::from_custom_kubeconfig(kubeconfig, &options))
        .map_err(kube::Error::InferKubeconfig)?;
    Client::try_from(config)
}

fn base64(text: &str) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.encode(text)
}
