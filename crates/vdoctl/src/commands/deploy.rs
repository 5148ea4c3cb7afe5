//! `vdoctl deploy`.

mod host_network;
mod metrics_port;
mod pod_options;
mod pod_security;

use std::{collections::BTreeSet, time::Duration};

use catalog::{Image, manifest::Object};
use clap::Args;
use k8s_openapi::{
    api::core::v1::Namespace,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::Api;
use operator::{
    install::{self, Allowed},
    writing::{self, Comparison},
};
use tokio::time::{Instant, sleep};

use self::{
    host_network::{HostNetwork, Network},
    pod_options::PodOptions,
};
use crate::{
    cluster::Cluster,
    critical,
    document::File,
    failure::{self, Doing as _, Failure, Outcome, refuse, request},
    options::Global,
    progress::{PACE, ProgressStep},
    rollout::{Rollout, Trouble},
    screen::Screen,
    text::{CARE, DIM, GOOD, Table, count, paint},
};

/// Install or upgrade the operator.
///
/// vdoctl contains the manifest and downloads nothing. You can run the command again at any time.
#[derive(Args, Debug)]
pub(crate) struct Deploy {
    /// Deploy this manifest instead of the built-in one: a file, - for standard input, or a URL.
    #[arg(long, value_name = "FILE")]
    spec: Option<String>,
    #[command(flatten)]
    pod: PodOptions,
    /// Whether the operator's pods use the host network. With auto, they use it only if no node has a pod network yet.
    /// Without the flag, an installed operator keeps its network, and a new one gets auto.
    #[arg(long, value_name = "WHEN", value_enum)]
    host_network: Option<HostNetwork>,
    /// A namespace in which the operator is allowed to adopt drivers with any name. In kube-system and
    /// vmware-system-csi it can adopt drivers with known names without this flag. You can repeat the flag. The
    /// operator keeps namespaces that you allowed before.
    #[arg(long = "driver-namespace", value_name = "NAMESPACE")]
    driver_namespaces: Vec<String>,
    /// Show what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print the manifest instead of applying it. This needs no cluster.
    #[arg(long, short, value_enum)]
    output: Option<crate::options::OutputFormat>,
    /// Do not wait until the operator runs.
    #[arg(long)]
    no_wait: bool,
    /// How long to wait, in seconds.
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    timeout: u64,
}

impl Deploy {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        let mut allowed_namespaces: BTreeSet<String> =
            self.driver_namespaces.iter().cloned().collect();
        let output = Allowed { namespaces: allowed_namespaces.clone(), ..Allowed::default() };
        let Manifest { mut objects, file } = self.manifest(global, &output).await?;
        if let Some(form) = self.output {
            Network::by_choice(self.host_network).apply(&mut objects);
            self.pod.apply(&mut objects, None)?;
            let secret = self.pod.pull_secret(&objects)?;
            add_pull_secret(&mut objects, secret);
            let texts = objects.iter().map(|object| super::formatted(form, &object.0));
            let texts = texts.collect::<Outcome<Vec<String>>>()?;
            return screen.print(&texts.join("---\n"));
        }
        let cluster = Cluster::connect(global).await?;
        let version =
            cluster.client.apiserver_version().await.doing("asking the cluster who it is")?;
        let namespaces = Api::<Namespace>::all(cluster.client.clone());
        for namespace in &allowed_namespaces {
            if namespaces.get_opt(namespace).await.doing("reading a namespace")?.is_none() {
                return request(
                    format!("there is no namespace {namespace}"),
                    "omit it, or correct its name",
                );
            }
        }
        allowed_namespaces.extend(super::driver_namespaces(&cluster).await?);
        if self.spec.is_none() {
            let allowed = super::allowed(&cluster, allowed_namespaces).await?;
            objects = self.manifest(global, &allowed).await?.objects;
        }
        let running = super::running_operator(&cluster).await?;
        // Without the flag, the network in the user's manifest stays.
        let network = match (&self.spec, self.host_network) {
            (Some(_), None) => None,
            (_, choice) => Some(Network::find(choice, running.as_ref(), &cluster).await?),
        };
        if let Some(network) = network {
            network.apply(&mut objects);
        }
        self.pod.apply(&mut objects, running.as_ref())?;
        let secret = self.pod.pull_secret(&objects)?;
        add_pull_secret(&mut objects, secret);
        // A dry run of all objects comes first, so that a rejection leaves the cluster unchanged.
        let refused = |error| refused(error, file.as_ref());
        let compared = writing::compare(&cluster.client, objects.clone()).await.map_err(refused)?;
        if self.dry_run {
            return preview(&compared, screen);
        }
        let deferred = pod_security::deferred(&mut objects, running.as_ref(), &cluster).await?;
        let step = ProgressStep::begin(screen, format!("Apply {}", count(objects.len(), "object")));
        if let Err(failure) = critical::section(self.apply(&cluster, &objects)).await {
            step.failed("");
            return Err(failure);
        }
        for definition in objects.iter().filter(|object| object.kind() == DEFINITION) {
            self.established(&cluster, definition.name()).await?;
        }
        let network = network.map(|network| format!(", {network}")).unwrap_or_default();
        step.done(&format!("Kubernetes {}{network}", version.git_version));
        if let Some(conflict) = metrics_port::conflict(&cluster, &objects).await? {
            screen.note(&conflict);
        }
        if !self.no_wait {
            self.wait(&cluster, &objects, screen).await?;
        }
        match deferred {
            Some(_) if self.no_wait => screen.note(
                "The operator's namespace still accepts pods on the host network. When the operator runs on \
                 the pod network,\nrun vdoctl deploy again to restrict the namespace.",
            ),
            Some(namespace) => {
                critical::section(self.apply(&cluster, &[namespace])).await?;
            }
            None => {}
        }
        if let Some(note) = same_tag(&compared) {
            screen.note(&note);
        }
        if cluster.own::<api::VDOConfig>("VDOConfigs").await?.is_empty() {
            screen.note("\nNext: vdoctl configure");
        } else {
            screen.note("\nNext: vdoctl status");
        }
        Ok(())
    }

    async fn manifest(&self, global: &Global, allowed: &Allowed) -> Outcome<Manifest> {
        let manifest = match &self.spec {
            None => Manifest { objects: install::objects_for(allowed), file: None },
            Some(_) if !self.driver_namespaces.is_empty() => {
                return request(
                    "--driver-namespace cannot be used with --spec: the manifest itself contains the allowed namespaces",
                    "omit --spec or --driver-namespace",
                );
            }
            Some(spec) => fetched(spec, Duration::from_secs(global.request_timeout)).await?,
        };
        if global.namespace != api::NAMESPACE {
            return request(
                format!("the operator always runs in the namespace {}", api::NAMESPACE),
                "omit --namespace",
            );
        }
        Ok(manifest)
    }

    async fn apply(&self, cluster: &Cluster, objects: &[Object]) -> Outcome {
        for (number, object) in objects.iter().enumerate() {
            writing::apply(&cluster.client, object).await.map_err(written)?;
            if defines_one(object, &objects[number + 1..]) {
                self.established(cluster, object.name()).await?;
            }
        }
        Ok(())
    }

    async fn established(&self, cluster: &Cluster, name: &str) -> Outcome {
        let definitions = Api::<CustomResourceDefinition>::all(cluster.client.clone());
        let end = Instant::now() + Duration::from_secs(self.timeout);
        loop {
            let definition = match definitions.get(name).await.doing("reading a definition") {
                // The API server may restart.
                Err(failure) if failure.is_temporary() && Instant::now() < end => None,
                other => Some(other?),
            };
            let conditions = definition.and_then(|definition| definition.status?.conditions);
            let served = conditions.into_iter().flatten();
            if served.into_iter().any(|c| c.type_ == "Established" && c.status == "True") {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(self.late(format!("{name} was not served")));
            }
            sleep(PACE).await;
        }
    }

    async fn wait(&self, cluster: &Cluster, objects: &[Object], screen: &Screen) -> Outcome {
        let Some(operator) = objects.iter().find(|object| object.kind() == "Deployment") else {
            return Ok(());
        };
        let mut rollout =
            Rollout::for_deployment(&cluster.client, operator.namespace(), operator.name());
        let mut step = ProgressStep::begin(screen, "Start the operator");
        let end = Instant::now() + Duration::from_secs(self.timeout);
        loop {
            let progress = match rollout.progress().await {
                // The API server may restart.
                Err(failure) if failure.is_temporary() && Instant::now() < end => {
                    step.waits("the API server does not answer");
                    sleep(PACE).await;
                    continue;
                }
                other => other?,
            };
            let pods = format!("{} of {} pods", progress.ready, progress.wanted);
            if progress.complete {
                step.done(&pods);
                if let Some(other) = progress.other_image {
                    screen.note(&format!("{other}, and the Deployment names another digest"));
                }
                return Ok(());
            }
            let late = Instant::now() > end;
            match progress.trouble {
                Some(trouble) if late || rollout.is_stuck() => {
                    step.failed(&pods);
                    return Err(stuck(&trouble, progress.old_runs));
                }
                Some(trouble) => step.waits(&format!("{pods}; {}", trouble.text)),
                None if late => {
                    step.failed(&pods);
                    return Err(self.late("the operator did not start".into()));
                }
                None => step.waits(&pods),
            }
            sleep(PACE).await;
        }
    }

    fn late(&self, what: String) -> Failure {
        Failure::TooLate {
            what,
            seconds: self.timeout,
            help: format!(
                "to see what the pods wait for: kubectl --namespace {} describe pods",
                api::NAMESPACE
            ),
        }
    }
}

/// A note that no pod was replaced, if the image has only a tag: the registry can serve another image under it now. The
/// tags of the published image never move.
fn same_tag(compared: &[Comparison]) -> Option<String> {
    let operator = compared.iter().find(|one| one.id.kind == "Deployment")?;
    let template = "/spec/template";
    let before = operator.before.as_ref()?.pointer(template)?;
    if operator.after.pointer(template) != Some(before) {
        return None;
    }
    let parsed = |image: &str| image.parse::<Image>().ok();
    let image = parsed(before.pointer("/spec/containers/0/image")?.as_str()?)?;
    if image.digest.is_some() || parsed(install::IMAGE).is_some_and(|own| own.name == image.name) {
        return None;
    }
    Some(format!(
        "No pod was replaced: the Deployment is the same. To run an image that was rebuilt under the same tag,\n\
         name it by digest: vdoctl deploy --image {}@sha256:DIGEST",
        image.name
    ))
}

/// The Secret comes before the Deployment that uses it, and after its namespace.
fn add_pull_secret(objects: &mut Vec<Object>, secret: Option<Object>) {
    let place = objects.iter().position(|object| object.kind() == "Deployment");
    if let Some(secret) = secret {
        objects.insert(place.unwrap_or(objects.len()), secret);
    }
}

fn stuck(trouble: &Trouble, old_runs: bool) -> Failure {
    let meanwhile = if old_runs { "; the previous version keeps running" } else { "" };
    let help = if trouble.needs_pull_secret() {
        "run vdoctl deploy again with the credentials of the registry: --pull-secret NAME \
         --pull-secret-file FILE, where FILE is what podman login --authfile FILE wrote"
            .into()
    } else {
        format!(
            "correct the cause and run vdoctl deploy again; kubectl --namespace {} describe pods \
             shows more",
            api::NAMESPACE
        )
    };
    Failure::Refused {
        text: format!("the operator does not start: {}{meanwhile}", trouble.text),
        help,
    }
}

struct Manifest {
    objects: Vec<Object>,
    /// The user's file, with locations.
    file: Option<File>,
}

const DEFINITION: &str = "CustomResourceDefinition";

/// Whether the object is the CRD of a later object.
fn defines_one(object: &Object, later: &[Object]) -> bool {
    let kind = object.0["spec"]["names"]["kind"].as_str();
    object.kind() == DEFINITION && later.iter().any(|later| Some(later.kind()) == kind)
}

fn preview(compared: &[Comparison], screen: &Screen) -> Outcome {
    let mut table = Table::new(&["CHANGE", "OBJECT"]);
    for one in compared {
        let word = match () {
            () if one.is_new() => paint(GOOD, "created"),
            () if one.is_same() => paint(DIM, "unchanged"),
            () => paint(CARE, "changed"),
        };
        table.row([word, one.id.to_string()]);
    }
    screen.print(&table.render(screen.width))?;
    screen.note("\nNothing was changed.");
    Ok(())
}

/// An error for a rejected dry run. It does not name the missing permission: the user probably lacks others too,
/// and some rejections name permissions of the operator.
fn refused(error: writing::Error, file: Option<&File>) -> Failure {
    let placed = file.and_then(|file| match &error {
        writing::Error::UnknownKind { object } => file.unknown_kind(object),
        writing::Error::Compare { object, source } if !failure::is_forbidden(source) => {
            let kube::Error::Api(status) = source.as_ref() else { return None };
            file.refused(object, status)
        }
        _ => None,
    });
    if let Some(placed) = placed {
        return placed;
    }
    match error {
        writing::Error::Compare { object, source } if failure::is_forbidden(&source) => {
            Failure::Forbidden {
                doing: format!("applying {object}"),
                help:
                    "the installation needs the permissions of a cluster-admin: use a context that has them, \
                       or give the output of vdoctl deploy -o yaml to a cluster-admin"
                        .into(),
                source,
            }
        }
        other => written(other),
    }
}

pub(crate) fn written(error: writing::Error) -> Failure {
    match error {
        writing::Error::Compare { object, source } => {
            Failure::Api { doing: format!("checking {object}"), source }
        }
        writing::Error::Write { object, left, source } => Failure::Unwritten {
            object: object.to_string(),
            left: left.iter().map(ToString::to_string).collect(),
            source,
        },
        writing::Error::Apply { object, source } => {
            Failure::Unapplied { object: object.to_string(), source }
        }
        other @ writing::Error::UnknownKind { .. } => {
            Failure::Other { text: "nothing was changed".into(), source: other.into() }
        }
    }
}

/// Reads the user's manifest.
async fn fetched(spec: &str, timeout: Duration) -> Outcome<Manifest> {
    let path = spec.strip_prefix("file://").unwrap_or(spec);
    let file = if path.starts_with("http://") || path.starts_with("https://") {
        let failed = |source: reqwest::Error| Failure::Other {
            text: format!("{spec} cannot be fetched"),
            source: source.into(),
        };
        let client = reqwest::Client::builder().timeout(timeout).build().map_err(failed)?;
        let answer = client.get(path).send().await.and_then(reqwest::Response::error_for_status);
        File::parse(spec, answer.map_err(failed)?.text().await.map_err(failed)?)?
    } else {
        File::open(path.as_ref())?
    };
    for document in &file.documents {
        for (path, text) in [
            (&["apiVersion"][..], "this object has no apiVersion"),
            (&["kind"], "this object has no kind"),
            (&["metadata", "name"], "this object has no name"),
        ] {
            let value = path.iter().fold(&document.value, |value, step| &value[*step]);
            if !value.is_string() {
                let help = format!("add {}", path.join("."));
                let path: Vec<String> = path.iter().map(|step| (*step).to_owned()).collect();
                return Err(file.wrong(document, &path, true, text, &help));
            }
        }
    }
    let objects: Vec<Object> = file.documents.iter().map(|d| Object(d.value.clone())).collect();
    if objects.is_empty() {
        return refuse(format!("{spec} contains no objects"), "it must be a manifest in YAML");
    }
    Ok(Manifest { objects, file: Some(file) })
}

#[cfg(test)]
mod tests {
    use plan::ObjectId;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_image_that_may_have_been_rebuilt_under_its_tag_is_noted() {
        let note = |before: Option<&str>, after: &str| {
            let deployment = |image: &str| {
                let pod = json!({"containers": [{"name": "vdo", "image": image}]});
                json!({
                    "apiVersion": "apps/v1", "kind": "Deployment",
                    "metadata": {"name": "vdo", "namespace": api::NAMESPACE},
                    "spec": {"template": {"spec": pod}},
                })
            };
            let wanted = Object(deployment(after));
            let id = ObjectId::from_object(&wanted);
            let before = before.map(deployment);
            same_tag(&[Comparison { id, after: wanted.0.clone(), wanted, before }])
        };
        let tagged = "registry.example.com/vdo:0.7.0";
        let pinned = format!("registry.example.com/vdo@sha256:{}", "ab".repeat(32));
        let noted = note(Some(tagged), tagged).unwrap();
        assert!(noted.ends_with("--image registry.example.com/vdo@sha256:DIGEST"), "{noted}");
        assert_eq!(note(None, tagged), None, "a new operator");
        assert_eq!(note(Some("registry.example.com/vdo:0.6.9"), tagged), None);
        assert_eq!(note(Some(&pinned), &pinned), None);
        assert_eq!(note(Some(install::IMAGE), install::IMAGE), None, "it never moves");
    }
}
