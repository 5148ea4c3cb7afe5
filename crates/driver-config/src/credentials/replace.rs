//! Replaces a password in a driver's Secret and leaves everything else as it is.

use std::collections::BTreeMap;

use snafu::{ResultExt, Snafu};
use zeroize::Zeroize;

use super::{Credential, Credentials, CredentialsError, Format, SecretData, host};
use crate::csi::CsiConfig;
use crate::keys::{ReadError, WriteError};
use crate::secret::SecretText;

/// The data of a Secret as text, wiped on drop.
pub type SecretTexts = BTreeMap<String, SecretText>;

/// The result for one vCenter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replaced {
    Changed,
    /// It already had that password.
    Unchanged,
    /// It has another user for this vCenter, so the password does not belong to that user.
    OtherUser,
    Absent,
}

/// Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Snafu)]
pub enum ReplaceError {
    #[snafu(display("{source}"))]
    Read { source: CredentialsError },
    #[snafu(display("the key `{key}` of the Secret is not a driver configuration"))]
    Configuration { key: String, source: ReadError },
    #[snafu(display("{source}"))]
    Write { source: WriteError },
    /// A format that VDO does not write.
    #[snafu(display("the key `{key}` of the Secret has a format that VDO does not write"))]
    Foreign { key: String },
}

/// Replaces the password of one user at one vCenter, given as host, `host:port` or `[v6]:port`.
///
/// Understands the formats of [`super::render_cpi_secret`] and [`CsiConfig::render`], regardless of their author.
/// Unknown keys stay, except inside `csi-vsphere.conf`, which is written again.
pub fn replace_password(
    data: &mut SecretTexts,
    server: &str,
    username: &str,
    password: &SecretText,
) -> Result<Replaced, ReplaceError> {
    let here = |login: &&Credential| {
        let named = login.server.as_deref();
        named.is_some_and(|named| host(named).eq_ignore_ascii_case(host(server)))
    };
    let all = read(data)?.all;
    let logins: Vec<&Credential> = all.iter().filter(here).collect();
    if logins.is_empty() {
        return Ok(Replaced::Absent);
    }
    if logins.iter().any(|login| login.username != username) {
        return Ok(Replaced::OtherUser);
    }
    let open: Vec<&&Credential> = logins.iter().filter(|l| l.password != *password).collect();
    let mut written = Vec::new();
    for login in &open {
        let text = match login.format {
            Format::ByAddress | Format::Numbered => password.clone(),
            Format::Configuration if login.key == CSI_KEY => {
                in_configuration(&data[CSI_KEY], server, password)?
            }
            _ => return ForeignSnafu { key: &login.key }.fail(),
        };
        written.push((login.key.clone(), text));
    }
    data.extend(written);
    Ok(if open.is_empty() { Replaced::Unchanged } else { Replaced::Changed })
}

/// The storage driver's configuration.
const CSI_KEY: &str = "csi-vsphere.conf";

fn read(data: &SecretTexts) -> Result<Credentials, ReplaceError> {
    let bytes = data.iter().map(|(key, text)| (key.clone(), text.expose().as_bytes().to_vec()));
    let mut bytes: SecretData = bytes.collect();
    let read = Credentials::read(&bytes).context(ReadSnafu);
    bytes.values_mut().for_each(Zeroize::zeroize);
    read
}

fn in_configuration(
    text: &SecretText,
    server: &str,
    password: &SecretText,
) -> Result<SecretText, ReplaceError> {
    let read = CsiConfig::read(text.expose()).context(ConfigurationSnafu { key: CSI_KEY })?;
    let mut config = read.config;
    let here = |name: &str| host(name).eq_ignore_ascii_case(host(server));
    for (_, vcenter) in config.vcenters.iter_mut().filter(|(name, _)| here(name)) {
        // It gets a password of its own, even if it used the global one: the other vCenters keep that.
        vcenter.password = password.clone();
    }
    config.render().context(WriteSnafu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::render_cpi_secret;
    use crate::csi::VirtualCenter;

    fn csi() -> SecretTexts {
        let vcenter = |user: &str, password: &str| VirtualCenter {
            user: user.into(),
            password: password.into(),
            thumbprint: "AA:BB".into(),
            datacenters: vec!["DC0".into(), "DC 1".into()],
            ..VirtualCenter::default()
        };
        let mut config = CsiConfig::default();
        config.global.cluster_id = "vdo-1".into();
        config.vcenters.insert("vc-a.example.com".into(), vcenter("k8s@a", "one"));
        config.vcenters.insert("vc-b.example.com".into(), vcenter("k8s@b", "two"));
        let text = config.render().unwrap();
        let certificate = ("ca-vc-a.example.com.pem".to_owned(), "-----BEGIN".into());
        BTreeMap::from([(CSI_KEY.to_owned(), text), certificate])
    }

    fn passwords(data: &SecretTexts) -> Vec<String> {
        let all = read(data).unwrap().all;
        all.into_iter().map(|login| login.password.expose().to_owned()).collect()
    }

    #[test]
    fn one_password_of_the_storage_driver_changes_and_nothing_else() {
        let before = csi();
        let mut data = before.clone();
        let new: SecretText = r#"p#a"s\s;w%o=r{d"#.into();
        let replace = |data: &mut SecretTexts, server: &str, user: &str| {
            replace_password(data, server, user, &new).unwrap()
        };
        assert_eq!(replace(&mut data, "vc-c.example.com", "k8s@a"), Replaced::Absent);
        assert_eq!(replace(&mut data, "vc-a.example.com", "k8s@b"), Replaced::OtherUser);
        assert_eq!(data, before);
        assert_eq!(replace(&mut data, "VC-A.example.com:443", "k8s@a"), Replaced::Changed);
        assert_eq!(passwords(&data), [new.expose(), "two"]);
        assert_eq!(replace(&mut data, "vc-a.example.com", "k8s@a"), Replaced::Unchanged);
        let old: SecretText = "one".into();
        assert_eq!(
            replace_password(&mut data, "vc-a.example.com", "k8s@a", &old).unwrap(),
            Replaced::Changed
        );
        assert_eq!(data, before, "there and back is where it began");
    }

    #[test]
    fn one_password_of_the_cloud_controller_changes_in_either_format() {
        let (one, two, new) = ("one".into(), "two".into(), SecretText::from("three"));
        let logins = [("fd00::7", "k8s@a", &one), ("vc-b.example.com", "k8s@b", &two)];
        let mut data = render_cpi_secret(logins);
        for (server, user) in [("[fd00::7]:8443", "k8s@a"), ("vc-b.example.com", "k8s@b")] {
            let done = replace_password(&mut data, server, user, &new);
            assert_eq!(done, Ok(Replaced::Changed), "{server}");
        }
        let logins = [("fd00::7", "k8s@a", &new), ("vc-b.example.com", "k8s@b", &new)];
        assert_eq!(data, render_cpi_secret(logins));
    }

    #[test]
    fn a_vcenter_with_the_password_for_all_gets_one_of_its_own() {
        let text = "[Global]\nuser = \"k8s@all\"\npassword = \"one\"\n\
                    [VirtualCenter \"a\"]\n[VirtualCenter \"b\"]\n";
        let mut data = BTreeMap::from([(CSI_KEY.to_owned(), text.into())]);
        let done = replace_password(&mut data, "a", "k8s@all", &"two".into());
        assert_eq!(done, Ok(Replaced::Changed));
        assert_eq!(passwords(&data), ["two", "one"]);
    }

    #[test]
    fn an_unknown_format_stays_unchanged() {
        let broken = || BTreeMap::from([(CSI_KEY.to_owned(), SecretText::from("[Global\npass"))]);
        let mut data = broken();
        assert!(replace_password(&mut data, "a", "k8s", &"two".into()).is_err());
        assert_eq!(data, broken());
    }
}
