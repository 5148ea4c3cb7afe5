//! The options of the operator's own pods.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use catalog::{Image, manifest::Object};
use clap::Args;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::PodSpec};
use kube::ResourceExt as _;
use operator::install::{
    IMAGE, LISTEN, VERSION, WITHOUT_POD_NETWORK, listen_on_host_network, listen_on_pod_network,
    set_version,
};
use semver::Version;
use serde_json::{Value, json};

use crate::failure::{Outcome, request};

const TEMPLATE: &str = "/spec/template/spec";
const CONTAINER: &str = "/spec/template/spec/containers/0";
/// The operator's environment variable for what it logs.
const LOG: &str = "VDO_LOG";
const PROXY: &str = "HTTPS_PROXY";
const NO_PROXY: &str = "NO_PROXY";
/// The annotation of the operator's Deployment with the resources that the user chose.
const RESOURCES: &str = "vdo.vmware.com/resources";

#[derive(Args, Debug, Default)]
pub(crate) struct PodOptions {
    /// The image of the operator, instead of the published one. Without the flag, an operator from another repository
    /// stays in that repository.
    #[arg(long)]
    image: Option<String>,
    /// The version of the operator, for example to roll back an upgrade: the image with this tag, from the repository of
    /// the installed image. The custom resource definitions and the permissions stay those of vdoctl.
    #[arg(long, conflicts_with = "image")]
    version: Option<Version>,
    /// A Secret in the operator's namespace with the credentials of the registry of its image. You can repeat the
    /// flag.
    #[arg(long = "pull-secret", value_name = "NAME")]
    pull_secrets: Vec<String>,
    /// Create the Secret of --pull-secret from this file, which docker login or podman login wrote. The Secret gets all
    /// passwords in the file.
    #[arg(long, value_name = "FILE", requires = "pull_secrets")]
    pull_secret_file: Option<PathBuf>,
    /// The key of a taint that the operator's pods tolerate, in addition to those of new nodes and control planes.
    /// You can repeat the flag.
    #[arg(long = "tolerate", value_name = "KEY")]
    tolerated: Vec<String>,
    /// Log level of the operator: one level, or levels by module as in info,vsphere=debug.
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// The memory limit of each of the operator's pods, for example 1Gi. An empty value restores the default.
    #[arg(long, value_name = "QUANTITY")]
    memory_limit: Option<String>,
    /// The memory that each pod reserves on its node. An empty value restores the default.
    #[arg(long, value_name = "QUANTITY")]
    memory_request: Option<String>,
    /// The CPU that each pod reserves on its node, for example 50m. An empty value restores the default.
    #[arg(long, value_name = "QUANTITY")]
    cpu_request: Option<String>,
    #[arg(
        long,
        value_name = "URL",
        help = "The proxy through which the operator connects to vCenters and downloads catalogs, for example \
                http://proxy.example.com:3128. An empty value removes the proxy"
    )]
    proxy: Option<String>,
    /// Hosts to which the operator connects without the proxy: names, domains and networks, separated by commas. An
    /// empty value removes them.
    #[arg(long, value_name = "HOSTS")]
    no_proxy: Option<String>,
    /// The port on which the operator serves metrics, instead of 8089.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
}

impl PodOptions {
    /// Adds the options to the operator's Deployment. An option that is not given stays as it is in `running`.
    pub(crate) fn apply(&self, objects: &mut [Object], running: Option<&Deployment>) -> Outcome {
        if let Some(image) = self.image.as_deref()
            && image.parse::<Image>().is_err()
        {
            return request(
                format!("{image} is not an image name with a tag or digest"),
                "use a name like registry.example.com/vdo:0.7.0",
            );
        }
        check_version(self.version.as_ref())?;
        check_proxy(self.proxy.as_deref())?;
        let kept = running.map(RunningOptions::read).unwrap_or_default();
        let kept_image = kept.own_image();
        let pull_secrets = given_or(&self.pull_secrets, kept.pull_secrets);
        let tolerated = given_or(&self.tolerated, kept.tolerated);
        let variables = [
            (LOG, self.log_level.clone().or(kept.log_level)),
            (PROXY, self.proxy.clone().or(kept.proxy)),
            (NO_PROXY, self.no_proxy.clone().or(kept.no_proxy)),
        ];
        let resources = self.resources(kept.resources);
        let port = self.port.or(kept.port);
        for object in objects.iter_mut().filter(|object| is_deployment(object)) {
            set_resources(&mut object.0, &resources);
            if let Some(version) = &self.version {
                set_version(object, &version.to_string());
            }
            let Some(pod) = object.0.pointer_mut(TEMPLATE) else { continue };
            if !pull_secrets.is_empty() {
                let names = pull_secrets.iter().map(|name| json!({"name": name}));
                pod["imagePullSecrets"] = names.collect();
            }
            add_tolerations(pod, &tolerated);
            let is_on_host = pod["hostNetwork"] == true;
            let listen = if is_on_host { listen_on_host_network } else { listen_on_pod_network };
            let Some(container) = object.0.pointer_mut(CONTAINER) else { continue };
            let published = container["image"].as_str().unwrap_or_default();
            let installed = kept.image.as_deref().unwrap_or(published);
            let chosen = self.version.as_ref().map(|version| tagged(installed, version));
            // The image in a user's manifest wins over the installed one.
            let kept = kept_image.clone().filter(|_| published == IMAGE);
            if let Some(image) = self.image.clone().or(chosen).or(kept) {
                container["image"] = image.into();
            }
            for (name, value) in &variables {
                set_variable(container, name, value.as_deref());
            }
            if let Some(port) = port {
                set_variable(container, LISTEN, Some(&listen(port)));
            }
        }
        Ok(())
    }

    /// The resources that differ from those in the manifest.
    fn resources(&self, mut kept: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let given = [
            ("limits.memory", &self.memory_limit),
            ("requests.memory", &self.memory_request),
            ("requests.cpu", &self.cpu_request),
        ];
        for (name, quantity) in given {
            if let Some(quantity) = quantity {
                kept.insert(name.to_owned(), quantity.clone());
            }
        }
        kept.retain(|_, quantity| !quantity.is_empty());
        kept
    }

    /// The Secret of --pull-secret-file. The drivers' images and the catalog can be in other registries than the operator's
    /// image, so it has all passwords of the file. Logins without a password are left out: others than that of the
    /// operator's registry are no mistake.
    pub(crate) fn pull_secret(&self, objects: &[Object]) -> Outcome<Option<Object>> {
        let (Some(path), [name, ..]) = (&self.pull_secret_file, self.pull_secrets.as_slice())
        else {
            return Ok(None);
        };
        let shown = path.display();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                let help = "use the file that docker login or podman login wrote";
                return request(format!("{shown} cannot be read: {error}"), help);
            }
        };
        let parsed: Value = serde_json::from_str(&text).unwrap_or_default();
        let Some(logins) = parsed["auths"].as_object().filter(|auths| !auths.is_empty()) else {
            return request(
                format!("{shown} contains no credentials: it has no field auths"),
                "use the file that docker login or podman login wrote, usually ~/.docker/config.json",
            );
        };
        let registry = registry_of(objects);
        let (complete, incomplete): (Vec<_>, Vec<_>) =
            logins.iter().partition(|(_, entry)| !entry["auth"].is_null());
        let needed = incomplete.iter().find(|(login, _)| host_of(login) == registry);
        if let Some((login, _)) = needed.or(incomplete.first().filter(|_| complete.is_empty())) {
            return request(
                format!("{shown} has no password for {login}: it is in a credential helper"),
                "log in again with a file of its own: podman login --authfile FILE REGISTRY",
            );
        }
        let logins: serde_json::Map<String, Value> =
            complete.into_iter().map(|(name, entry)| (name.clone(), entry.clone())).collect();
        Ok(Some(Object(json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
            "metadata": {"name": name, "namespace": api::NAMESPACE},
            "stringData": {".dockerconfigjson": json!({"auths": logins}).to_string()},
        }))))
    }
}

/// The registry of the image in the operator's Deployment.
fn registry_of(objects: &[Object]) -> String {
    let mut deployments = objects.iter().filter(|object| is_deployment(object));
    let image = deployments.find_map(|object| object.0.pointer(CONTAINER)?["image"].as_str());
    host_of(&name_of(image.unwrap_or(IMAGE)))
}

/// The host of an image, or of a login: `https://registry.example.com/v2/`, `registry.example.com:5000` and
/// `registry.example.com/vdo` are forms of logins. An image without a host comes from Docker Hub.
fn host_of(name: &str) -> String {
    let name = name.split_once("://").map_or(name, |(_, rest)| rest);
    let host = name.split('/').next().unwrap_or_default();
    match host {
        "index.docker.io" => "docker.io".to_owned(),
        host if host.contains(['.', ':']) || host == "localhost" => host.to_owned(),
        _ => "docker.io".to_owned(),
    }
}

/// Whether it is a Deployment. The API server refuses one that cannot be read.
fn is_deployment(object: &Object) -> bool {
    let read = || serde_json::from_value::<Deployment>(object.0.clone());
    object.kind() == "Deployment" && read().is_ok()
}

/// The image of a version in the repository of another image.
fn tagged(image: &str, version: &Version) -> String {
    format!("{}:{version}", name_of(image))
}

/// An image without its tag and its digest.
fn name_of(image: &str) -> String {
    image.parse::<Image>().map_or_else(|_| image.to_owned(), |image| image.name)
}

/// A later version can need objects that this vdoctl does not know.
fn check_version(version: Option<&Version>) -> Outcome {
    let own = env!("CARGO_PKG_VERSION").parse::<Version>().ok();
    match version {
        Some(version) if own.as_ref().is_some_and(|own| version > own) => request(
            format!("version {version} is newer than this vdoctl"),
            "use the vdoctl of that version",
        ),
        _ => Ok(()),
    }
}

/// The options of the running operator.
#[derive(Debug, Default, PartialEq)]
struct RunningOptions {
    image: Option<String>,
    version: Option<String>,
    pull_secrets: Vec<String>,
    tolerated: Vec<String>,
    log_level: Option<String>,
    proxy: Option<String>,
    no_proxy: Option<String>,
    port: Option<u16>,
    resources: BTreeMap<String, String>,
}

impl RunningOptions {
    fn read(deployment: &Deployment) -> Self {
        let template = deployment.spec.as_ref().map(|spec| &spec.template);
        let Some(pod) = template.and_then(|template| template.spec.as_ref()) else {
            return Self::default();
        };
        let labels = template.and_then(|template| template.metadata.as_ref()?.labels.as_ref());
        let pull_secrets =
            pod.image_pull_secrets.iter().flatten().map(|s| s.name.clone()).collect();
        let listen = variable(pod, LISTEN).and_then(|address| address.parse::<SocketAddr>().ok());
        let resources = deployment.annotations().get(RESOURCES);
        let resources = resources.and_then(|text| serde_json::from_str(text).ok());
        Self {
            image: pod.containers.first().and_then(|container| container.image.clone()),
            version: labels.and_then(|labels| labels.get(VERSION).cloned()),
            pull_secrets,
            tolerated: tolerated(pod),
            log_level: variable(pod, LOG),
            proxy: variable(pod, PROXY),
            no_proxy: variable(pod, NO_PROXY),
            port: listen.map(|listen| listen.port()),
            resources: resources.unwrap_or_default(),
        }
    }
}

impl RunningOptions {
    /// The image for vdoctl's own version, if the user has installed the operator from another repository than the
    /// published one. An image of that version stays as it is, because its tag can be any text.
    fn own_image(&self) -> Option<String> {
        let installed = self.image.as_ref()?;
        let own = env!("CARGO_PKG_VERSION").parse::<Version>().ok()?;
        match () {
            () if name_of(installed) == name_of(IMAGE) => None,
            () if self.version.as_deref() == Some(&own.to_string()) => Some(installed.clone()),
            () => Some(tagged(installed, &own)),
        }
    }
}

/// The keys of all taints that the pod tolerates whatever their value, on either network.
fn tolerated(pod: &PodSpec) -> Vec<String> {
    let keys = pod.tolerations.iter().flatten().filter_map(|toleration| toleration.key.clone());
    keys.filter(|key| !WITHOUT_POD_NETWORK.contains(&key.as_str())).collect()
}

fn variable(pod: &PodSpec, name: &str) -> Option<String> {
    let mut variables = pod.containers.first()?.env.iter().flatten();
    variables.find(|variable| variable.name == name)?.value.clone()
}

/// Sets an environment variable of a container, or removes it if the value is empty. A variable keeps its place: another
/// order would replace the pods.
fn set_variable(container: &mut Value, name: &str, value: Option<&str>) {
    let (Some(value), Some(variables)) = (value, container["env"].as_array_mut()) else { return };
    if value.is_empty() {
        variables.retain(|variable| variable["name"] != name);
        return;
    }
    let set = json!({"name": name, "value": value});
    match variables.iter_mut().find(|variable| variable["name"] == name) {
        Some(known) => *known = set,
        None => variables.push(set),
    }
}

/// Changes the resources of a Deployment, and records them: the next deployment keeps what the user chose, and takes
/// the rest from its manifest.
fn set_resources(deployment: &mut Value, resources: &BTreeMap<String, String>) {
    if resources.is_empty() {
        return;
    }
    deployment["metadata"]["annotations"][RESOURCES] = json!(json!(resources).to_string());
    let Some(container) = deployment.pointer_mut(CONTAINER) else { return };
    for (name, quantity) in resources {
        if let Some((kind, resource)) = name.split_once('.') {
            container["resources"][kind][resource] = json!(quantity);
        }
    }
}

/// Rejects a proxy that the operator cannot use, and one with a password.
fn check_proxy(proxy: Option<&str>) -> Outcome {
    let Some(proxy) = proxy.filter(|proxy| !proxy.is_empty()) else { return Ok(()) };
    let address = ["http://", "https://"].iter().find_map(|scheme| proxy.strip_prefix(scheme));
    match address {
        // The message must not repeat the password.
        Some(address) if address.contains('@') => request(
            "the proxy URL contains a user: everybody who can read the Deployment could read its password",
            "use a proxy that allows the operator without a password",
        ),
        Some(address) if !address.trim_matches('/').is_empty() => Ok(()),
        _ => request(
            format!("{proxy} is not the URL of a proxy"),
            "use a URL like http://proxy.example.com:3128",
        ),
    }
}

fn given_or(given: &[String], kept: Vec<String>) -> Vec<String> {
    if given.is_empty() { kept } else { given.to_vec() }
}

fn add_tolerations(pod: &mut Value, keys: &[String]) {
    let Some(tolerations) = pod["tolerations"].as_array_mut() else { return };
    for key in keys {
        if !tolerations.iter().any(|toleration| toleration["key"] == key.as_str()) {
            tolerations.push(json!({"key": key, "operator": "Exists"}));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> PodOptions {
        let some = |text: &str| Some(text.to_owned());
        PodOptions {
            pull_secrets: vec!["registry".into()],
            tolerated: vec!["dedicated".into()],
            log_level: some("debug"),
            memory_limit: some("1Gi"),
            cpu_request: some("50m"),
            proxy: some("http://proxy.example.com:3128"),
            no_proxy: some("10.0.0.0/8,.example.com"),
            port: Some(9443),
            ..PodOptions::default()
        }
    }

    fn none() -> PodOptions {
        PodOptions::default()
    }

    fn deployment(objects: &[Object]) -> Deployment {
        let found = objects.iter().find(|object| object.kind() == "Deployment").unwrap();
        serde_json::from_value(found.0.clone()).unwrap()
    }

    #[test]
    fn options_stay_when_the_operator_is_deployed_again_without_them() {
        let mut first = operator::install::objects();
        options().apply(&mut first, None).unwrap();
        let running = deployment(&first);
        let kept = RunningOptions::read(&running);
        assert_eq!(kept.pull_secrets, ["registry"]);
        assert!(kept.tolerated.contains(&"dedicated".to_owned()));
        assert_eq!(kept.log_level.as_deref(), Some("debug"));
        let pod = running.spec.clone().unwrap().template.spec.unwrap();
        let resources = json!(pod.containers[0].resources);
        assert_eq!(resources["limits"]["memory"], "1Gi");
        assert_eq!(resources["requests"]["cpu"], "50m");
        assert_eq!(resources["requests"]["memory"], "144Mi", "the default");
        assert_eq!(variable(&pod, PROXY).as_deref(), Some("http://proxy.example.com:3128"));
        assert_eq!(variable(&pod, LISTEN).as_deref(), Some("127.0.0.1:9443"));
        let mut again = operator::install::objects();
        none().apply(&mut again, Some(&running)).unwrap();
        assert_eq!(deployment(&again), running);
        let mut plain = operator::install::objects();
        none().apply(&mut plain, None).unwrap();
        assert_eq!(plain, operator::install::objects(), "without options nothing changes");
        let logging = PodOptions { log_level: Some("debug".into()), ..none() };
        logging.apply(&mut plain, None).unwrap();
        let mut again = operator::install::objects();
        none().apply(&mut again, Some(&deployment(&plain))).unwrap();
        assert_eq!(again, plain, "not even the order, which would replace the pods");
    }

    fn image(objects: &[Object]) -> String {
        deployment(objects).spec.unwrap().template.spec.unwrap().containers[0]
            .image
            .clone()
            .unwrap()
    }

    /// The image after the operator is deployed again without any option.
    fn image_of_second(first: &[Object]) -> String {
        let mut again = operator::install::objects();
        none().apply(&mut again, Some(&deployment(first))).unwrap();
        image(&again)
    }

    #[test]
    fn an_operator_from_another_registry_stays_there() {
        let own = env!("CARGO_PKG_VERSION");
        let mut first = operator::install::objects();
        let mirrored = "mirror.example.com/vdo:reviewed";
        PodOptions { image: Some(mirrored.into()), ..none() }.apply(&mut first, None).unwrap();
        assert_eq!(image_of_second(&first), mirrored);
        // An earlier vdoctl deployed it.
        for object in &mut first {
            set_version(object, "0.6.9");
        }
        assert_eq!(image_of_second(&first), format!("mirror.example.com/vdo:{own}"));
        let mut manifest = operator::install::objects();
        let theirs = PodOptions { image: Some("other.example.com/vdo:1".into()), ..none() };
        theirs.apply(&mut manifest, None).unwrap();
        none().apply(&mut manifest, Some(&deployment(&first))).unwrap();
        assert_eq!(image(&manifest), "other.example.com/vdo:1", "the user's manifest wins");
        let mut published = operator::install::objects();
        let pinned = format!("{IMAGE}@sha256:{}", "0".repeat(64));
        PodOptions { image: Some(pinned), ..none() }.apply(&mut published, None).unwrap();
        assert_eq!(image_of_second(&published), IMAGE);
    }

    #[test]
    fn a_login_without_a_password_is_refused_only_for_the_registry_of_the_image() {
        let file = std::env::temp_dir().join(format!("vdoctl-logins-{}", std::process::id()));
        let mut objects = operator::install::objects();
        let options = PodOptions {
            image: Some("registry.example.com:5000/vdo:1".into()),
            pull_secrets: vec!["registry".into()],
            pull_secret_file: Some(file.clone()),
            ..none()
        };
        options.apply(&mut objects, None).unwrap();
        let secret = |auths: &Value| {
            std::fs::write(&file, json!({"auths": auths}).to_string()).unwrap();
            options.pull_secret(&objects)
        };
        let logins = json!({"registry.example.com:5000": {"auth": "b25l"}, "drivers.example.com": {"auth": "dHdv"}});
        let mut more = logins.clone();
        more["other.example.com"] = json!({});
        let stored = secret(&more).unwrap().unwrap().0;
        let text = stored["stringData"][".dockerconfigjson"].as_str().unwrap();
        let stored: Value = serde_json::from_str(text).unwrap();
        assert_eq!(stored, json!({"auths": logins}));
        for name in ["registry.example.com:5000", "https://registry.example.com:5000/v2/"] {
            let helper = json!({name: {}, "drivers.example.com": {"auth": "dHdv"}});
            let refused = format!("{:?}", secret(&helper).unwrap_err());
            assert!(refused.contains("credential helper"), "{refused}");
        }
        assert!(secret(&json!({"other.example.com": {}})).is_err(), "no password is left");
        std::fs::remove_file(file).unwrap();
        assert_eq!(host_of("https://index.docker.io/v1/"), host_of("acme/vdo"));
    }

    #[test]
    fn an_empty_value_restores_the_default() {
        let mut first = operator::install::objects();
        options().apply(&mut first, None).unwrap();
        let empty = Some(String::new());
        let restoring = PodOptions {
            memory_limit: empty.clone(),
            cpu_request: empty.clone(),
            proxy: empty.clone(),
            no_proxy: empty,
            ..PodOptions::default()
        };
        let mut again = operator::install::objects();
        restoring.apply(&mut again, Some(&deployment(&first))).unwrap();
        let kept = RunningOptions::read(&deployment(&again));
        assert_eq!((kept.proxy, kept.no_proxy), (None, None));
        assert!(kept.resources.is_empty());
        assert_eq!(kept.port, Some(9443), "the other options stay");
    }

    #[test]
    fn on_the_pod_network_the_metrics_port_is_that_of_the_pod() {
        let mut objects = operator::install::objects();
        operator::install::use_pod_network(&mut objects);
        options().apply(&mut objects, None).unwrap();
        let pod = deployment(&objects).spec.unwrap().template.spec.unwrap();
        assert_eq!(variable(&pod, LISTEN).as_deref(), Some("[::]:9443"));
        // After a switch to a way that uses the host network, a declared port would be one of the node.
        assert_eq!(pod.containers[0].ports, None);
    }

    #[test]
    fn a_proxy_with_a_password_is_refused_without_the_password() {
        for (proxy, reason) in [
            ("http://vdo:hunter2@proxy:3128", "contains a user"),
            ("proxy:3128", "is not the URL of a proxy"),
            ("http://", "is not the URL of a proxy"),
        ] {
            let refused = format!("{:?}", check_proxy(Some(proxy)).unwrap_err());
            assert!(refused.contains(reason) && !refused.contains("hunter2"), "{refused}");
        }
        assert!(check_proxy(Some("http://proxy.example.com:3128")).is_ok());
    }

    #[test]
    fn a_version_is_a_tag_of_the_repository_of_the_running_image() {
        let version = |text: &str| Some(text.parse().unwrap());
        let mut first = operator::install::objects();
        let mirrored = PodOptions {
            image: Some(format!("mirror.example.com/vdo@sha256:{}", "0".repeat(64))),
            ..none()
        };
        mirrored.apply(&mut first, None).unwrap();
        let mut again = operator::install::objects();
        let earlier = PodOptions { version: version("0.6.9"), ..none() };
        earlier.apply(&mut again, Some(&deployment(&first))).unwrap();
        let template = deployment(&again).spec.unwrap().template;
        let image = template.spec.unwrap().containers[0].image.clone();
        assert_eq!(image.as_deref(), Some("mirror.example.com/vdo:0.6.9"));
        let labels = template.metadata.unwrap().labels.unwrap();
        assert_eq!(labels["app.kubernetes.io/version"], "0.6.9");
        let mut new = operator::install::objects();
        earlier.apply(&mut new, None).unwrap();
        let image =
            deployment(&new).spec.unwrap().template.spec.unwrap().containers[0].image.clone();
        assert_eq!(image.as_deref(), Some("ghcr.io/vmware-tanzu/vdo:0.6.9"));
        let later = PodOptions { version: version("99.0.0"), ..none() };
        let refused = format!("{:?}", later.apply(&mut new, None).unwrap_err());
        assert!(refused.contains("is newer than this vdoctl"), "{refused}");
    }
}
