//! The proxy through which the drivers connect to the vCenters: the one of `spec.overrides`, otherwise the cluster's.
//!
//! Environment variables tell the drivers about it, so another proxy restarts their controllers. While VDO cannot read
//! the cluster's proxy, it leaves the drivers as they are: without the proxy they might not reach a vCenter.
//!
//! The URLs of the cluster's proxy can contain a password. No digest is made of it: more people can read digests than
//! pod templates, and could try passwords against them.

use std::borrow::Cow;

use api::{VDOConfigSpec, vdo_config};
use catalog::manifest::Object;
use serde_json::{Value, json};

use super::steps::waiting;
use crate::{
    facts::{ClusterProxy, Facts},
    plan::{DriverPlan, Next},
};

/// Hosts that a driver never reaches through a proxy. The kubelet replaces the variable.
const DIRECT: [&str; 5] =
    ["$(KUBERNETES_SERVICE_HOST)", "localhost", "127.0.0.1", ".svc", ".cluster.local"];

/// The proxy that applies.
pub(super) enum Proxy<'a> {
    Overrides(&'a vdo_config::Proxy),
    Cluster(&'a ClusterProxy),
}

/// The proxy that applies; none if the drivers connect directly.
pub(super) fn applicable(facts: &Facts) -> Option<Proxy<'_>> {
    if let Some(own) = of_overrides(&facts.config.spec) {
        return Some(Proxy::Overrides(own));
    }
    facts.cluster.proxy.as_ref().ok()?.as_ref().map(Proxy::Cluster)
}

fn of_overrides(spec: &VDOConfigSpec) -> Option<&vdo_config::Proxy> {
    spec.overrides.as_ref()?.proxy.as_ref()
}

/// The cluster's proxy for a digest, if it applies; see [`super::rendering::origin`].
pub(super) fn of_cluster(facts: &Facts) -> Option<Value> {
    match applicable(facts)? {
        Proxy::Overrides(_) => None,
        Proxy::Cluster(proxy) => {
            let ClusterProxy { http, https, except, version: _ } = without_login(proxy);
            Some(json!([http, https, except]))
        }
    }
}

/// The cluster's proxy without users and passwords, if it applies. Other changes of its object make no difference.
pub(super) fn address_of_cluster(facts: &Facts) -> Option<Value> {
    match applicable(facts)? {
        Proxy::Overrides(_) => None,
        Proxy::Cluster(proxy) => {
            let nameless = ClusterProxy { version: String::new(), ..proxy.clone() };
            let ClusterProxy { http, https, except, version: _ } = without_login(&nameless);
            Some(json!([http, https, except]))
        }
    }
}

/// The content of a rendered object for its digest.
pub(super) fn for_digest<'o>(facts: &Facts, object: &'o Object) -> Cow<'o, Value> {
    let Some(Proxy::Cluster(proxy)) = applicable(facts) else { return Cow::Borrowed(&object.0) };
    let hidden = without_login(proxy);
    if hidden == *proxy {
        return Cow::Borrowed(&object.0);
    }
    let mut object = object.0.clone();
    let urls = [(&proxy.http, hidden.http), (&proxy.https, hidden.https)]
        .map(|(url, hidden)| (verbatim(url), hidden));
    let containers = object.pointer_mut("/spec/template/spec/containers");
    let containers = containers.and_then(Value::as_array_mut).into_iter().flatten();
    let variables =
        containers.filter_map(|container| container.get_mut("env")?.as_array_mut()).flatten();
    for variable in variables {
        if let Some((_, hidden)) = urls.iter().find(|(url, _)| variable["value"] == **url) {
            variable["value"] = json!(hidden);
        }
    }
    Cow::Owned(object)
}

/// The proxy with the version of its object in place of user and password, so that another password still makes another
/// digest. Any other change of the object makes another digest too.
fn without_login(proxy: &ClusterProxy) -> ClusterProxy {
    let without = |url: &str| match url.rsplit_once('@') {
        Some((login, host)) => {
            let scheme = ["http://", "https://"].into_iter().find(|all| login.starts_with(all));
            format!("{}{}@{host}", scheme.unwrap_or_default(), proxy.version)
        }
        None => url.to_owned(),
    };
    ClusterProxy { http: without(&proxy.http), https: without(&proxy.https), ..proxy.clone() }
}

/// Whether VDO knows the proxy. If not, the plan waits for it.
pub(super) fn is_known(facts: &Facts, plan: &mut DriverPlan) -> bool {
    let Err(reason) = &facts.cluster.proxy else { return true };
    if of_overrides(&facts.config.spec).is_some() {
        return true;
    }
    let message = format!("VDO cannot read the Proxy cluster: {reason}");
    plan.steps.push(waiting("Read the cluster's proxy", Some(message)));
    plan.next = Next::Wait;
    false
}

impl Proxy<'_> {
    /// Sets the proxy in the containers that connect to vCenter: they mount the configuration. The error is a variable
    /// that `spec.overrides` sets twice.
    pub(super) fn apply(&self, workload: &mut Value) -> Result<(), String> {
        let variables = self.variables();
        let containers = &mut workload["spec"]["template"]["spec"]["containers"];
        for container in containers.as_array_mut().into_iter().flatten() {
            let mut mounts = container["volumeMounts"].as_array().into_iter().flatten();
            if !mounts.any(|mount| mount["mountPath"] == "/etc/cloud") {
                continue;
            }
            // The hosts that the cluster reaches without its proxy say nothing about the admin's proxy.
            if matches!(self, Proxy::Cluster(_)) && has_own_proxy(container) {
                continue;
            }
            for (name, value) in &variables {
                match self {
                    Proxy::Cluster(_) if has_variable(container, name) => {}
                    _ => super::overrides::add_variable(container, name, value)?,
                }
            }
        }
        Ok(())
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        match self {
            Proxy::Overrides(proxy) => vec![
                ("HTTPS_PROXY", proxy.url.to_string()),
                ("NO_PROXY", direct(proxy.except.iter().map(String::as_str))),
            ],
            Proxy::Cluster(ClusterProxy { http, https, except, version: _ }) => {
                let urls = [("HTTP_PROXY", http), ("HTTPS_PROXY", https)];
                let urls = urls.into_iter().filter(|(_, url)| !url.is_empty());
                let urls = urls.map(|(name, url)| (name, verbatim(url)));
                let except = verbatim(except);
                let except = except.split(',').map(str::trim).filter(|host| !host.is_empty());
                urls.chain([("NO_PROXY", direct(except))]).collect()
            }
        }
    }
}

/// The hosts to reach without the proxy, each once.
fn direct<'a>(except: impl Iterator<Item = &'a str>) -> String {
    let more = except.filter(|host| !DIRECT.contains(host));
    DIRECT.into_iter().chain(more).collect::<Vec<_>>().join(",")
}

/// A value in which the kubelet replaces nothing, such as a password with a dollar sign.
fn verbatim(value: &str) -> String {
    value.replace('$', "$$")
}

/// Whether the admin set the URL of a proxy for the container.
fn has_own_proxy(container: &Value) -> bool {
    let mut variables = container["env"].as_array().into_iter().flatten();
    variables.any(|variable| {
        let is = |name: &str| {
            variable["name"].as_str().is_some_and(|other| other.eq_ignore_ascii_case(name))
        };
        (is("HTTP_PROXY") || is("HTTPS_PROXY")) && variable["value"] != ""
    })
}

/// Whether the admin set this variable for the container. The drivers read it in lower case too.
fn has_variable(container: &Value, name: &str) -> bool {
    let mut names =
        container["env"].as_array().into_iter().flatten().filter_map(|v| v["name"].as_str());
    names.any(|other| other.eq_ignore_ascii_case(name))
}
