//! The Secrets from which the drivers on record read their passwords.
//!
//! A watch reports when a Secret with our label changes; only then VDO reads it again. VDO reads a Secret
//! without our label in every round: for example, that of a driver adopted a moment ago.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use catalog::Driver;
use driver_config::SecretText;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use plan::{
    ObjectId,
    facts::{AppliedObject, DriverSecret, UnusableSecret},
    names,
    record::{Record, Records},
};
use runtime::error_chain::error_chain;

/// The Secrets as last read.
#[derive(Debug, Default)]
pub(crate) struct LastRead(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    /// Each Secret with its version.
    read: BTreeMap<ObjectId, (String, DriverSecret)>,
    /// The drivers whose Secret was unusable in the last round, and since when.
    unusable: BTreeMap<Driver, Timestamp>,
}

impl LastRead {
    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &ObjectId, mark: &str) -> Option<DriverSecret> {
        let all = self.lock();
        all.read.get(id).filter(|(known, _)| known == mark).map(|(_, secret)| secret.clone())
    }

    fn keep(&self, mark: &str, secret: &DriverSecret) {
        self.lock().read.insert(secret.id.clone(), (mark.to_owned(), secret.clone()));
    }

    /// The time since which the Secret of this driver is unusable.
    fn unusable_since(&self, driver: Driver) -> Timestamp {
        *self.lock().unusable.entry(driver).or_insert_with(Timestamp::now)
    }

    fn usable(&self, driver: Driver) {
        self.lock().unusable.remove(&driver);
    }
}

/// The place from which a driver reads its passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PasswordLocation {
    Secret(ObjectId),
    /// An object that VDO does not write, or does not understand, with the reason.
    Unusable(ObjectId, String),
}

/// The Secrets of the drivers on record, and the reasons for the others. Only the work that depends on an
/// unusable Secret waits. `adopted` is the place for a cloud controller that VDO adopted and has not rolled out
/// yet.
pub(crate) async fn read_all(
    client: &Client,
    last: &LastRead,
    objects: &BTreeMap<ObjectId, AppliedObject>,
    records: &Records,
    adopted: Option<PasswordLocation>,
) -> (BTreeMap<Driver, DriverSecret>, BTreeMap<Driver, UnusableSecret>) {
    let (mut all, mut unusable) = (BTreeMap::new(), BTreeMap::new());
    let cpi = adopted.or_else(|| place(Driver::Cpi, &records.cpi));
    for (driver, place) in [(Driver::Cpi, cpi), (Driver::Csi, place(Driver::Csi, &records.csi))] {
        let Some(place) = place else {
            last.usable(driver);
            continue;
        };
        match usable(client, last, objects, place).await {
            Ok(secret) => {
                last.usable(driver);
                all.insert(driver, secret);
            }
            Err((id, reason)) => {
                tracing::warn!(%driver, object = %id, reason, "the password of a driver cannot be read");
                let since = last.unusable_since(driver);
                unusable.insert(driver, UnusableSecret { id, reason, since });
            }
        }
    }
    (all, unusable)
}

/// The Secret at this place, or the reason why VDO cannot use it.
async fn usable(
    client: &Client,
    last: &LastRead,
    objects: &BTreeMap<ObjectId, AppliedObject>,
    place: PasswordLocation,
) -> Result<DriverSecret, (ObjectId, String)> {
    let id = match place {
        PasswordLocation::Secret(id) => id,
        PasswordLocation::Unusable(id, reason) => return Err((id, reason)),
    };
    if !crate::allowed_namespaces::has(&id.namespace) {
        let namespace = &id.namespace;
        let reason = format!(
            "the driver reads {id}, and VDO has no permission in namespace {namespace}; allow it with \
             vdoctl deploy --driver-namespace {namespace}"
        );
        return Err((id, reason));
    }
    let mark = objects.get(&id).map(|seen| seen.mark.as_str());
    if let Some(known) = mark.and_then(|mark| last.get(&id, mark)) {
        return Ok(known);
    }
    match read(client, &id).await {
        Ok(Some((version, Ok(secret)))) => {
            // A watch can lag behind. If the Secret is newer than the watch shows, VDO reads it again in
            // the next round.
            if mark.is_some_and(|mark| mark == version) {
                last.keep(&version, &secret);
            }
            Ok(secret)
        }
        Ok(Some((_, Err(reason)))) => Err((id, reason)),
        Ok(None) => {
            let reason = format!("{id} does not exist");
            Err((id, reason))
        }
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let reason = format!(
                "the driver reads {id}, and VDO has no permission to read it; allow it with vdoctl deploy \
                 --driver-namespace {}",
                id.namespace
            );
            Err((id, reason))
        }
        Err(error) => {
            let reason = format!("VDO cannot read {id}: {}", error_chain(&error));
            Err((id, reason))
        }
    }
}

/// The Secret with the passwords of a driver on record.
fn place(driver: Driver, record: &Record) -> Option<PasswordLocation> {
    record.version.as_ref()?;
    let kept = record.names.as_ref();
    let (namespace, name) = match driver {
        Driver::Cpi => (names::KUBE_SYSTEM, names::CPI_SECRET),
        Driver::Csi => (
            kept.map_or(names::CSI_NAMESPACE, |kept| &kept.namespace),
            kept.and_then(|kept| kept.settings.as_deref()).unwrap_or(names::CSI_SECRET),
        ),
    };
    Some(PasswordLocation::Secret(ObjectId {
        api_version: "v1".into(),
        kind: "Secret".into(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }))
}

/// The Secret with its version; the reason if its content is not text.
type Read = (String, Result<DriverSecret, String>);

async fn read(client: &Client, id: &ObjectId) -> Result<Option<Read>, kube::Error> {
    let secrets = Api::<Secret>::namespaced(client.clone(), &id.namespace);
    let Some(secret) = secrets.get_opt(&id.name).await? else { return Ok(None) };
    let version = crate::applied::mark(&secret.metadata);
    Ok(Some((version, parse(id, secret))))
}

fn parse(id: &ObjectId, secret: Secret) -> Result<DriverSecret, String> {
    let texts = secret.data.unwrap_or_default().into_iter().map(|(key, value)| {
        // VDO did not write bytes that are not text, and a driver cannot read them either.
        let text = String::from_utf8(value.0);
        let text = text.map_err(|_| format!("the key {key} of {id} is not text"))?;
        Ok((key, SecretText::from(text)))
    });
    let data = texts.collect::<Result<_, String>>()?;
    let annotations = secret.metadata.annotations.unwrap_or_default();
    Ok(DriverSecret {
        id: id.clone(),
        kind: secret.type_.unwrap_or_else(|| "Opaque".into()),
        data,
        changed: annotations.get(names::CREDENTIALS_CHANGED).cloned(),
    })
}

#[cfg(test)]
mod tests {
    use plan::record::Names;
    use runtime::tasks::Tasks;

    use super::*;
    use crate::fake_api::answering;

    #[test]
    fn a_driver_has_its_secret_where_it_was_adopted() {
        let at = |driver, record: &Record| match place(driver, record)? {
            PasswordLocation::Secret(id) => Some(id.to_string()),
            PasswordLocation::Unusable(..) => None,
        };
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
    }

    async fn read_with(
        (client, _tasks): &(Client, Tasks),
        last: &LastRead,
        namespace: &str,
    ) -> Result<DriverSecret, UnusableSecret> {
        let names = Names { namespace: namespace.into(), ..Names::default() };
        let record =
            Record { version: Some("3.7.3".into()), names: Some(names), ..Record::default() };
        let records = Records { csi: record, ..Records::default() };
        let (mut read, mut unusable) =
            read_all(client, last, &BTreeMap::new(), &records, None).await;
        read.remove(&Driver::Csi).ok_or_else(|| unusable.remove(&Driver::Csi).unwrap())
    }

    #[tokio::test]
    async fn a_secret_that_vdo_cannot_use_is_named_with_the_reason() {
        let failure = |code: u16, reason: &str| {
            serde_json::json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                "reason": reason, "message": "refused",
            })
        };
        let last = LastRead::default();
        let missing = answering(404, &failure(404, "NotFound")).await;
        let missing = read_with(&missing, &last, names::CSI_NAMESPACE).await.unwrap_err();
        assert_eq!(missing.id.name, names::CSI_SECRET);
        assert!(missing.reason.ends_with("does not exist"), "{}", missing.reason);
        let forbidden = answering(403, &failure(403, "Forbidden")).await;
        let forbidden = read_with(&forbidden, &last, names::CSI_NAMESPACE).await.unwrap_err();
        let command = "vdoctl deploy --driver-namespace vmware-system-csi";
        assert!(forbidden.reason.contains(command), "{}", forbidden.reason);
        assert_eq!(forbidden.since, missing.since, "the driver has no password all the time");
        let secret = |value: &str| {
            serde_json::json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": names::CSI_SECRET, "namespace": names::CSI_NAMESPACE},
                "data": {"csi-vsphere.conf": value},
            })
        };
        let bytes = answering(200, &secret("//79")).await;
        let bytes = read_with(&bytes, &last, names::CSI_NAMESPACE).await.unwrap_err();
        assert!(bytes.reason.contains("csi-vsphere.conf"), "{}", bytes.reason);
        let text = answering(200, &secret("W0dsb2JhbF0=")).await;
        assert!(read_with(&text, &last, names::CSI_NAMESPACE).await.is_ok());
        let elsewhere = read_with(&text, &last, "somewhere").await.unwrap_err();
        assert!(elsewhere.reason.contains("--driver-namespace somewhere"), "{}", elsewhere.reason);
        assert_ne!(elsewhere.since, missing.since, "it was usable in between");
    }
}
