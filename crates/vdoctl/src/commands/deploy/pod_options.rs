//! The options of the operator's own pods.

use std::path::PathBuf;

use catalog::manifest::Object;
use clap::Args;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::PodSpec};
use serde_json::{Value, json};

use crate::failure::{Outcome, request};

const TEMPLATE: &str = "/spec/template/spec";
const CONTAINER: &str = "/spec/template/spec/containers/0";
/// The operator's environment variable for what it logs.
const LOG: &str = "VDO_LOG";

#[derive(Args, Debug)]
pub(crate) struct PodOptions {
    /// The image of the operator, instead of the published one.
    #[arg(long)]
    image: Option<String>,
    /// A Secret in the operator's namespace with the credentials of the registry of its image. You can repeat the
    /// flag.
    #[arg(long = "pull-secret", value_name = "NAME")]
    pull_secrets: Vec<String>,
    /// Create the Secret of --pull-secret from this file, which docker login or podman login wrote.
    #[arg(long, value_name = "FILE", requires = "pull_secrets")]
    pull_secret_file: Option<PathBuf>,
    /// The key of a taint that the operator's pods tolerate, in addition to those of new nodes and control planes.
    /// You can repeat the flag.
    #[arg(long = "tolerate", value_name = "KEY")]
    tolerated: Vec<String>,
    /// Log level of the operator: one level, or levels by module as in info,vsphere=debug.
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

impl PodOptions {
    /// Adds the options to the operator's Deployment. An option that is not given stays as it is in `running`, except
    /// for the image.
    pub(crate) fn apply(&self, objects: &mut [Object], running: Option<&Deployment>) -> Outcome {
        if let Some(image) = self.image.as_deref()
            && image.parse::<catalog::Image>().is_err()
        {
            return request(
                format!("{image} is not an image name with a tag or digest"),
                "use a name like registry.example.com/vdo:0.7.0",
            );
        }
        let kept = running.map(RunningOptions::read).unwrap_or_default();
        let pull_secrets = given_or(&self.pull_secrets, kept.pull_secrets);
        let tolerated = given_or(&self.tolerated, kept.tolerated);
        let log_level = self.log_level.clone().or(kept.log_level);
        for object in objects.iter_mut().filter(|object| object.kind() == "Deployment") {
            let Some(pod) = object.0.pointer_mut(TEMPLATE) else { continue };
            if !pull_secrets.is_empty() {
                let names = pull_secrets.iter().map(|name| json!({"name": name}));
                pod["imagePullSecrets"] = names.collect();
            }
            add_tolerations(pod, &tolerated);
            let Some(container) = object.0.pointer_mut(CONTAINER) else { continue };
            if let Some(image) = &self.image {
                container["image"] = image.as_str().into();
            }
            if let (Some(level), Some(env)) = (&log_level, container["env"].as_array_mut()) {
                env.retain(|variable| variable["name"] != LOG);
                env.push(json!({"name": LOG, "value": level}));
            }
        }
        Ok(())
    }

    /// The Secret of --pull-secret-file.
    pub(crate) fn pull_secret(&self) -> Outcome<Option<Object>> {
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
        let Some(registries) = parsed["auths"].as_object().filter(|auths| !auths.is_empty()) else {
            return request(
                format!("{shown} contains no credentials: it has no field auths"),
                "use the file that docker login or podman login wrote, usually ~/.docker/config.json",
            );
        };
        if let Some((registry, _)) = registries.iter().find(|(_, entry)| entry["auth"].is_null()) {
            return request(
                format!("{shown} has no password for {registry}: it is in a credential helper"),
                "log in again with a file of its own: podman login --authfile FILE REGISTRY",
            );
        }
        Ok(Some(Object(json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
            "metadata": {"name": name, "namespace": api::NAMESPACE},
            "stringData": {".dockerconfigjson": text},
        }))))
    }
}

/// The options of the running operator.
#[derive(Debug, Default, PartialEq)]
struct RunningOptions {
    pull_secrets: Vec<String>,
    tolerated: Vec<String>,
    log_level: Option<String>,
}

impl RunningOptions {
    fn read(deployment: &Deployment) -> Self {
        let Some(pod) = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref())
        else {
            return Self::default();
        };
        let pull_secrets =
            pod.image_pull_secrets.iter().flatten().map(|s| s.name.clone()).collect();
        Self { pull_secrets, tolerated: tolerated(pod), log_level: log_level(pod) }
    }
}

/// The keys of all taints that the pod tolerates whatever their value.
fn tolerated(pod: &PodSpec) -> Vec<String> {
    let tolerations = pod.tolerations.iter().flatten();
    tolerations.filter_map(|toleration| toleration.key.clone()).collect()
}

fn log_level(pod: &PodSpec) -> Option<String> {
    let mut variables = pod.containers.first()?.env.iter().flatten();
    variables.find(|variable| variable.name == LOG)?.value.clone()
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
        PodOptions {
            image: None,
            pull_secrets: vec!["registry".into()],
            pull_secret_file: None,
            tolerated: vec!["dedicated".into()],
            log_level: Some("debug".into()),
        }
    }

    fn none() -> PodOptions {
        let (pull_secrets, tolerated) = (Vec::new(), Vec::new());
        PodOptions { image: None, pull_secrets, pull_secret_file: None, tolerated, log_level: None }
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
        let mut again = operator::install::objects();
        none().apply(&mut again, Some(&running)).unwrap();
        assert_eq!(deployment(&again), running);
        let mut plain = operator::install::objects();
        none().apply(&mut plain, None).unwrap();
        assert_eq!(plain, operator::install::objects(), "without options nothing changes");
    }
}
