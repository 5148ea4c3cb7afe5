//! `vdoctl images`

use std::collections::BTreeSet;

use ::catalog::{Driver, Image, Release, Rewrite, manifest::images_to_mirror, tool::DriverName};
use clap::Args;
use operator::install;
use plan::decide;
use semver::Version;

use crate::{
    failure::{Outcome, request},
    options::Global,
    screen::Screen,
};

/// List the images that a cluster needs, for mirroring.
///
/// The list contains the images of the planned releases and of the operator, one per line. With --all or
/// --driver, vdoctl needs no cluster.
#[derive(Args, Debug)]
pub(crate) struct Images {
    /// List the images of all releases in the catalog.
    #[arg(long)]
    all: bool,
    /// List only the images of this driver.
    #[arg(long)]
    driver: Option<DriverName>,
    /// List only the images of this version.
    #[arg(long, requires = "driver", value_name = "VERSION")]
    version: Option<Version>,
    /// Print the name in this mirror next to each image, for a tool that copies images.
    #[arg(long, value_name = "REGISTRY")]
    mirror: Option<String>,
    /// Not supported: vdoctl lists images, other tools copy them.
    #[arg(long, value_name = "FILE", hide = true)]
    export: Option<std::path::PathBuf>,
}

impl Images {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        if self.export.is_some() {
            return request(
                "vdoctl does not copy images",
                "pass the list to a tool that copies images: vdoctl images | xargs -n1 skopeo ...; with --mirror REGISTRY \
                 each line also contains the new name",
            );
        }
        let mut images = BTreeSet::new();
        if self.all || self.driver.is_some() {
            images.extend(self.catalog_images()?);
        } else {
            let facts = super::plan::facts(global, screen).await?;
            for driver in decide(&facts).drivers {
                let version = driver.target.as_deref().or(driver.installed.as_deref());
                images.extend(super::plan::images(&facts.catalog, driver.driver, version));
            }
        }
        images.extend(operator_images());
        let lines: Outcome<Vec<String>> = images.iter().map(|image| self.line(image)).collect();
        screen.print(&(lines?.join("\n") + "\n"))
    }

    fn catalog_images(&self) -> Outcome<Vec<String>> {
        let catalog = ::catalog::embedded();
        let wanted = |release: &&Release| {
            self.driver.is_none_or(|driver| Driver::from(driver) == release.driver)
                && self.version.as_ref().is_none_or(|version| *version == release.version)
        };
        let releases: Vec<&Release> = catalog.releases.iter().filter(wanted).collect();
        if releases.is_empty() {
            return request(
                "the catalog has no such release",
                "vdoctl catalog list shows all releases",
            );
        }
        Ok(releases.into_iter().flat_map(images_to_mirror).map(|image| image.to_string()).collect())
    }

    fn line(&self, image: &str) -> Outcome<String> {
        let Some(mirror) = &self.mirror else { return Ok(image.to_owned()) };
        if format!("{mirror}/image:tag").parse::<Image>().is_err() || mirror.contains("//") {
            return request(
                format!("{mirror} is not a registry"),
                "use a name like registry.example.com/mirror, without https://",
            );
        }
        match image.parse::<Image>() {
            Ok(parsed) => Ok(format!("{image} {}", Rewrite::mirror(mirror).apply(&parsed))),
            Err(_) => request(format!("{image} is not an image"), ""),
        }
    }
}

fn operator_images() -> Vec<String> {
    let objects = install::objects();
    let images = objects
        .iter()
        .filter_map(|object| object.0.pointer("/spec/template/spec/containers/0/image"));
    images.filter_map(|image| image.as_str().map(str::to_owned)).collect()
}
