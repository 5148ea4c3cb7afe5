//! The credentials of registries, from the file that `docker login`, `podman login` and `skopeo login` write.

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use secrecy::SecretString;
use serde::{Deserialize, Deserializer};
use snafu::ResultExt as _;

use crate::{
    error::{CredentialsSnafu, Error, FileSnafu},
    reference::Repository,
};

/// User and password by registry.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    accounts: BTreeMap<String, Account>,
}

#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) user: String,
    pub(crate) password: SecretString,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Login>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "lowercase", default)]
struct Login {
    #[serde(deserialize_with = "secret")]
    auth: Option<SecretString>,
    username: Option<String>,
    #[serde(deserialize_with = "secret")]
    password: Option<SecretString>,
}

/// Reads a text that is wiped from memory afterwards.
pub(crate) fn secret<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SecretString>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.map(SecretString::from))
}

impl Credentials {
    /// Reads a file in the format of `~/.docker/config.json`.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = fs::read(path).context(FileSnafu { path, deed: "read" })?;
        Self::parse(path, &text)
    }

    /// Reads the content of such a file, for example from an image pull Secret. Errors name the `origin`.
    pub fn parse(origin: &Path, text: &[u8]) -> Result<Self, Error> {
        let failed = |why: &str| CredentialsSnafu { path: origin, why }.build();
        let file: File =
            serde_json::from_slice(text).map_err(|_| failed("it is not JSON with auths"))?;
        let mut accounts = BTreeMap::new();
        for (name, login) in file.auths {
            // Logins with a credential helper have an empty entry.
            let account = login.account().map_err(|why| failed(&format!("{name}: {why}")))?;
            accounts.extend(account.map(|account| (key(&name), account)));
        }
        Ok(Self { accounts })
    }

    /// Reads the usual files of this computer. Files that do not exist count as empty.
    pub fn usual() -> Result<Self, Error> {
        let mut all = Self::default();
        for path in usual_files() {
            match Self::read(&path) {
                Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                read => {
                    for (name, account) in read?.accounts {
                        all.accounts.entry(name).or_insert(account);
                    }
                }
            }
        }
        Ok(all)
    }

    /// The account for a repository: that of the longest matching path, else that of the registry.
    pub(crate) fn account(&self, repository: &Repository) -> Option<&Account> {
        let mut name = repository.to_string();
        loop {
            if let Some(account) = self.accounts.get(&name) {
                return Some(account);
            }
            name.truncate(name.rfind('/')?);
        }
    }
}

impl Login {
    fn account(self) -> Result<Option<Account>, &'static str> {
        use secrecy::ExposeSecret as _;
        if let (Some(user), Some(password)) = (self.username, self.password) {
            return Ok(Some(Account { user, password }));
        }
        let Some(auth) = self.auth else { return Ok(None) };
        let decoded = BASE64_STANDARD.decode(auth.expose_secret().trim());
        let decoded = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let Some(decoded) = decoded.map(SecretString::from) else {
            return Err("auth is not base64");
        };
        match decoded.expose_secret().split_once(':') {
            Some((user, password)) => {
                Ok(Some(Account { user: user.to_owned(), password: password.to_owned().into() }))
            }
            None => Err("auth is not USER:PASSWORD in base64"),
        }
    }
}

/// Docker Hub's entry has the address of an API that is no longer in use.
fn key(name: &str) -> String {
    let name = name.trim_start_matches("https://").trim_start_matches("http://");
    let name = name.trim_end_matches('/');
    match name {
        "index.docker.io/v1" | "index.docker.io" => "docker.io".to_owned(),
        name => name.to_owned(),
    }
}

fn usual_files() -> Vec<PathBuf> {
    let variable =
        |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = variable("HOME");
    let runtime = variable("XDG_RUNTIME_DIR").map(|folder| folder.join("containers/auth.json"));
    let config = home.as_ref().map(|home| home.join(".config/containers/auth.json"));
    let docker = variable("DOCKER_CONFIG").or(home.map(|home| home.join(".docker")));
    let docker = docker.map(|folder| folder.join("config.json"));
    [variable("REGISTRY_AUTH_FILE"), runtime, config, docker].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    fn read(text: &str) -> Result<Credentials, Error> {
        let folder = testkit::Workdir::new("credentials").unwrap();
        Credentials::read(&folder.write("auth.json", text).unwrap())
    }

    fn user(credentials: &Credentials, repository: &str) -> Option<String> {
        let account = credentials.account(&repository.parse().unwrap())?;
        Some(format!("{} {}", account.user, account.password.expose_secret()))
    }

    #[test]
    fn the_longest_path_wins_and_no_other_registry_gets_the_password() {
        let credentials = read(
            r#"{"auths": {
                "https://a.example.com/": {"auth": "YTpvbmU="},
                "a.example.com/team": {"username": "t", "password": "tw:o"},
                "https://index.docker.io/v1/": {"auth": "aHViOnA6dw=="},
                "helper.example.com": {}
            }, "credsStore": "pass"}"#,
        );
        let credentials = credentials.unwrap();
        assert_eq!(user(&credentials, "a.example.com/x/y").unwrap(), "a one");
        assert_eq!(user(&credentials, "a.example.com/team/y").unwrap(), "t tw:o");
        assert_eq!(user(&credentials, "a.example.com/teams").unwrap(), "a one");
        assert_eq!(user(&credentials, "busybox").unwrap(), "hub p:w");
        assert_eq!(user(&credentials, "helper.example.com/x"), None);
        assert_eq!(user(&credentials, "b.example.com/a.example.com"), None);
        assert!(!format!("{credentials:?}").contains("tw:o"), "{credentials:?}");
    }

    #[test]
    fn an_unusable_file_is_reported_without_its_content() {
        for text in [
            "no",
            r#"{"auths": {"a.b": {"auth": "c2VjcmV0"}}}"#,
            r#"{"auths": {"a.b": {"auth": "%%"}}}"#,
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("auth.json") && !error.contains("c2VjcmV0"), "{error}");
        }
    }
}
