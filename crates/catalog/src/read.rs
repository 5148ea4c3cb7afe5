//! Reads a catalog, or a compatibility matrix of the Go VDO, from YAML or JSON.

use crate::{
    matrix,
    model::Catalog,
    parse::{self, ReadError},
};

pub fn read(bytes: &[u8]) -> Result<Catalog, ReadError> {
    let document = parse::document(bytes)?;
    if matrix::is_matrix(&document) {
        return matrix::read(document).map_err(|error| ReadError::Matrix { source: error.into() });
    }
    parse::catalog(&document)
}
