//! `vdoctl images verify`

use std::path::PathBuf;

use clap::Args;
use oci::{Target, verify_registry};

use super::{
    connection::{Connection, failed},
    import::checked,
    steps::Steps,
};
use crate::{
    exit::Exit,
    failure::{Failure, Outcome},
    screen::Screen,
    text::{count, wrap},
};

/// Check an archive of images, and whether a registry has the same images.
///
/// vdoctl compares every file in the archive with its checksum and its digest, and the images with the catalog. With
/// --registry, it also compares the images in the registry with those in the archive.
#[derive(Args, Debug)]
pub(crate) struct Verify {
    /// The archive that vdoctl images export wrote.
    #[arg(value_name = "FILE")]
    archive: PathBuf,
    /// Also check this registry, with a path prefix if it has one.
    #[arg(long, value_name = "REGISTRY")]
    registry: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

impl Verify {
    pub(crate) async fn run(&self, screen: &Screen) -> Outcome {
        let registry = self.registry.as_deref().map(Target::parse).transpose();
        let registry = registry.map_err(failed("reading the name of the registry"))?;
        let archive = checked(&self.archive, screen)?;
        let mut lines = String::new();
        for image in archive.images() {
            lines.extend([image.name.to_string().as_str(), "\n"]);
        }
        let files: Vec<&str> = archive.files().collect();
        let images = count(archive.images().len(), "image");
        screen.print(&lines)?;
        screen.note(&format!("The archive has {images} and the files {}.", files.join(", ")));
        let Some(target) = registry else { return Ok(()) };
        let client = self.connection.client()?;
        let problems = verify_registry(&client, &archive, &target, &mut Steps::new(screen)).await;
        let problems = problems.map_err(failed("checking the registry"))?;
        if problems.is_empty() {
            screen.note(&format!("{} has the same {images}.", target.as_str()));
            return Ok(());
        }
        for problem in &problems {
            let text = format!("{}: {}", problem.image, problem.text);
            screen.complain(&wrap("✖ ", &text, screen.side_width));
        }
        screen.note(&format!(
            "To copy the missing images: vdoctl images import {} --registry {}",
            self.archive.display(),
            target.as_str()
        ));
        Err(Failure::Verdict { exit: Exit::Failure })
    }
}
