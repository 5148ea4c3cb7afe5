//! Each vCenter's certificate is trusted, valid and supported by the drivers.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "vcenter/certificate",
    gives: &[
        codes::CERTIFICATE_DISTRUSTED,
        codes::CERTIFICATE_EXPIRING,
        codes::CERTIFICATE_OUTDATED,
    ],
    run: CheckScope::Cluster(&[], check),
};

/// Seconds before the expiry of the certificate.
const WARNING: i64 = 30 * 86_400;

/// Since this release the storage driver rejects weak certificates.
const STRICT: Version = Version::new(3, 3, 0);

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    for vcenter in view.facts.vcenters.values() {
        let question = format!("whether the certificate of {} is valid", vcenter.address);
        let Some(tls) = sink.need_from_vcenter(&vcenter.tls, vcenter, &question) else { continue };
        sink.recheck(view, tls.expires, -WARNING);
        sink.recheck(view, tls.expires, 0);
        let left = -view.seconds_since(tls.expires);
        if left < WARNING {
            let (when, severity) = match left {
                ..=0 => (format!("expired on {}", moment(tls.expires)), Severity::Error),
                _ => (format!("expires on {}", moment(tls.expires)), Severity::Warning),
            };
            let hit = super::hit(codes::CERTIFICATE_EXPIRING, vcenter).severity(severity);
            sink.raise(hit.with("when", when));
        }
        if let Some(reason) = &tls.distrusted {
            let hit = super::hit(codes::CERTIFICATE_DISTRUSTED, vcenter).with("reason", reason);
            sink.raise(hit.with("thumbprint", &tls.thumbprint));
        }
        let version = view.storage_driver().filter(|d| d.upstream).and_then(|d| d.version);
        if let (Some(reason), Some(version)) = (&tls.outdated, version.filter(|v| *v >= STRICT)) {
            let hit = super::hit(codes::CERTIFICATE_OUTDATED, vcenter).with("reason", reason);
            sink.raise(hit.with("version", version));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_untrusted_certificate_is_reported() {
        shows(
            &CHECK,
            &["VDO-1302"],
            |facts| {
                let tls = facts.vcenter().tls.get_mut().unwrap();
                tls.distrusted = Some("it is signed by an unknown authority".into());
            },
            |facts| facts.vcenter().tls = Known::unknown("no connection was made"),
        );
    }

    #[test]
    fn an_expiring_certificate_is_reported_a_month_before() {
        let mut facts = healthy();
        let now = facts.now;
        let end =
            |days: i64| jiff::Timestamp::from_second(now.as_second() + days * 86_400).unwrap();
        for (days, expected) in [(31, &[][..]), (29, &["VDO-1303"]), (-1, &["VDO-1303"])] {
            facts.vcenter().tls.get_mut().unwrap().expires = end(days);
            assert_eq!(codes_of(&CHECK, &facts), expected, "{days} days");
        }
    }

    #[test]
    fn a_weak_signature_matters_to_new_drivers_only() {
        let mut facts = healthy();
        facts.vcenter().tls.get_mut().unwrap().outdated = Some("it is signed with SHA-1".into());
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1304"]);
        facts.storage_driver().version = Some(Version::new(3, 2, 0));
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
