//! The namespaces that can contain objects of the drivers: the usual two, and the namespaces of adopted
//! drivers. The process sets them once at its start, because it then starts the watches of each namespace.

use std::{collections::BTreeSet, sync::OnceLock};

use plan::names::USUAL_NAMESPACES;

/// Namespaces of adopted drivers, in addition to the usual ones.
static MORE: OnceLock<BTreeSet<String>> = OnceLock::new();

/// Allows drivers in these namespaces too, for as long as the process runs. Call it once, before the operator
/// reads anything.
pub fn also(mut namespaces: BTreeSet<String>) {
    namespaces.retain(|namespace| !USUAL_NAMESPACES.contains(&namespace.as_str()));
    if MORE.set(namespaces).is_err() {
        tracing::error!("the namespaces of drivers are set twice");
    }
}

/// All namespaces that can contain objects of the drivers.
pub fn all() -> impl Iterator<Item = &'static str> + Clone {
    let more = MORE.get().into_iter().flatten().map(String::as_str);
    USUAL_NAMESPACES.into_iter().chain(more)
}

/// Whether this namespace can contain objects of the drivers.
pub fn has(namespace: &str) -> bool {
    all().any(|allowed| allowed == namespace)
}
