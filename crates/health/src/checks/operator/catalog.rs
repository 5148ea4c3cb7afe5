//! The catalog is trusted and up to date, and VDO can refresh it.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "operator/catalog",
    gives: &[codes::CATALOG_UNREACHABLE, codes::CATALOG_UNTRUSTED, codes::CATALOG_EXPIRED],
    run: Run::Cluster(&[], check),
};

fn check(view: &View<'_>, sink: &mut Sink) {
    let subject = || Subject::kubernetes("Catalog", None, "the catalog in use");
    let question = "whether the catalog is trusted and up to date";
    let Some(catalog) = sink.need(&view.facts.operator.catalog, subject, question) else { return };
    let hit = |definition| {
        Hit::new(definition, Subject::kubernetes("Catalog", None, &catalog.source))
            .with("source", &catalog.source)
            .with("url", &catalog.source)
            .with("current", format!("serial {}", catalog.serial))
    };
    if let Some(reason) = &catalog.fetch_error {
        sink.raise(hit(codes::CATALOG_UNREACHABLE).with("reason", reason));
    }
    if let Some(reason) = &catalog.distrusted {
        sink.raise(hit(codes::CATALOG_UNTRUSTED).with("reason", reason));
    }
    catalog.expires.inspect(|expiry| sink.recheck(view, *expiry, 0));
    if let Some(expiry) = catalog.expires.filter(|expiry| *expiry < view.facts.now) {
        sink.raise(hit(codes::CATALOG_EXPIRED).with("expiry", expiry.strftime("%Y-%m-%d")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::CatalogState;

    #[test]
    fn each_problem_of_the_catalog_has_its_own_finding() {
        let fetch = |state: &mut CatalogState| state.fetch_error = Some("timed out".into());
        let trust = |state: &mut CatalogState| {
            state.distrusted = Some("the signature belongs to another key".into());
        };
        let age = |state: &mut CatalogState| state.expires = Some(jiff::Timestamp::UNIX_EPOCH);
        let faults: [fn(&mut CatalogState); 3] = [fetch, trust, age];
        for (fault, code) in faults.into_iter().zip(["VDO-1101", "VDO-1103", "VDO-1105"]) {
            shows(
                &CHECK,
                &[code],
                |facts| fault(facts.operator.catalog.get_mut().unwrap()),
                |facts| facts.operator.catalog = Known::unknown("no catalog was read yet"),
            );
        }
    }
}
