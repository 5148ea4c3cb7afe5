//! The catalog is trusted, in date and can be refreshed.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "operator/catalog",
    gives: &[codes::CATALOG_UNREACHABLE, codes::CATALOG_UNTRUSTED, codes::CATALOG_EXPIRED],
    run: Run::Cluster(&[], check),
};

fn check(view: &View<'_>, sink: &mut Sink) {
    let catalog = &view.facts.operator.catalog;
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
    if let Some(expiry) = catalog.expires.filter(|expiry| *expiry < view.facts.now) {
        sink.raise(hit(codes::CATALOG_EXPIRED).with("expiry", expiry.strftime("%Y-%m-%d")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_the_catalog_is_told_one_by_one() {
        let mut facts = healthy();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        facts.operator.catalog.fetch_error = Some("timed out".into());
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1101"]);
        facts.operator.catalog.fetch_error = None;
        facts.operator.catalog.distrusted = Some("the signature is another's".into());
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1103"]);
        facts.operator.catalog.distrusted = None;
        facts.operator.catalog.expires = Some(jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1105"]);
    }
}
