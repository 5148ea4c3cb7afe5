//! The catalog is trusted and up to date, and VDO can refresh it.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "operator/catalog",
    gives: &[
        codes::CATALOG_UNREACHABLE,
        codes::CATALOG_UNREADABLE,
        codes::CATALOG_UNTRUSTED,
        codes::CATALOG_ROLLED_BACK,
        codes::CATALOG_EXPIRED,
        codes::CATALOG_TOO_NEW,
        codes::CATALOG_TOO_LARGE,
    ],
    run: CheckScope::Cluster(&[], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let subject = || Subject::kubernetes("Catalog", None, "the catalog in use");
    let question = "whether the catalog is trusted and up to date";
    let Some(catalog) = sink.need(&view.facts.operator.catalog, subject, question) else { return };
    if let Some(trouble) = &catalog.trouble {
        let (definition, values) = trouble.finding();
        let hit = Hit::new(definition, Subject::kubernetes("Catalog", None, &trouble.source));
        let hit = hit.with("current", catalog.serial);
        sink.raise(values.into_iter().fold(hit, |hit, (name, value)| hit.with(name, value)));
    }
    catalog.expires.inspect(|expiry| sink.recheck(view, *expiry, 0));
    if let Some(expiry) = catalog.expires.filter(|expiry| *expiry < view.facts.now) {
        sink.raise(
            Hit::new(codes::CATALOG_EXPIRED, subject())
                .with("source", "its publisher")
                .with("expiry", expiry.strftime("%Y-%m-%d")),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{CatalogTrouble, CatalogTroubleKind};

    #[test]
    fn each_problem_of_an_offered_catalog_has_its_own_finding() {
        use CatalogTroubleKind::{
            RolledBack, TooLarge, TooNew, Unreachable, Unreadable, Untrusted,
        };
        let (schema, known) = ("2.0".to_owned(), "1.x".to_owned());
        for (code, kind) in [
            ("VDO-1101", Unreachable),
            ("VDO-1102", Unreadable),
            ("VDO-1103", Untrusted),
            ("VDO-1104", RolledBack),
            ("VDO-1106", TooNew { schema, known }),
            ("VDO-1107", TooLarge { limit: "4 MiB".to_owned() }),
        ] {
            let source = "https://example.com/catalog.json".to_owned();
            let trouble = CatalogTrouble { source, kind, reason: "timed out".to_owned() };
            shows(
                &CHECK,
                &[code],
                |facts| facts.operator.catalog.get_mut().unwrap().trouble = Some(trouble),
                |facts| facts.operator.catalog = Known::unknown("no catalog was read yet"),
            );
        }
    }

    #[test]
    fn a_catalog_that_has_expired_is_reported() {
        shows(
            &CHECK,
            &["VDO-1105"],
            |facts| {
                let catalog = facts.operator.catalog.get_mut().unwrap();
                catalog.expires = Some(jiff::Timestamp::UNIX_EPOCH);
            },
            |facts| facts.operator.catalog = Known::unknown("no catalog was read yet"),
        );
    }
}
