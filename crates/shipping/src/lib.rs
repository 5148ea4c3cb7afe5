//! The packages in which VDO ships, generated from the objects of `deploy/install.yaml`.
//!
//! ```text
//!   operator::install ──┬─► chart (values, templates) ──► deploy/chart
//!   operator::alerts    │     └── slots: template text at places of an object
//!   api::crds           └─► kustomize ──────────────────► deploy/kustomize
//! ```
//!
//! Everything here is a pure function. `make generate` writes the files, and CI fails if a committed file differs.

mod chart;
mod error;
mod file;
mod kustomize;
mod slots;

pub use error::Error;
pub use file::File;

/// Every generated file, in order of the paths.
pub fn files() -> Result<Vec<File>, Error> {
    let mut files = [chart::files()?, kustomize::files()?].concat();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
