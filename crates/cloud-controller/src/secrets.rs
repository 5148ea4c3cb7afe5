//! Credentials as they change: in a Secret, in files, or in the configuration itself.

use runtime::story::story;
use std::{collections::BTreeMap, path::Path, time::Duration};

use driver_config::credentials::{Credentials as Read, CredentialsError, SecretData};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, runtime::watcher};
use snafu::{ResultExt as _, Snafu};
use tokio::{sync::watch, time::sleep};
use vsphere::Credentials;

use crate::configuration::{CredentialSource, Vcenter};

/// How often files are looked at, and a failed watch is tried again.
const RHYTHM: Duration = Duration::from_secs(5);

/// What is known of a vCenter's credentials.
#[derive(Clone, Debug, Default)]
pub enum Known {
    /// Nothing yet.
    #[default]
    Nothing,
    /// These.
    These(Credentials),
    /// There are none, and why.
    Unusable(String),
}

#[derive(Debug, Snafu)]
enum Unusable {
    #[snafu(display("the directory {path} cannot be read"))]
    Directory { path: String, source: std::io::Error },
    #[snafu(display("the credentials cannot be used"))]
    Content { source: CredentialsError },
}

/// Follows the credentials of a vCenter into `known`, for ever. What was usable before stays in use
/// while what is there now is not.
pub async fn follow(vcenter: Vcenter, client: Client, known: watch::Sender<Known>) {
    match &vcenter.credentials {
        CredentialSource::Here(user, password) => {
            tell(&known, Ok(Credentials::new(user.as_str(), password.expose())));
            std::future::pending::<()>().await;
        }
        CredentialSource::Secret(namespace, name) => {
            let api = Api::<Secret>::namespaced(client, namespace);
            follow_secret(&api, namespace, name, &vcenter.server, &known).await;
        }
        CredentialSource::Directory(path) => loop {
            tell(&known, from_directory(path, &vcenter.server).map_err(|e| story(&e)));
            sleep(RHYTHM).await;
        },
    }
}

async fn follow_secret(
    api: &Api<Secret>,
    namespace: &str,
    name: &str,
    server: &str,
    known: &watch::Sender<Known>,
) {
    loop {
        let mut changes = std::pin::pin!(watcher::watch_object(api.clone(), name).boxed());
        loop {
            match changes.try_next().await {
                Ok(Some(Some(secret))) => {
                    let data = secret.data.unwrap_or_default().into_iter();
                    let data = data.map(|(key, value)| (key, value.0)).collect();
                    let read = from_data(&data, server);
                    tell(
                        known,
                        read.map_err(|e| format!("Secret {namespace}/{name}: {}", story(&e))),
                    );
                }
                Ok(Some(None)) => {
                    tell(known, Err(format!("the Secret {namespace}/{name} does not exist")));
                }
                Ok(None) => break,
                Err(error) => {
                    tell(
                        known,
                        Err(format!("the Secret {namespace}/{name} cannot be read: {error}")),
                    );
                    sleep(RHYTHM).await;
                }
            }
        }
        sleep(RHYTHM).await;
    }
}

/// Tells what is new. Trouble is told only to who has no credentials yet; others keep theirs.
fn tell(known: &watch::Sender<Known>, now: Result<Credentials, String>) {
    known.send_if_modified(|known| match (&*known, now) {
        (Known::These(before), Ok(now)) if *before == now => false,
        (_, Ok(now)) => {
            *known = Known::These(now);
            true
        }
        (Known::These(_), Err(why)) => {
            tracing::warn!(why, "the credentials that were read before stay in use");
            false
        }
        (Known::Unusable(before), Err(why)) if *before == why => false,
        (_, Err(why)) => {
            *known = Known::Unusable(why);
            true
        }
    });
}

fn from_data(data: &SecretData, server: &str) -> Result<Credentials, Unusable> {
    let read = Read::read(data).context(ContentSnafu)?;
    let credential = read.for_server(server).context(ContentSnafu)?;
    Ok(Credentials::new(credential.username.as_str(), credential.password.expose()))
}

fn from_directory(path: &Path, server: &str) -> Result<Credentials, Unusable> {
    let shown = || path.display().to_string();
    let mut data: SecretData = BTreeMap::new();
    for entry in std::fs::read_dir(path).with_context(|_| DirectorySnafu { path: shown() })? {
        let entry = entry.with_context(|_| DirectorySnafu { path: shown() })?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // A mounted Secret keeps its files behind links whose names start with dots.
        if !name.starts_with("..") && entry.path().is_file() {
            let content = std::fs::read(entry.path());
            data.insert(name, content.with_context(|_| DirectorySnafu { path: shown() })?);
        }
    }
    from_data(&data, server)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(of: &[(&str, &str)]) -> SecretData {
        of.iter().map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec())).collect()
    }

    #[test]
    fn every_form_of_user_and_password_of_the_upstream_controller_is_read() {
        let expected = Credentials::new("u", "p");
        for (what, content) in [
            ("by address", data(&[("vc.test.username", "u"), ("vc.test.password", "p\n")])),
            (
                "numbered",
                data(&[("server_1", "vc.test"), ("username_1", "u"), ("password_1", "p")]),
            ),
            ("one for all", data(&[("username", "u"), ("password", "p")])),
        ] {
            assert_eq!(from_data(&content, "vc.test").unwrap(), expected, "{what}");
        }
        let error =
            from_data(&data(&[("other.username", "u"), ("other.password", "p")]), "vc.test");
        let error = story(&error.unwrap_err());
        assert!(error.contains("credentials for other, none for vc.test"), "{error}");
    }

    #[test]
    fn trouble_never_takes_away_what_was_usable() {
        let (known, seen) = watch::channel(Known::Nothing);
        tell(&known, Err("no Secret".into()));
        assert!(matches!(&*seen.borrow(), Known::Unusable(_)));
        tell(&known, Ok(Credentials::new("u", "p")));
        tell(&known, Err("the Secret was deleted".into()));
        assert!(matches!(&*seen.borrow(), Known::These(_)));
    }
}
