//! The namespaces in which objects of the drivers may be: the usual two, and those of drivers that were
//! adopted in one of their own. What they are is said once, at the start of the process: the watches of
//! each begin then.

use std::{collections::BTreeSet, sync::OnceLock};

use plan::names::USUAL_NAMESPACES;

/// Those in which adopted drivers may be besides.
static MORE: OnceLock<BTreeSet<String>> = OnceLock::new();

/// Lets drivers be in these namespaces too, for as long as the process runs. Said once, before anything
/// is looked at.
pub fn also(mut namespaces: BTreeSet<String>) {
    namespaces.retain(|namespace| !USUAL_NAMESPACES.contains(&namespace.as_str()));
    if MORE.set(namespaces).is_err() {
        tracing::error!("the namespaces of drivers are said twice");
    }
}

/// The namespaces in which an admin lets VDO adopt drivers whatever their names: those said on the
/// command line, the usual ones among them.
static OPEN: OnceLock<BTreeSet<String>> = OnceLock::new();

/// Lets drivers be adopted in these namespaces whatever their names. Called once, at the start.
pub fn open(namespaces: BTreeSet<String>) {
    if OPEN.set(namespaces).is_err() {
        tracing::error!("the namespaces of adopted drivers are set twice");
    }
}

/// The namespaces in which drivers may be adopted whatever their names.
pub fn opened() -> BTreeSet<String> {
    OPEN.get().cloned().unwrap_or_default()
}

/// All of them.
pub fn all() -> impl Iterator<Item = &'static str> + Clone {
    let more = MORE.get().into_iter().flatten().map(String::as_str);
    USUAL_NAMESPACES.into_iter().chain(more)
}

/// Whether objects of the drivers may be in this namespace.
pub fn has(namespace: &str) -> bool {
    all().any(|home| home == namespace)
}
