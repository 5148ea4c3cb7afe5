//! The drivers' admission webhooks: the authorities that the API server trusts, the certificates that the
//! webhooks serve, and the pods that answer.

use std::collections::BTreeMap;

use health::facts::{Certificate, Known, Webhook};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::Secret,
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Resource, ResourceExt};
use serde::Deserialize;
use x509_parser::{pem::Pem, prelude::X509Certificate};

use super::{RelatedObjects, map};

/// The Services of the drivers' webhooks, upstream's and OpenShift's.
pub(crate) const SERVICES: [&str; 2] =
    ["vsphere-webhook-svc", "vmware-vsphere-csi-driver-webhook-svc"];

/// The cached part of a webhook configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hook {
    service: String,
    namespace: String,
    fails_closed: bool,
    created: Timestamp,
    /// The authorities that the API server trusts for it, PEM.
    authorities: Vec<u8>,
}

/// The certificate that a webhook serves, PEM.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Served(Vec<u8>);

/// The number of pods that answer for a Service, and since when.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answering {
    service: String,
    count: u32,
    since: Timestamp,
}

/// The certificate of a Secret. Deserialization skips the private key.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = Secret)]
pub(crate) struct CertificateSecret {
    metadata: ObjectMeta,
    #[serde(default)]
    data: Public,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Public {
    #[serde(rename = "tls.crt")]
    certificate: Option<ByteString>,
}

fn moment(time: Option<&Time>) -> Timestamp {
    time.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// The webhook of a driver in a configuration.
pub(crate) fn hook(configuration: &ValidatingWebhookConfiguration) -> Option<Hook> {
    let hooks = configuration.webhooks.iter().flatten();
    let mut ours = hooks.filter_map(|hook| {
        let service = hook.client_config.service.as_ref()?;
        let known = SERVICES.contains(&service.name.as_str());
        known.then_some((hook, service))
    });
    let (hook, service) = ours.next()?;
    let bundle = hook.client_config.ca_bundle.as_ref();
    Some(Hook {
        service: service.name.clone(),
        namespace: service.namespace.clone(),
        fails_closed: hook.failure_policy.as_deref() != Some("Ignore"),
        created: moment(configuration.metadata.creation_timestamp.as_ref()),
        authorities: bundle.map(|bundle| bundle.0.clone()).unwrap_or_default(),
    })
}

pub(crate) fn served(secret: &CertificateSecret) -> Option<Served> {
    secret.data.certificate.clone().map(|certificate| Served(certificate.0))
}

/// The ready endpoints of a Service in one slice.
pub(crate) fn answering(slice: &EndpointSlice) -> Option<Answering> {
    let service = slice.labels().get("kubernetes.io/service-name")?;
    let is_ready = |ready: Option<bool>| ready.unwrap_or(true);
    let endpoints = slice.endpoints.iter().filter(|endpoint| {
        is_ready(endpoint.conditions.as_ref().and_then(|conditions| conditions.ready))
    });
    let written = slice.metadata.managed_fields.iter().flatten();
    let written = written.filter_map(|entry| entry.time.as_ref()).map(|time| time.0).max();
    let created = moment(slice.metadata.creation_timestamp.as_ref());
    Some(Answering {
        service: format!("{}/{service}", slice.namespace().unwrap_or_default()),
        count: u32::try_from(endpoints.count()).unwrap_or(u32::MAX),
        since: written.unwrap_or(created),
    })
}

pub(crate) fn webhooks(site: &RelatedObjects) -> Known<Vec<Webhook>> {
    map(&site.hooks, |hooks| hooks.iter().map(|(name, hook)| webhook(site, name, hook)).collect())
}

fn webhook(site: &RelatedObjects, name: &str, hook: &Hook) -> Webhook {
    let service = format!("{}/{}", hook.namespace, hook.service);
    let slices = |all: &BTreeMap<String, Answering>| -> Vec<Answering> {
        all.values().filter(|slice| slice.service == service).cloned().collect()
    };
    let slices = map(&site.answering, slices);
    let since = slices.get().into_iter().flatten().map(|slice| slice.since).max();
    Webhook {
        configuration: name.to_owned(),
        namespace: hook.namespace.clone(),
        secret: plan::names::WEBHOOK_SECRET.to_owned(),
        fails_closed: hook.fails_closed,
        endpoints: map(&slices, |slices| slices.iter().map(|slice| slice.count).sum()),
        since: since.unwrap_or(hook.created),
        certificate: certificate(site, hook),
    }
}

/// The certificate that the webhook serves, if it is in an allowed namespace. Otherwise only the expiry of
/// the authorities that the API server trusts is known.
fn certificate(site: &RelatedObjects, hook: &Hook) -> Known<Certificate> {
    let authorities = certificates(&hook.authorities);
    if !crate::allowed_namespaces::has(&hook.namespace) {
        let ends = authorities.iter().filter_map(|pem| ends(&pem.parse_x509().ok()?)).max();
        return match ends {
            Some(expires) => Certificate { expires, trusted: true }.into(),
            None => Known::unknown("the webhook's configuration names no authority"),
        };
    }
    let all = match &site.certificates {
        Known::Known(all) => all,
        Known::Unknown { reason } => return Known::unknown(reason),
    };
    let secret = format!("{}/{}", hook.namespace, plan::names::WEBHOOK_SECRET);
    let Some(Served(pem)) = all.get(&secret) else {
        return Known::unknown(&format!("the Secret {secret} holds no certificate"));
    };
    let served = certificates(pem);
    let served = served.first().and_then(|pem| pem.parse_x509().ok());
    let Some((served, expires)) =
        served.and_then(|served| Some((ends(&served)?, served))).map(|(e, s)| (s, e))
    else {
        return Known::unknown(&format!("the certificate in Secret {secret} cannot be read"));
    };
    let trusted = authorities.iter().filter_map(|pem| pem.parse_x509().ok()).any(|authority| {
        served.tbs_certificate.as_ref() == authority.tbs_certificate.as_ref()
            || served.verify_signature(Some(authority.public_key())).is_ok()
    });
    Certificate { expires, trusted }.into()
}

fn certificates(pem: &[u8]) -> Vec<Pem> {
    Pem::iter_from_buffer(pem).filter_map(Result::ok).collect()
}

fn ends(certificate: &X509Certificate<'_>) -> Option<Timestamp> {
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook_certificates::Pair;
    use plan::names;

    fn site(namespace: &str, authority: &str, certificate: &str) -> RelatedObjects {
        let hook = Hook {
            service: SERVICES[0].into(),
            namespace: namespace.into(),
            fails_closed: true,
            created: Timestamp::UNIX_EPOCH,
            authorities: authority.as_bytes().to_vec(),
        };
        let secret = format!("{namespace}/{}", plan::names::WEBHOOK_SECRET);
        RelatedObjects {
            hooks: BTreeMap::from([("validation".to_owned(), hook)]).into(),
            certificates: BTreeMap::from([(secret, Served(certificate.as_bytes().to_vec()))])
                .into(),
            answering: BTreeMap::new().into(),
            ..RelatedObjects::default()
        }
    }

    fn pair() -> Pair {
        Pair::issue("hook.svc", None, Timestamp::now()).unwrap()
    }

    fn seen(site: &RelatedObjects) -> Webhook {
        site.webhooks().get().unwrap()[0].clone()
    }

    #[test]
    fn a_certificate_is_trusted_when_an_authority_of_the_configuration_signed_it() {
        let (one, other) = (pair(), pair());
        let good = seen(&site(names::CSI_NAMESPACE, &one.authority, &one.certificate));
        let good = good.certificate.get().unwrap().clone();
        assert_eq!(good.expires.as_second(), one.expires.as_second());
        assert!(good.trusted);
        let bad = seen(&site(names::CSI_NAMESPACE, &other.authority, &one.certificate));
        assert!(!bad.certificate.get().unwrap().trusted, "the name of the authority is the same");
    }

    #[test]
    fn nobody_answers_for_a_service_without_endpoints() {
        let pair = pair();
        let hook = seen(&site(names::CSI_NAMESPACE, &pair.authority, &pair.certificate));
        assert_eq!(hook.endpoints, Known::Known(0));
    }

    #[test]
    fn a_certificate_that_cannot_be_seen_is_unknown_and_elsewhere_its_authority_counts() {
        let pair = pair();
        let mut hidden = site(names::CSI_NAMESPACE, &pair.authority, &pair.certificate);
        hidden.certificates = Known::unknown("secrets is forbidden");
        assert_eq!(seen(&hidden).certificate, Known::unknown("secrets is forbidden"));
        let elsewhere = seen(&site("openshift-cluster-csi-drivers", &pair.authority, ""));
        assert!(elsewhere.certificate.get().is_some());
    }
}
