//! The Secrets from which the drivers on record read their passwords.
//!
//! A watch reports when a Secret with our label changes; only then VDO reads it again. VDO reads a Secret
//! without our label in every round: for example, that of a driver adopted a moment ago.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use catalog::Driver;
use driver_config::SecretText;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use plan::{
    ObjectId,
    facts::{AppliedObject, DriverSecret},
    names,
    record::{Record, Records},
};
use runtime::error_chain::error_chain;

/// The Secrets as last read, each with its version.
#[derive(Debug, Default)]
pub(crate) struct LastRead(Mutex<BTreeMap<ObjectId, (String, DriverSecret)>>);

impl LastRead {
    fn get(&self, id: &ObjectId, mark: &str) -> Option<DriverSecret> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(id).filter(|(known, _)| known == mark).map(|(_, secret)| secret.clone())
    }

    fn keep(&self, mark: &str, secret: &DriverSecret) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(secret.id.clone(), (mark.to_owned(), secret.clone()));
    }
}

/// The Secrets of the drivers on record. A Secret that VDO cannot read is absent: only the work that depends
/// on it waits.
pub(crate) async fn read_all(
    client: &Client,
    last: &LastRead,
    objects: &BTreeMap<ObjectId, AppliedObject>,
    records: &Records,
) -> BTreeMap<Driver, DriverSecret> {
    let mut all = BTreeMap::new();
    for (driver, record) in [(Driver::Cpi, &records.cpi), (Driver::Csi, &records.csi)] {
        let Some(id) = place(driver, record) else { continue };
        let mark = objects.get(&id).map(|seen| seen.mark.as_str());
        if let Some(known) = mark.and_then(|mark| last.get(&id, mark)) {
            all.insert(driver, known);
            continue;
        }
        match read(client, &id).await {
            Ok(Some((version, secret))) => {
                // A watch can lag behind. If the Secret is newer than the watch shows, VDO reads it again in
                // the next round.
                if mark.is_some_and(|mark| mark == version) {
                    last.keep(&version, &secret);
                }
                all.insert(driver, secret);
            }
            Ok(None) => {}
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(secret = %id, error, "the Secret of a driver cannot be read");
            }
        }
    }
    all
}

/// The Secret with the passwords of a driver on record, if VDO has permission to read it.
fn place(driver: Driver, record: &Record) -> Option<ObjectId> {
    record.version.as_ref()?;
    let kept = record.names.as_ref();
    let (namespace, name) = match driver {
        Driver::Cpi => (names::KUBE_SYSTEM, names::CPI_SECRET),
        Driver::Csi => (
            kept.map_or(names::CSI_NAMESPACE, |kept| &kept.namespace),
            kept.and_then(|kept| kept.settings.as_deref()).unwrap_or(names::CSI_SECRET),
        ),
    };
    crate::allowed_namespaces::has(namespace).then(|| ObjectId {
        api_version: "v1".into(),
        kind: "Secret".into(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

async fn read(
    client: &Client,
    id: &ObjectId,
) -> Result<Option<(String, DriverSecret)>, kube::Error> {
    let secrets = Api::<Secret>::namespaced(client.clone(), &id.namespace);
    let Some(secret) = secrets.get_opt(&id.name).await? else { return Ok(None) };
    let version = crate::applied::mark(&secret.metadata);
    let texts = secret.data.unwrap_or_default().into_iter().map(|(key, value)| {
        let text = String::from_utf8(value.0).ok()?;
        Some((key, SecretText::from(text)))
    });
    // VDO did not write bytes that are not text, and a driver cannot read them either.
    let Some(data) = texts.collect() else { return Ok(None) };
    let annotations = secret.metadata.annotations.unwrap_or_default();
    let read = DriverSecret {
        id: id.clone(),
        kind: secret.type_.unwrap_or_else(|| "Opaque".into()),
        data,
        changed: annotations.get(names::CREDENTIALS_CHANGED).cloned(),
    };
    Ok(Some((version, read)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::record::Names;

    #[test]
    fn a_driver_has_its_secret_where_it_was_adopted() {
        let at = |driver, record: &Record| place(driver, record).map(|id| id.to_string());
        let installed = Record { version: Some("3.7.3".into()), ..Record::default() };
        assert_eq!(at(Driver::Csi, &Record::default()), None);
        let usual = "Secret vmware-system-csi/vsphere-config-secret";
        assert_eq!(at(Driver::Csi, &installed).as_deref(), Some(usual));
        let cloud = "Secret kube-system/cpi-global-secret";
        assert_eq!(at(Driver::Cpi, &installed).as_deref(), Some(cloud));
        let names = |namespace: &str| Names {
            namespace: namespace.into(),
            settings: Some("rancher-config".into()),
            ..Names::default()
        };
        let adopted = Record { names: Some(names("kube-system")), ..installed.clone() };
        let theirs = "Secret kube-system/rancher-config";
        assert_eq!(at(Driver::Csi, &adopted).as_deref(), Some(theirs));
        assert_eq!(at(Driver::Cpi, &adopted).as_deref(), Some(cloud));
        let elsewhere = Record { names: Some(names("somewhere")), ..installed };
        assert_eq!(at(Driver::Csi, &elsewhere), None, "VDO cannot read there");
    }
}
