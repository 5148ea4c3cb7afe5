//! `vdoctl images import`

use std::path::PathBuf;

use clap::Args;
use oci::{Archive, ImportedImage, Target};

use super::{
    compare_with_catalog,
    connection::{Connection, failed},
    operator_images,
    steps::Steps,
};
use crate::{failure::Outcome, progress::ProgressStep, screen::Screen, text::count};

/// Copy the images of an archive into the registry of your site.
///
/// vdoctl checks the whole archive before it copies anything. It skips what the registry has already, so you can run
/// the command again after an interruption. It prints the part of the VDOConfig that names the registry.
#[derive(Args, Debug)]
pub(crate) struct Import {
    /// The archive that vdoctl images export wrote.
    #[arg(value_name = "FILE")]
    archive: PathBuf,
    /// The registry, with a path prefix if it has one, such as registry.example.com/vsphere.
    #[arg(long, value_name = "REGISTRY")]
    registry: String,
    #[command(flatten)]
    connection: Connection,
}

impl Import {
    pub(crate) async fn run(&self, screen: &Screen) -> Outcome {
        let target =
            Target::parse(&self.registry).map_err(failed("reading the name of the registry"))?;
        let client = self.connection.client()?;
        let archive = checked(&self.archive, screen)?;
        let imported = oci::import(&client, &archive, &target, &mut Steps::new(screen)).await;
        let imported = imported.map_err(failed("importing the images"))?;
        if let Some(image) = operator(&imported) {
            screen.note(&format!("To install VDO from there: vdoctl deploy --image {image}"));
        }
        screen.note("For the images of the drivers, add to the VDOConfig:");
        screen.print(&format!("spec:\n  images:\n    registry: {}\n", target.as_str()))
    }
}

/// Opens an archive and checks all of it.
pub(super) fn checked(path: &std::path::Path, screen: &Screen) -> Outcome<Archive> {
    let step = ProgressStep::begin(screen, format!("Check {}", path.display()));
    let archive = Archive::open(path).map_err(failed("checking the archive"))?;
    compare_with_catalog(&archive)?;
    step.done(&count(archive.images().len(), "image"));
    Ok(archive)
}

/// The image of the operator, by tag and digest.
fn operator(imported: &[ImportedImage]) -> Option<String> {
    let operator = operator_images().into_iter().next()?;
    let (_, path) = operator.split_once('/')?;
    let is_operator = |image: &&ImportedImage| image.name.tagged().ends_with(&format!("/{path}"));
    imported.iter().find(is_operator).map(|image| image.name.to_string())
}
