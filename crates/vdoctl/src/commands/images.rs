//! `vdoctl images`: list the images that a cluster needs, and copy them to a site without Internet access.

pub(crate) mod connection;
mod export;
mod import;
mod steps;
mod verify;

use std::collections::{BTreeMap, BTreeSet};

use ::catalog::{
    Catalog, Driver, Image, Release, Rewrite, manifest::images_to_mirror, read, tool,
    tool::DriverName, trust::Bundle,
};
use clap::{Args, Subcommand};
use operator::install;
use plan::decide;
use semver::Version;

use crate::{
    failure::{Failure, Outcome, request},
    options::Global,
    screen::Screen,
};

/// List the images that a cluster needs, and copy them to another registry.
///
/// The list contains the images of the planned releases and of the operator, one per line. With --all or
/// --driver, vdoctl needs no cluster.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Images {
    #[command(subcommand)]
    command: Option<ImagesCommand>,
    #[command(flatten)]
    selection: Selection,
    /// Print the name in this mirror next to each image, for a tool that copies images.
    #[arg(long, value_name = "REGISTRY")]
    mirror: Option<String>,
}

#[derive(Debug, Subcommand)]
enum ImagesCommand {
    Export(export::Export),
    Import(import::Import),
    Verify(verify::Verify),
}

/// Which images.
#[derive(Args, Debug)]
struct Selection {
    /// The images of all releases in the catalog.
    #[arg(long)]
    all: bool,
    /// Only the images of this driver.
    #[arg(long)]
    driver: Option<DriverName>,
    /// Only the images of this version.
    #[arg(long, requires = "driver", value_name = "VERSION")]
    version: Option<Version>,
    /// The catalog to read, instead of the built-in one. Only with --all or --driver.
    #[arg(long, value_name = "FILE")]
    catalog: Option<String>,
}

impl Images {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        match &self.command {
            Some(ImagesCommand::Export(task)) => return task.run(global, screen).await,
            Some(ImagesCommand::Import(task)) => return task.run(screen).await,
            Some(ImagesCommand::Verify(task)) => return task.run(screen).await,
            None => {}
        }
        let images = self.selection.images(global, screen).await?;
        let lines: Outcome<Vec<String>> = images.iter().map(|image| self.line(image)).collect();
        screen.print(&(lines?.join("\n") + "\n"))
    }

    fn line(&self, image: &Image) -> Outcome<String> {
        let Some(mirror) = &self.mirror else { return Ok(image.to_string()) };
        if format!("{mirror}/image:tag").parse::<Image>().is_err() || mirror.contains("//") {
            return request(
                format!("{mirror} is not a registry"),
                "use a name like registry.example.com/mirror, without https://",
            );
        }
        Ok(format!("{image} {}", Rewrite::mirror(mirror).apply(image)))
    }
}

impl Selection {
    /// The images of the selected releases, and of the operator.
    async fn images(&self, global: &Global, screen: &Screen) -> Outcome<BTreeSet<Image>> {
        let mut names = operator_images();
        if self.all || self.driver.is_some() {
            let catalog = self.catalog_text()?;
            names.extend(self.of_catalog(&catalog.parsed)?.iter().map(Image::to_string));
        } else if self.catalog.is_some() {
            return request("--catalog needs --all or --driver", "");
        } else {
            let facts = super::plan::facts(global, screen).await?;
            for driver in decide(&facts).drivers {
                let version = driver.target.as_deref().or(driver.installed.as_deref());
                names.extend(super::plan::images(&facts.catalog, driver.driver, version));
            }
        }
        let parsed = names.iter().map(|name| match name.parse::<Image>() {
            Ok(image) => Ok(image),
            Err(_) => request(format!("{name} is not an image"), ""),
        });
        parsed.collect()
    }

    fn of_catalog(&self, catalog: &Catalog) -> Outcome<Vec<Image>> {
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
        Ok(releases.into_iter().flat_map(images_to_mirror).collect())
    }

    fn catalog_text(&self) -> Outcome<CatalogText> {
        let file = self.catalog.as_deref().unwrap_or("embedded");
        let other = |source: Box<dyn std::error::Error + Send + Sync>| Failure::Other {
            text: format!("{file} cannot be used"),
            source,
        };
        let bytes = tool::bytes(file).map_err(|error| other(error.to_string().into()))?;
        if Bundle::is_bundle(&bytes) {
            return request(
                format!("{file} is a signed bundle"),
                "name the catalog from which it was signed",
            );
        }
        super::catalog::proven(file, &bytes)?;
        let parsed = read(&bytes).map_err(|error| other(error.into()))?;
        Ok(CatalogText { parsed, bytes })
    }
}

/// A catalog, and the text it was read from.
struct CatalogText {
    parsed: Catalog,
    bytes: Vec<u8>,
}

fn operator_images() -> BTreeSet<String> {
    let objects = install::objects();
    let images = objects
        .iter()
        .filter_map(|object| object.0.pointer("/spec/template/spec/containers/0/image"));
    images.filter_map(|image| image.as_str().map(str::to_owned)).collect()
}

/// Refuses an archive in which an image has another digest than in the built-in catalog.
fn compare_with_catalog(archive: &oci::Archive) -> Outcome {
    let releases = ::catalog::embedded().releases.iter();
    let pinned: BTreeMap<String, String> = releases
        .flat_map(images_to_mirror)
        .filter_map(|image| Some((image.tagged(), image.digest?)))
        .collect();
    for image in archive.images() {
        let name = image.name.tagged();
        if let Some(digest) = pinned.get(&name)
            && *digest != image.digest.to_string()
        {
            return crate::failure::refuse(
                format!(
                    "{name} in the archive has the digest {}, but the catalog of vdoctl lists {digest}",
                    image.digest
                ),
                "the archive does not contain the publisher's image: do not use it",
            );
        }
    }
    Ok(())
}
