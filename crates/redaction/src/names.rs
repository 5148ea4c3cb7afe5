/// A name that contains one of these belongs to a secret. Lower case, letters and digits only.
const SECRET: [&str; 12] = [
    "password",
    "passwd",
    "pwd",
    "passphrase",
    "secret",
    "token",
    "private",
    "credential",
    "apikey",
    "sessionid",
    "soapsession",
    "cookie",
];

/// A name that ends with one of these refers to a secret but does not contain it. Support needs its value.
const REFERENCE: [&str; 4] =
    ["secretname", "secretnamespace", "secretsdirectory", "tokenexpiration"];

/// Whether the value of a field, flag, environment variable, header or XML element with this name is secret.
/// Case and punctuation do not matter.
pub fn is_secret_name(name: &str) -> bool {
    let letters = name.chars().filter(|c| c.is_alphanumeric());
    let name: String = letters.flat_map(char::to_lowercase).collect();
    name == "authorization"
        || SECRET.iter().any(|word| name.contains(word))
            // `spec.credentials` names a Secret.
            && name != "credentials"
            && !REFERENCE.iter().any(|word| name.ends_with(word))
}

/// Whether this key of a VM's extra configuration is a guest variable. cloud-init puts passwords there.
/// ESXi ignores the case of the key.
pub fn is_guest_variable(key: &str) -> bool {
    let prefix = "guestinfo.";
    key.trim_start().get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Characters of which names of fields, flags and variables consist.
pub(crate) fn is_name_character(c: char) -> bool {
    c.is_alphanumeric() || "-_./".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_recognized_in_every_spelling() {
        for name in [
            "password",
            "VC_PASSWORD",
            "--bearer-token",
            "clientSecret",
            "vmware-api-session-id",
            "vmware_soap_session",
            "vcSessionCookie",
            "Set-Cookie",
            "pwd",
            "Authorization",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["secretName", "secret-namespace", "credentials", "user", "rbac.authorization"]
        {
            assert!(!is_secret_name(name), "{name}");
        }
    }
}
