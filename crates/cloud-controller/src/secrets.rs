//! Watches credentials in a Secret, in files, or in the configuration.

use runtime::error_chain::error_chain;
use std::{collections::BTreeMap, path::Path, time::Duration};

use driver_config::credentials::{Credentials as Read, CredentialsError, SecretData};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, runtime::watcher};
use snafu::{ResultExt as _, Snafu};
use tokio::{sync::watch, time::sleep};
use vsphere::Credentials;

use crate::configuration::{CredentialSource, Vcenter};

/// How often files are read and a failed watch is retried.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

const FORBIDDEN_FIX: &str =
    "; grant this account get, list and watch on that Secret, by a Role in its namespace";

#[derive(Clone, Debug, Default)]
pub enum CredentialState {
    /// Not read yet.
    #[default]
    Pending,
    Usable(Credentials),
    /// The reason why there are none.
    Unusable(String),
}

impl CredentialState {
    pub fn usable(&self) -> Option<&Credentials> {
        match self {
            Self::Usable(credentials) => Some(credentials),
            Self::Pending | Self::Unusable(_) => None,
        }
    }
}

#[derive(Debug, Snafu)]
enum CredentialError {
    #[snafu(display("the directory {path} cannot be read"))]
    Directory { path: String, source: std::io::Error },
    #[snafu(display("the credentials cannot be used"))]
    Content { source: CredentialsError },
    #[snafu(display(
        "`{key}` is a certificate, which this controller does not support: set a user and a password"
    ))]
    Certificate { key: String },
    #[snafu(display("{present} exists but {missing} does not: add that file"))]
    MissingFile { present: String, missing: String },
    #[snafu(display("the credentials in the files of {path} cannot be used"))]
    Files { path: String, source: CredentialsError },
}

/// Watches the credentials of a vCenter forever and sends them to `state`. Usable credentials stay in
/// use while newer ones are unusable.
pub async fn watch_credentials(
    vcenter: Vcenter,
    client: Client,
    state: watch::Sender<CredentialState>,
) {
    match &vcenter.credentials {
        CredentialSource::Inline(user, password) => {
            publish(&state, Ok(Credentials::new(user.as_str(), password.expose())));
            std::future::pending::<()>().await;
        }
        CredentialSource::Secret(namespace, name) => {
            let api = Api::<Secret>::namespaced(client, namespace);
            watch_secret(&api, namespace, name, &vcenter.server, &state).await;
        }
        CredentialSource::Directory(path) => loop {
            publish(&state, from_directory(path, &vcenter.server).map_err(|e| error_chain(&e)));
            sleep(POLL_INTERVAL).await;
        },
    }
}

async fn watch_secret(
    api: &Api<Secret>,
    namespace: &str,
    name: &str,
    server: &str,
    state: &watch::Sender<CredentialState>,
) {
    loop {
        let mut changes = std::pin::pin!(watcher::watch_object(api.clone(), name).boxed());
        loop {
            match changes.try_next().await {
                Ok(Some(Some(secret))) => {
                    let data = secret.data.unwrap_or_default().into_iter();
                    let data = data.map(|(key, value)| (key, value.0)).collect();
                    let read = from_data(&data, server);
                    publish(
                        state,
                        read.map_err(|e| format!("Secret {namespace}/{name}: {}", error_chain(&e))),
                    );
                }
                Ok(Some(None)) => {
                    publish(state, Err(format!("the Secret {namespace}/{name} does not exist")));
                }
                Ok(None) => break,
                Err(error) => {
                    let fix = if is_forbidden(&error) { FORBIDDEN_FIX } else { "" };
                    let why = format!("the Secret {namespace}/{name} cannot be read: {error}{fix}");
                    publish(state, Err(why));
                    sleep(POLL_INTERVAL).await;
                }
            }
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchStartFailed};
    matches!(
        error,
        InitialListFailed(kube::Error::Api(status)) | WatchStartFailed(kube::Error::Api(status))
            if status.code == 403
    )
}

/// Sends a change. An error is sent only if there are no usable credentials yet.
fn publish(state: &watch::Sender<CredentialState>, now: Result<Credentials, String>) {
    state.send_if_modified(|state| match (&*state, now) {
        (CredentialState::Usable(before), Ok(now)) if *before == now => false,
        (_, Ok(now)) => {
            *state = CredentialState::Usable(now);
            true
        }
        (CredentialState::Usable(_), Err(why)) => {
            tracing::warn!(why, "the new credentials are unusable; the old ones stay in use");
            false
        }
        (CredentialState::Unusable(before), Err(why)) if *before == why => false,
        (_, Err(why)) => {
            *state = CredentialState::Unusable(why);
            true
        }
    });
}

fn from_data(data: &SecretData, server: &str) -> Result<Credentials, CredentialError> {
    if let Some((key, _)) = data.iter().find(|(_, value)| value.starts_with(b"-----BEGIN ")) {
        return CertificateSnafu { key }.fail();
    }
    let read = Read::read(data).context(ContentSnafu)?;
    let credential = read.for_server(server).context(ContentSnafu)?;
    Ok(Credentials::new(credential.username.as_str(), credential.password.expose()))
}

fn from_directory(path: &Path, server: &str) -> Result<Credentials, CredentialError> {
    let shown = || path.display().to_string();
    let unreadable = |_: &mut std::io::Error| DirectorySnafu { path: shown() };
    // The kubelet mounts a Secret as a folder behind the link `..data` and replaces the link when the
    // Secret changes. Reading each file through the link could mix two versions.
    let mounted = path.join("..data");
    let folder = if mounted.exists() {
        std::fs::canonicalize(&mounted).with_context(unreadable)?
    } else {
        path.to_path_buf()
    };
    let mut data: SecretData = BTreeMap::new();
    for entry in std::fs::read_dir(&folder).with_context(unreadable)? {
        let entry = entry.with_context(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("..") && entry.path().is_file() {
            let content = std::fs::read(entry.path());
            data.insert(name, content.with_context(unreadable)?);
        }
    }
    let file = |key: String| path.join(key).display().to_string();
    from_data(&data, server).map_err(|error| match error {
        CredentialError::Content { source: CredentialsError::Half { present, missing } } => {
            CredentialError::MissingFile { present: file(present), missing: file(missing) }
        }
        CredentialError::Content { source } => CredentialError::Files { path: shown(), source },
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(entries: &[(&str, &str)]) -> SecretData {
        entries.iter().map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec())).collect()
    }

    #[test]
    fn every_upstream_format_of_user_and_password_is_read() {
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
        let error = error_chain(&error.unwrap_err());
        assert!(error.contains("credentials for other, none for vc.test"), "{error}");
        let pem = "-----BEGIN CERTIFICATE-----\nMII\n";
        let error =
            from_data(&data(&[("vc.test.username", pem), ("vc.test.password", "k")]), "vc.test");
        let error = error_chain(&error.unwrap_err());
        assert!(error.contains("`vc.test.username` is a certificate"), "{error}");
    }

    /// Mounts a Secret as the kubelet does: a folder for each version, the link `..data` to the current
    /// one, and a link for each file through `..data`.
    fn mount(at: &Path, version: &str, files: &[(&str, &str)]) {
        use std::{fs, os::unix::fs::symlink};
        fs::create_dir_all(at.join(version)).unwrap();
        for (name, content) in files {
            fs::write(at.join(version).join(name), content).unwrap();
            let _ = symlink(Path::new("..data").join(name), at.join(name));
        }
        symlink(version, at.join("..data_tmp")).unwrap();
        fs::rename(at.join("..data_tmp"), at.join("..data")).unwrap();
    }

    /// Removed on drop.
    struct TempDirectory(std::path::PathBuf);

    impl TempDirectory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ccm-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for TempDirectory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const USER: &str = "vc.test.username";
    const PASS: &str = "vc.test.password";

    #[test]
    fn plain_files_and_mounted_secrets_are_read() {
        let plain = TempDirectory::new("plain");
        std::fs::write(plain.0.join(USER), "u\n").unwrap();
        std::fs::write(plain.0.join(PASS), "p\n").unwrap();
        // A folder is not a key.
        std::fs::create_dir(plain.0.join("lost+found")).unwrap();
        assert_eq!(from_directory(&plain.0, "vc.test").unwrap(), Credentials::new("u", "p"));
        let mounted = TempDirectory::new("mounted");
        mount(&mounted.0, "..1", &[(USER, "u"), (PASS, "p")]);
        assert_eq!(from_directory(&mounted.0, "vc.test").unwrap(), Credentials::new("u", "p"));
        mount(&mounted.0, "..2", &[(USER, "u"), (PASS, "new")]);
        assert_eq!(from_directory(&mounted.0, "vc.test").unwrap(), Credentials::new("u", "new"));
    }

    #[test]
    fn user_and_password_are_never_from_two_versions() {
        let directory = TempDirectory::new("swapped");
        mount(&directory.0, "..1", &[(USER, "user-1"), (PASS, "pass-1")]);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for version in 2..400 {
                    let (user, pass) = (format!("user-{version}"), format!("pass-{version}"));
                    let folder = format!("..{version}");
                    mount(&directory.0, &folder, &[(USER, &user), (PASS, &pass)]);
                }
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let read = from_directory(&directory.0, "vc.test").unwrap();
                let version = read.user().strip_prefix("user-").unwrap().to_owned();
                assert_eq!(read, Credentials::new(read.user(), format!("pass-{version}").as_str()));
            }
        });
    }

    #[test]
    fn the_error_names_a_missing_or_empty_file() {
        let directory = TempDirectory::new("half");
        let error = |files: &[(&str, &str)], version: &str| {
            mount(&directory.0, version, files);
            error_chain(&from_directory(&directory.0, "vc.test").unwrap_err())
        };
        let path = directory.0.display();
        let missing = error(&[(USER, "u")], "..1");
        let expected = format!("{path}/{USER} exists but {path}/{PASS} does not: add that file");
        assert_eq!(missing, expected);
        let empty = error(&[(USER, "u"), (PASS, "\n")], "..2");
        assert!(empty.contains(&path.to_string()) && empty.contains(PASS), "{empty}");
        let nothing =
            error_chain(&from_directory(&directory.0.join("none"), "vc.test").unwrap_err());
        assert!(
            nothing.contains(&format!("the directory {path}/none cannot be read")),
            "{nothing}"
        );
    }

    #[test]
    fn an_error_never_replaces_usable_credentials() {
        let (state, seen) = watch::channel(CredentialState::Pending);
        publish(&state, Err("no Secret".into()));
        assert!(matches!(&*seen.borrow(), CredentialState::Unusable(_)));
        publish(&state, Ok(Credentials::new("u", "p")));
        publish(&state, Err("the Secret was deleted".into()));
        assert!(matches!(&*seen.borrow(), CredentialState::Usable(_)));
    }
}
