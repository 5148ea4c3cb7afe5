//! `vdoctl version`

use clap::Args;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use serde_json::json;

use crate::{
    BUILD,
    cluster::Cluster,
    failure::{Doing as _, Outcome},
    options::{Global, OutputFormat},
    screen::Screen,
    text::Table,
};

/// Show the version of vdoctl and of the operator.
#[derive(Args, Debug)]
pub(crate) struct Version {
    /// Show only the version of vdoctl. This needs no cluster.
    #[arg(long)]
    client: bool,
    /// The output format.
    #[arg(long, short, value_enum)]
    output: Option<OutputFormat>,
}

impl Version {
    pub(crate) fn is_local(&self) -> bool {
        self.client
    }

    pub(crate) fn local(&self, screen: &Screen) -> Outcome {
        self.show(None, screen)
    }

    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        match cluster_version(global).await {
            Ok(cluster) => self.show(Some(cluster), screen),
            Err(failure) => {
                // The version of vdoctl is known even without a cluster.
                if self.output.is_none() {
                    self.show(None, screen)?;
                }
                Err(failure)
            }
        }
    }

    fn show(&self, cluster: Option<(Option<String>, String)>, screen: &Screen) -> Outcome {
        let asked = cluster.is_some();
        let (image, kubernetes) = cluster.unzip();
        let operator = image.flatten();
        let operator = operator.as_deref().map(version_of);
        if let Some(form) = self.output {
            let mut all = json!({"client": {"version": BUILD.version, "commit": BUILD.commit}});
            if asked {
                all["operator"] = json!(operator);
                all["kubernetes"] = json!(kubernetes);
            }
            return screen.print(&super::formatted(form, &all)?);
        }
        let mut table = Table::plain();
        table.row(["vdoctl", &format!("{} ({})", BUILD.version, BUILD.commit)]);
        if asked {
            table.row(["operator", operator.unwrap_or("not installed")]);
            table.row(["Kubernetes", kubernetes.as_deref().unwrap_or_default()]);
        }
        screen.print(&table.render(screen.width))
    }
}

/// The version of an image: its tag, also if the image has a digest.
fn version_of(image: &str) -> &str {
    let tagged = image.split('@').next().unwrap_or(image);
    let name = tagged.rsplit_once('/').map_or(tagged, |(_, name)| name);
    name.split_once(':').map_or(image, |(_, tag)| tag)
}

/// The operator's image, if it is installed, and the Kubernetes version.
async fn cluster_version(global: &Global) -> Outcome<(Option<String>, String)> {
    let cluster = Cluster::connect(global).await?;
    let deployments = Api::<Deployment>::namespaced(cluster.client.clone(), &cluster.namespace);
    let deployment = deployments.get_opt("vdo").await.doing("reading the operator's Deployment")?;
    let image = deployment.and_then(|deployment| {
        let pod = deployment.spec?.template.spec?;
        pod.containers.into_iter().next()?.image
    });
    let version = cluster.client.apiserver_version().await.doing("asking for the version")?;
    Ok((image, version.git_version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_an_image_is_its_tag() {
        let digest = "sha256:b845f4bbc34d70bd84e92f8021f47704df1de3dbabbd8289969651360b39d605";
        assert_eq!(version_of("ghcr.io/vmware-tanzu/vdo:0.7.0"), "0.7.0");
        assert_eq!(version_of(&format!("localhost:5000/vdo:0.7.0@{digest}")), "0.7.0");
        let without_tag = format!("localhost:5000/vdo@{digest}");
        assert_eq!(version_of(&without_tag), without_tag, "its tag is not known");
    }
}
