//! `vdoctl images export`

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use ::catalog::{Image, Rewrite};
use clap::Args;
use oci::{Platform, Reference};

use super::{
    Selection,
    connection::{Connection, failed},
    steps::Steps,
};
use crate::{
    failure::{Failure, Outcome, refuse, request},
    options::Global,
    screen::Screen,
    text::count,
};

/// Copy the images that a cluster needs from their registries into one archive.
///
/// The archive is an OCI image layout. It also contains the install manifest and the catalog. An interrupted export
/// continues where it stopped when you run the command again. vdoctl prints the SHA-256 of the archive in the format
/// of sha256sum.
#[derive(Args, Debug)]
pub(crate) struct Export {
    #[command(flatten)]
    selection: Selection,
    /// The archive to write.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Also copy this image.
    #[arg(long, value_name = "IMAGE")]
    image: Vec<String>,
    /// Copy only this platform, such as linux/amd64. Many registries refuse images with missing platforms, so the
    /// default is to copy all of them.
    #[arg(long, value_name = "OS/ARCHITECTURE")]
    platform: Vec<Platform>,
    /// Also put this file into the archive, such as vdoctl itself.
    #[arg(long, value_name = "FILE")]
    include: Vec<PathBuf>,
    /// Copy the images from this mirror, instead of the registries in their names.
    #[arg(long, value_name = "REGISTRY")]
    from: Option<String>,
    /// Copy the operator's image from here, such as the image that you built, instead of the published one. In the
    /// archive it has the published name.
    #[arg(long, value_name = "IMAGE")]
    operator_image: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

impl Export {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        if fs::symlink_metadata(&self.output).is_ok_and(|there| !there.is_file()) {
            return refuse(
                format!(
                    "{} is not a regular file; vdoctl does not overwrite it",
                    self.output.display()
                ),
                "name another file",
            );
        }
        let files = self.files()?;
        let mut images = self.selection.images(global, screen).await?;
        images.extend(self.more_images()?);
        let images: Outcome<Vec<_>> = images.iter().map(|image| self.placed(image)).collect();
        let wanted = oci::Export { images: images?, platforms: self.platform.clone(), files };
        let client = self.connection.client()?;
        let exported = oci::export(&client, &wanted, &self.output, &mut Steps::new(screen)).await;
        let (images, digest) = exported.map_err(failed("exporting the images"))?;
        screen.note(&format!(
            "{} contains {}. At the site: vdoctl images import {} --registry REGISTRY",
            self.output.display(),
            count(images.len(), "image"),
            self.output.display(),
        ));
        screen.print(&format!("{}  {}\n", digest.hex(), self.output.display()))
    }

    fn more_images(&self) -> Outcome<BTreeSet<Image>> {
        self.image.iter().map(|name| parsed(name)).collect()
    }

    /// The name of an image, and where vdoctl finds it.
    fn placed(&self, image: &Image) -> Outcome<(Reference, Reference)> {
        let rewrite = self.from.as_deref().map(Rewrite::mirror).unwrap_or_default();
        let parse = |image: &Image| image.to_string().parse::<Reference>();
        let is_operator = image.to_string() == operator::install::IMAGE;
        let place = match &self.operator_image {
            Some(own) if is_operator => parsed(own)?,
            _ => rewrite.apply(image),
        };
        let pair = parse(image).and_then(|name| Ok((name, parse(&place)?)));
        pair.map_err(failed("reading the names of the images"))
    }

    /// The files that travel with the images.
    fn files(&self) -> Outcome<Vec<(String, Vec<u8>)>> {
        let manifest = operator::install::manifest().map_err(|error| Failure::Other {
            text: "cannot write the install manifest".into(),
            source: error.into(),
        })?;
        let catalog = self.selection.catalog_text()?.bytes;
        let mut files = vec![
            ("install.yaml".to_owned(), manifest.into_bytes()),
            ("catalog.yaml".to_owned(), catalog),
        ];
        for path in &self.include {
            let name = file_name(path)?;
            if files.iter().any(|(known, _)| *known == name) {
                return request(format!("two files are called {name}"), "rename one of them");
            }
            let bytes = fs::read(path).map_err(|source| Failure::File {
                path: path.clone(),
                deed: "read",
                source,
            })?;
            files.push((name, bytes));
        }
        Ok(files)
    }
}

fn parsed(name: &str) -> Outcome<Image> {
    name.parse::<Image>().or_else(|error| request(error.to_string(), ""))
}

fn file_name(path: &Path) -> Outcome<String> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name.is_empty() || name.len() > 90 {
        return request(
            format!("{} has no name that an archive can hold", path.display()),
            "name a file whose name has at most 90 characters",
        );
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        export: Export,
    }

    /// Where these arguments make vdoctl look for an image.
    fn place(arguments: &[&str], image: &str) -> String {
        let arguments = [&["export", "--output", "a.tar"], arguments].concat();
        let export = Command::try_parse_from(arguments).unwrap().export;
        let (name, place) = export.placed(&image.parse().unwrap()).unwrap();
        assert_eq!(name.to_string(), image);
        place.to_string()
    }

    #[test]
    fn an_operator_image_of_the_user_travels_under_the_published_name() {
        let published = operator::install::IMAGE;
        let built = format!("registry.example.com/vdo/vdo@sha256:{}", "ab".repeat(32));
        assert_eq!(place(&[], published), published);
        assert_eq!(place(&["--operator-image", &built], published), built);
        let driver = "registry.k8s.io/csi-vsphere/driver:v3.7.3";
        assert_eq!(place(&["--operator-image", &built], driver), driver);
        let mirrored = ["--operator-image", &built, "--from", "mirror.example.com"];
        assert_eq!(place(&mirrored, published), built);
        assert_eq!(place(&mirrored, driver), "mirror.example.com/csi-vsphere/driver:v3.7.3");
    }
}
