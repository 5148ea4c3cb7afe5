//! The packages in which VDO ships, generated from the objects of `deploy/install.yaml`.
//!
//! ```text
//!   operator::install ──┬─► chart (values, templates) ──► deploy/chart
//!   operator::alerts    │     └── slots: template text at places of an object
//!   api::crds           ├─► kustomize ──────────────────► deploy/kustomize
//!                       ├─► olm (descriptors) ──────────► deploy/olm
//!                       └─► gitops ─────────────────────► deploy/gitops
//!
//!   cargo's metadata ─────► sbom ─┐
//!   archives of vdoctl ───► krew ─┴──► files of a release (make release)
//! ```
//!
//! Everything here is a pure function. `make generate` writes the files, and CI fails if a committed file differs.

mod chart;
mod error;
mod file;
mod gitops;
mod krew;
mod kustomize;
mod olm;
mod release;
mod sbom;
mod slots;

pub use error::Error;
pub use file::File;
pub use krew::{PluginArchive, manifest as krew_manifest};
pub use release::Release;
pub use sbom::{SystemPackage, bill_of_materials};

/// Every generated file of a checkout, in order of the paths.
pub fn files() -> Result<Vec<File>, Error> {
    files_of(&Release::default())
}

/// Every generated file of a release, in order of the paths.
pub fn files_of(release: &Release) -> Result<Vec<File>, Error> {
    let mut files =
        [chart::files(release)?, gitops::files()?, kustomize::files()?, olm::files(release)?]
            .concat();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
