//! Renews the certificate of an admission webhook that is not managed by VDO.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingWebhookConfiguration, apps::v1::Deployment,
    core::v1::Secret,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use plan::names;
use serde_json::{Value, json};
use snafu::{OptionExt, ResultExt};

use super::{CertificateSnafu, ChangedSnafu, Error, KubernetesSnafu, OursSnafu, patch};
use crate::webhook_certificates::Pair;

/// The annotation that `kubectl rollout restart` sets.
const RESTARTED: &str = "kubectl.kubernetes.io/restartedAt";

/// The configuration of a webhook in the API server.
struct CurrentWebhook {
    /// The host name that the API server calls.
    host: String,
    /// The CA bundle that the API server trusts, PEM; empty if there is none.
    authority: String,
}

/// Gives a webhook a new certificate.
///
/// First, the API server trusts the new certificate alongside the old one. Then VDO writes the Secret and
/// replaces the webhook's pods one after the other. So the API server trusts the webhook's certificate at
/// every moment.
pub(super) async fn renew(
    client: &Client,
    webhook: &str,
    namespace: &str,
    secret: &str,
) -> Result<(), Error> {
    let configurations = Api::<ValidatingWebhookConfiguration>::all(client.clone());
    let configuration = configurations.get(webhook).await.context(KubernetesSnafu)?;
    if configuration.labels().get(names::MANAGED_BY_LABEL).is_some_and(|by| by == names::MANAGED_BY)
    {
        return OursSnafu { object: webhook }.fail();
    }
    let current = current(&configuration, namespace)?;
    let before = Pair {
        authority: current.authority.clone(),
        certificate: String::new(),
        key: String::new().into(),
        expires: Timestamp::now(),
    };
    let before = Some(&before).filter(|pair| !pair.authority.is_empty());
    let pair = Pair::issue(&current.host, before, Timestamp::now()).context(CertificateSnafu)?;
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    // A dry run shows whether VDO has permission to write the Secret, before anything changes.
    write(&secrets, secret, &pair, true).await?;
    trust(&configurations, webhook, namespace, &pair.authority).await?;
    if let Err(error) = write(&secrets, secret, &pair, false).await {
        trust(&configurations, webhook, namespace, &current.authority).await?;
        return Err(error);
    }
    restart(client, namespace, secret).await
}

fn current(
    configuration: &ValidatingWebhookConfiguration,
    namespace: &str,
) -> Result<CurrentWebhook, Error> {
    let hooks = configuration.webhooks.iter().flatten();
    let mut own = hooks.filter_map(|hook| {
        let service = hook.client_config.service.as_ref()?;
        (service.namespace == namespace).then(|| (service.name.clone(), &hook.client_config))
    });
    let what = || ChangedSnafu {
        object: configuration.name_any(),
        what: format!("it calls no Service of {namespace}"),
    };
    let (service, client) = own.next().with_context(what)?;
    let bundle = client.ca_bundle.as_ref().map(|bundle| bundle.0.clone()).unwrap_or_default();
    Ok(CurrentWebhook {
        host: format!("{service}.{namespace}.svc"),
        authority: String::from_utf8(bundle).unwrap_or_default(),
    })
}

/// Sets the CA bundle of every webhook of the configuration that calls into the namespace.
async fn trust(
    configurations: &Api<ValidatingWebhookConfiguration>,
    webhook: &str,
    namespace: &str,
    authority: &str,
) -> Result<(), Error> {
    patch::change(configurations, webhook, |configuration| {
        let hooks = configuration.webhooks.iter().flatten().enumerate();
        let own = hooks.filter(|(_, hook)| {
            let service = hook.client_config.service.as_ref();
            service.is_some_and(|service| service.namespace == namespace)
        });
        let value = BASE64_STANDARD.encode(authority);
        let operation = |(at, _)| {
            let path = format!("/webhooks/{at}/clientConfig/caBundle");
            json!({"op": "add", "path": path, "value": value})
        };
        Ok(own.map(operation).collect())
    })
    .await
}

/// Writes certificate and key, and keeps the other keys of the Secret.
async fn write(secrets: &Api<Secret>, name: &str, pair: &Pair, dry_run: bool) -> Result<(), Error> {
    let mut data = pair.data();
    // The webhook's settings belong to its owner.
    data.remove("webhook.config");
    let data: BTreeMap<String, Value> =
        data.into_iter().map(|(key, value)| (key, json!(value))).collect();
    let parameters = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.into()),
        dry_run,
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"data": data}));
    secrets.patch(name, &parameters, &patch).await.map(drop).context(KubernetesSnafu)
}

/// Replaces the pods of every Deployment that mounts the Secret, as `kubectl rollout restart` does.
async fn restart(client: &Client, namespace: &str, secret: &str) -> Result<(), Error> {
    let deployments = Api::<Deployment>::namespaced(client.clone(), namespace);
    let all = deployments.list(&ListParams::default()).await.context(KubernetesSnafu)?;
    for deployment in all.items.iter().filter(|deployment| mounts(deployment, secret)) {
        let now = Timestamp::now().to_string();
        let patch = json!({"spec": {"template": {"metadata": {"annotations": {RESTARTED: now}}}}});
        let parameters = PatchParams::default();
        let name = deployment.name_any();
        deployments
            .patch(&name, &parameters, &Patch::Merge(patch))
            .await
            .context(KubernetesSnafu)?;
    }
    Ok(())
}

fn mounts(deployment: &Deployment, secret: &str) -> bool {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let volumes = pod.iter().flat_map(|pod| pod.volumes.iter().flatten());
    let mut secrets = volumes.filter_map(|volume| volume.secret.as_ref()?.secret_name.as_deref());
    secrets.any(|name| name == secret)
}
