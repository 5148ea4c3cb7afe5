//! The Secret of each VsphereCloudConfig has usable credentials, and VDO verifies the vCenter that gets them.

use api::finding::quoted;

use crate::{checks::prelude::*, facts::CredentialState};

pub(super) const CHECK: Check = Check {
    name: "vcenter/credentials",
    gives: &[
        codes::CREDENTIALS_MISSING,
        codes::CREDENTIALS_UNUSABLE,
        codes::CREDENTIALS_TRIMMED,
        codes::TLS_UNVERIFIED,
    ],
    run: CheckScope::Cluster(&[], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    for vcenter in view.facts.vcenters.values() {
        let (namespace, secret) = vcenter.secret.split_once('/').unwrap_or(("", &vcenter.secret));
        let hit = |definition| {
            super::hit(definition, vcenter).with("secret", secret).with("namespace", namespace)
        };
        let question = format!("whether the Secret of {} has credentials", vcenter.name);
        match sink.need_from_vcenter(&vcenter.credentials, vcenter, &question) {
            None | Some(CredentialState::Usable) => {}
            Some(CredentialState::Trimmed { key }) => {
                sink.raise(hit(codes::CREDENTIALS_TRIMMED).with("key", key));
            }
            Some(CredentialState::Missing) => sink.raise(hit(codes::CREDENTIALS_MISSING)),
            Some(CredentialState::Unusable { reason }) => {
                sink.raise(hit(codes::CREDENTIALS_UNUSABLE).with("reason", reason));
            }
        }
        if vcenter.insecure {
            sink.raise(super::hit(codes::TLS_UNVERIFIED, vcenter).with("step", trust(vcenter)));
        }
    }
}

/// The step that makes VDO verify a vCenter.
fn trust(vcenter: &Vcenter) -> String {
    let seen = vcenter.tls.get().map(|tls| tls.thumbprint.as_str());
    let Some(thumbprint) = seen.filter(|seen| !seen.is_empty()) else {
        return format!(
            "VDO has not seen the certificate of {} yet: see the other findings about it",
            vcenter.address
        );
    };
    let patch = format!(r#"{{"spec": {{"insecure": false, "thumbprint": "{thumbprint}"}}}}"#);
    format!(
        "kubectl patch vspherecloudconfig --namespace {} {} --type merge --patch {}   trusts only the certificate the \
         vCenter presents now",
        api::NAMESPACE,
        quoted(&vcenter.name),
        quoted(&patch)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_without_usable_credentials_is_reported() {
        let reason = "the Secret has `username` but no `password`".to_owned();
        for (code, state) in [
            ("VDO-1003", CredentialState::Missing),
            ("VDO-1004", CredentialState::Unusable { reason }),
            ("VDO-1005", CredentialState::Trimmed { key: "password".to_owned() }),
        ] {
            shows(
                &CHECK,
                &[code],
                |facts| facts.vcenter().credentials = state.into(),
                |facts| facts.vcenter().credentials = Known::unknown("secrets is forbidden"),
            );
        }
    }

    #[test]
    fn a_vcenter_whose_certificate_is_not_verified_is_reported_with_its_thumbprint() {
        let mut facts = healthy();
        facts.vcenter().insecure = true;
        let examination = crate::Examination::run(facts);
        let findings = examination.report().all();
        let finding = findings.iter().find(|finding| finding.code == "VDO-1008").unwrap();
        assert!(finding.remedy[0].contains("AA:BB:CC:DD"), "{:?}", finding.remedy);
    }

    #[test]
    fn without_a_known_thumbprint_no_command_sets_one() {
        let mut facts = healthy();
        facts.vcenter().insecure = true;
        facts.vcenter().tls = Known::unknown("vcenter-a does not answer");
        let findings = crate::Examination::run(facts).report().all();
        let finding = findings.iter().find(|finding| finding.code == "VDO-1008").unwrap();
        assert!(finding.remedy.iter().all(|step| step.starts_with("# ")), "{:?}", finding.remedy);
    }
}
