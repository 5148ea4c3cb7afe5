//! Finds the credentials in a Secret.

use std::collections::BTreeMap;

use super::{Credential, Credentials, CredentialsError, Format, SecretData};
use crate::cpi::CpiConfig;
use crate::csi::CsiConfig;
use crate::secret::SecretText;

const RANCHER: &str = "vmwarevspherecredentialConfig-";

pub(super) fn read(data: &SecretData) -> Result<Credentials, CredentialsError> {
    let mut secret_keys = SecretKeys { data, pairs: BTreeMap::new(), unknown: Vec::new() };
    let mut all = Vec::new();
    for key in data.keys() {
        secret_keys.sort(key);
    }
    for ((_, _), pair) in &secret_keys.pairs {
        all.extend(secret_keys.credential(pair)?);
    }
    for (key, value) in data {
        if let Some(configured) = configuration(key, value)? {
            all.extend(configured);
        }
    }
    if all.is_empty() {
        return Err(CredentialsError::Nothing);
    }
    Ok(Credentials { all, unknown: secret_keys.unknown })
}

/// The keys of one credential, before their values are read.
struct CredentialKeys {
    format: Format,
    server: Server,
    username: String,
    password: String,
    session: Option<String>,
}

enum Server {
    Any,
    Named(String),
    /// In the value of this key.
    InKey(String),
    /// In the value of this key, if it exists.
    MaybeInKey(String),
}

struct SecretKeys<'a> {
    data: &'a SecretData,
    pairs: BTreeMap<(Format, String), CredentialKeys>,
    unknown: Vec<String>,
}

impl SecretKeys<'_> {
    /// Assigns a key to its credential.
    fn sort(&mut self, key: &str) {
        let by_address =
            [".username", ".password", ".vc-session-manager-url", ".vc-session-manager-token"];
        let numbered = ["server_", "username_", "password_"];
        if key == "username" || key == "password" {
            self.note(Format::BasicAuth, "", Server::Any, "username", "password");
        } else if let Some(suffix) = by_address.into_iter().find(|s| key.ends_with(s)) {
            let server = key.strip_suffix(suffix).unwrap_or_default();
            let (user, pass) = (format!("{server}.username"), format!("{server}.password"));
            let pair =
                self.note(Format::ByAddress, server, Server::Named(server.into()), &user, &pass);
            if suffix.contains("session-manager") {
                pair.session = Some(key.to_owned());
            }
        } else if let Some(id) = numbered
            .into_iter()
            .find_map(|prefix| key.strip_prefix(prefix))
            // The CPI does not accept the key without a number.
            .filter(|id| !id.is_empty())
        {
            let (user, pass) = (format!("username_{id}"), format!("password_{id}"));
            let server = Server::InKey(format!("server_{id}"));
            self.note(Format::Numbered, id, server, &user, &pass);
        } else if key.starts_with(RANCHER) {
            let (user, pass) = (format!("{RANCHER}username"), format!("{RANCHER}password"));
            let server = Server::MaybeInKey(format!("{RANCHER}vcenter"));
            self.note(Format::Rancher, "", server, &user, &pass);
        } else if !is_configuration(key) {
            self.unknown.push(key.to_owned());
        }
    }

    fn note(
        &mut self,
        format: Format,
        id: &str,
        server: Server,
        username: &str,
        password: &str,
    ) -> &mut CredentialKeys {
        self.pairs.entry((format, id.to_owned())).or_insert_with(|| CredentialKeys {
            format,
            server,
            username: username.to_owned(),
            password: password.to_owned(),
            session: None,
        })
    }

    fn credential(&self, pair: &CredentialKeys) -> Result<Option<Credential>, CredentialsError> {
        let there = |key: &String| self.data.contains_key(key);
        let (has_user, has_password) = (there(&pair.username), there(&pair.password));
        if let (Some(key), false) = (&pair.session, has_user && has_password) {
            return Err(CredentialsError::SessionManager { key: key.clone() });
        }
        let half = |present: &String, missing: &String| {
            Err(CredentialsError::Half { present: present.clone(), missing: missing.clone() })
        };
        let server = match &pair.server {
            Server::Named(name) => Some(name.clone()),
            Server::InKey(key) | Server::MaybeInKey(key) if there(key) => Some(self.text(key)?.0),
            Server::Any | Server::MaybeInKey(_) => None,
            Server::InKey(key) => {
                let present = if has_user { &pair.username } else { &pair.password };
                return half(present, key);
            }
        };
        match (has_user, has_password) {
            (true, true) => {}
            (true, false) => return half(&pair.username, &pair.password),
            (false, true) => return half(&pair.password, &pair.username),
            (false, false) => match &pair.server {
                Server::InKey(key) | Server::MaybeInKey(key) if there(key) => {
                    return half(key, &pair.username);
                }
                _ => return Ok(None),
            },
        }
        let (username, cut_user) = self.text(&pair.username)?;
        let (password, cut_password) = self.text(&pair.password)?;
        Ok(Some(Credential {
            server,
            username,
            password: SecretText::from(password),
            format: pair.format,
            key: pair.password.clone(),
            trimmed: cut_user || cut_password,
        }))
    }

    /// A value as one line of text, and whether a line break at its end was removed.
    fn text(&self, key: &str) -> Result<(String, bool), CredentialsError> {
        let key_name = || key.to_owned();
        let bytes = self.data.get(key).map(Vec::as_slice).unwrap_or_default();
        let text =
            str::from_utf8(bytes).map_err(|_| CredentialsError::NotText { key: key_name() })?;
        let cut = text.strip_suffix('\n').unwrap_or(text);
        let cut = cut.strip_suffix('\r').filter(|_| cut.len() < text.len()).unwrap_or(cut);
        if cut.is_empty() {
            return Err(CredentialsError::EmptyValue { key: key_name() });
        }
        if cut.contains(['\n', '\r']) {
            return Err(CredentialsError::LineBreak { key: key_name() });
        }
        Ok((cut.to_owned(), cut.len() < text.len()))
    }
}

fn is_configuration(key: &str) -> bool {
    matches!(key, "csi-vsphere.conf" | "cloud.conf" | "vsphere.conf" | "cloud-config")
}

/// The credentials in a driver's configuration; `None` if the key does not hold one.
fn configuration(key: &str, value: &[u8]) -> Result<Option<Vec<Credential>>, CredentialsError> {
    if !is_configuration(key) {
        return Ok(None);
    }
    let text =
        str::from_utf8(value).map_err(|_| CredentialsError::NotText { key: key.to_owned() })?;
    let wrong = |source| CredentialsError::Configuration { key: key.to_owned(), source };
    let credential = |server: &str, username: &str, password: &SecretText| Credential {
        server: Some(server.to_owned()),
        username: username.to_owned(),
        password: password.clone(),
        format: Format::Configuration,
        key: key.to_owned(),
        trimmed: false,
    };
    let mut all = Vec::new();
    let incomplete = |server: &str, user: &str| {
        let (present, missing) =
            if user.is_empty() { ("password", "user") } else { ("user", "password") };
        Err(CredentialsError::Half {
            present: format!("{key}: [VirtualCenter \"{server}\"] {present}"),
            missing: format!("{key}: [VirtualCenter \"{server}\"] {missing}"),
        })
    };
    if key == "csi-vsphere.conf" || text.contains("[VirtualCenter") {
        let config = CsiConfig::read(text).map_err(wrong)?.config;
        for (server, vcenter) in &config.vcenters {
            match config.login(vcenter) {
                (user, password) if user.is_empty() && password.is_empty() => {}
                (user, password) if user.is_empty() || password.is_empty() => {
                    return incomplete(server, user);
                }
                (user, password) => all.push(credential(server, user, password)),
            }
        }
    } else {
        let config = CpiConfig::read(text).map_err(wrong)?.config;
        let global = &config.global;
        for vcenter in config.vcenters.values() {
            let user = if vcenter.user.is_empty() { &global.user } else { &vcenter.user };
            let own = &vcenter.password;
            let password = if own.is_empty() { &global.password } else { own };
            if !user.is_empty() && !password.is_empty() {
                all.push(credential(&vcenter.server, user, password));
            }
        }
    }
    Ok(Some(all))
}
