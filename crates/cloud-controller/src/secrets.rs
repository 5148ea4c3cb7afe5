//! Credentials as they change: in a Secret, in files, or in the configuration itself.

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

/// How often files are looked at, and a failed watch is tried again.
const RHYTHM: Duration = Duration::from_secs(5);

/// What to do about a Secret that may not be read.
const REMEDY: &str =
    "; grant this account get, list and watch on that Secret, by a Role in its namespace";

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
    #[snafu(display(
        "`{key}` is a certificate, which this controller cannot log in with: give it a user and a password"
    ))]
    Certificate { key: String },
    #[snafu(display("there is {present} but no {missing}: add that file"))]
    MissingFile { present: String, missing: String },
    #[snafu(display(
        "the credentials in the files of {path}, each a key of a Secret, cannot be used"
    ))]
    Files { path: String, source: CredentialsError },
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
            tell(&known, from_directory(path, &vcenter.server).map_err(|e| error_chain(&e)));
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
                        read.map_err(|e| format!("Secret {namespace}/{name}: {}", error_chain(&e))),
                    );
                }
                Ok(Some(None)) => {
                    tell(known, Err(format!("the Secret {namespace}/{name} does not exist")));
                }
                Ok(None) => break,
                Err(error) => {
                    let remedy = if is_forbidden(&error) { REMEDY } else { "" };
                    let why =
                        format!("the Secret {namespace}/{name} cannot be read: {error}{remedy}");
                    tell(known, Err(why));
                    sleep(RHYTHM).await;
                }
            }
        }
        sleep(RHYTHM).await;
    }
}

/// Whether the account may not read it.
fn is_forbidden(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchStartFailed};
    matches!(
        error,
        InitialListFailed(kube::Error::Api(status)) | WatchStartFailed(kube::Error::Api(status))
            if status.code == 403
    )
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
    if let Some((key, _)) = data.iter().find(|(_, value)| value.starts_with(b"-----BEGIN ")) {
        return CertificateSnafu { key }.fail();
    }
    let read = Read::read(data).context(ContentSnafu)?;
    let credential = read.for_server(server).context(ContentSnafu)?;
    Ok(Credentials::new(credential.username.as_str(), credential.password.expose()))
}

fn from_directory(path: &Path, server: &str) -> Result<Credentials, Unusable> {
    let shown = || path.display().to_string();
    let unreadable = |_: &mut std::io::Error| DirectorySnafu { path: shown() };
    // A mounted Secret is a folder behind the link `..data`, which is turned to another one as a whole
    // when the Secret changes. Files that were read through the link one by one could be of both.
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
        Unusable::Content { source: CredentialsError::Half { present, missing } } => {
            Unusable::MissingFile { present: file(present), missing: file(missing) }
        }
        Unusable::Content { source } => Unusable::Files { path: shown(), source },
        other => other,
    })
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
        let error = error_chain(&error.unwrap_err());
        assert!(error.contains("credentials for other, none for vc.test"), "{error}");
        let pem = "-----BEGIN CERTIFICATE-----\nMII\n";
        let error =
            from_data(&data(&[("vc.test.username", pem), ("vc.test.password", "k")]), "vc.test");
        let error = error_chain(&error.unwrap_err());
        assert!(error.contains("`vc.test.username` is a certificate"), "{error}");
    }

    /// A Secret as a kubelet mounts it: files in a folder of its own, a link to the folder, and links
    /// through that one. A later Secret is another folder, to which the link is turned.
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

    /// An empty directory that goes with the test.
    struct Directory(std::path::PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ccm-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const USER: &str = "vc.test.username";
    const PASS: &str = "vc.test.password";

    #[test]
    fn files_are_read_plain_and_as_a_kubelet_mounts_them() {
        let plain = Directory::new("plain");
        std::fs::write(plain.0.join(USER), "u\n").unwrap();
        std::fs::write(plain.0.join(PASS), "p\n").unwrap();
        // A folder is no key of a Secret.
        std::fs::create_dir(plain.0.join("lost+found")).unwrap();
        assert_eq!(from_directory(&plain.0, "vc.test").unwrap(), Credentials::new("u", "p"));
        let mounted = Directory::new("mounted");
        mount(&mounted.0, "..1", &[(USER, "u"), (PASS, "p")]);
        assert_eq!(from_directory(&mounted.0, "vc.test").unwrap(), Credentials::new("u", "p"));
        mount(&mounted.0, "..2", &[(USER, "u"), (PASS, "new")]);
        assert_eq!(from_directory(&mounted.0, "vc.test").unwrap(), Credentials::new("u", "new"));
    }

    #[test]
    fn a_user_and_a_password_are_never_of_two_secrets() {
        let directory = Directory::new("swapped");
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
                let of = read.user().strip_prefix("user-").unwrap().to_owned();
                assert_eq!(read, Credentials::new(read.user(), format!("pass-{of}").as_str()));
            }
        });
    }

    #[test]
    fn a_file_that_is_missing_or_empty_is_named() {
        let directory = Directory::new("half");
        let error = |files: &[(&str, &str)], version: &str| {
            mount(&directory.0, version, files);
            error_chain(&from_directory(&directory.0, "vc.test").unwrap_err())
        };
        let path = directory.0.display();
        let missing = error(&[(USER, "u")], "..1");
        let expected = format!("there is {path}/{USER} but no {path}/{PASS}: add that file");
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
    fn trouble_never_takes_away_what_was_usable() {
        let (known, seen) = watch::channel(Known::Nothing);
        tell(&known, Err("no Secret".into()));
        assert!(matches!(&*seen.borrow(), Known::Unusable(_)));
        tell(&known, Ok(Credentials::new("u", "p")));
        tell(&known, Err("the Secret was deleted".into()));
        assert!(matches!(&*seen.borrow(), Known::These(_)));
    }
}
