//! Redacts values by their name: `password = …`, `"token": "…"`, `--password=…`, `--password …`, YAML
//! blocks, private keys, `https://user:…@host`. No Secret needs to contain them.

use std::borrow::Cow;

use crate::{
    REDACTED,
    names::{is_name_character, is_secret_name},
};

/// Redacts secrets in a text of one or more lines and keeps its line breaks. An unquoted value ends with its
/// line; after a flag it ends with its word.
pub fn redact_text(text: &str) -> String {
    let mut lines = Vec::new();
    // Lines with more indentation than this belong to the secret above.
    let mut block: Option<usize> = None;
    let mut in_private_key = false;
    for line in text.split('\n') {
        let indent = line.len() - line.trim_start().len();
        if in_private_key || block.is_some_and(|above| indent > above && !line.trim().is_empty()) {
            in_private_key &= !line.contains("-----END");
            lines.push(format!("{}{REDACTED}", &line[..indent]));
            continue;
        }
        if !line.trim().is_empty() {
            block = None;
        }
        if is_start_of_private_key(line) {
            in_private_key = !line.contains("-----END");
            lines.push(REDACTED.to_owned());
            continue;
        }
        let (line, continues) = redact_values(&redact_userinfo(line), true);
        if continues {
            block = Some(indent);
        }
        lines.push(line);
    }
    lines.join("\n")
}

/// Redacts secrets in a message and puts it on one line.
pub fn redact_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if is_start_of_private_key(&line) {
        return REDACTED.to_owned();
    }
    redact_values(&redact_userinfo(&line), false).0
}

fn is_start_of_private_key(line: &str) -> bool {
    line.contains("-----BEGIN") && line.contains("PRIVATE KEY-----")
}

/// Redacts passwords in URLs.
fn redact_userinfo(line: &str) -> Cow<'_, str> {
    if !line.contains("://") {
        return line.into();
    }
    let (mut out, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        rest = after;
        let end = rest.find(|c: char| c.is_whitespace() || ['/', '?', '#', '"'].contains(&c));
        let authority = &rest[..end.unwrap_or(rest.len())];
        if let Some((userinfo, _)) = authority.rsplit_once('@')
            && let Some((user, _)) = userinfo.split_once(':')
        {
            out.extend([user, ":", REDACTED]);
            rest = &rest[userinfo.len()..];
        }
    }
    out.push_str(rest);
    out.into()
}

/// Redacts named values in one line. With `multiline`, also returns whether the last value continues below.
fn redact_values(line: &str, multiline: bool) -> (String, bool) {
    let (mut out, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(at) = rest.find(['=', ':', ' ', '\t']) {
        let (before, after) = rest.split_at(at + 1);
        out.push_str(before);
        rest = after;
        let Some(name) = secret_name_before(&out).map(str::to_owned) else { continue };
        if !multiline && before.ends_with(':') && rest.starts_with(' ') && is_object_name(&name) {
            continue;
        }
        let value = rest.trim_start();
        out.push_str(&rest[..rest.len() - value.len()]);
        let is_block = multiline
            && value.strip_prefix(['|', '>']).is_some_and(|more| {
                more.trim_end().chars().all(|c| ['+', '-'].contains(&c) || c.is_ascii_digit())
            });
        if value.is_empty() || is_block {
            // Whole sections are named after tokens and secrets, but not after passwords.
            return (out + value, is_block || name.to_lowercase().contains("passw"));
        }
        let end = match value.chars().next().filter(|first| ['"', '\''].contains(first)) {
            Some(quote) => end_of_quoted(value, quote),
            None if name.starts_with('-') => value.find(char::is_whitespace),
            None => None,
        };
        out.push_str(REDACTED);
        rest = end.map_or("", |end| &value[end..]);
    }
    (out + rest, false)
}

/// Whether a message reports on a Secret instead of quoting from one: `secret: not found`,
/// `kube-system/vc-secret: not found`. Names of passwords and tokens never count as such.
fn is_object_name(name: &str) -> bool {
    let name = name.to_lowercase();
    let quotes = ["passw", "pwd", "token", "secretkey"].iter().any(|word| name.contains(word));
    !quotes && (name.contains('/') || name == "secret" || name == "secrets")
}

/// The name in front of the separator that ends `before`, if its value is secret. Only the name of a flag can
/// end with a blank.
fn secret_name_before(before: &str) -> Option<&str> {
    let separator = before.chars().next_back()?;
    let mut name = &before[..before.len() - separator.len_utf8()];
    let is_blank = separator.is_whitespace();
    if !is_blank {
        name = name.trim_end_matches(|c: char| c.is_whitespace() || ['"', '\'', '\\'].contains(&c));
    }
    let name = &name[name.trim_end_matches(is_name_character).len()..];
    (is_secret_name(name) && (!is_blank || name.starts_with("--"))).then_some(name)
}

/// The index after the closing quote; `None` without one, or if the text continues right after it, as in `""x""`.
fn end_of_quoted(value: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    let end = value.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == quote && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    let end = end.map(|(at, _)| at + 1)?;
    let ends = |c: char| c.is_whitespace() || [',', ';', ')', '}', ']'].contains(&c);
    value[end..].chars().next().is_none_or(ends).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_a_secret_name_are_redacted() {
        for (text, left) in [
            ("password = geheim", "password = (redacted)"),
            ("  password=\"ge \\\" heim\" ; why", "  password=(redacted) ; why"),
            ("user: u\npassword: ge heim\nport: 443", "user: u\npassword: (redacted)\nport: 443"),
            (
                r#"{"user":"u","password":"x","port":1}"#,
                r#"{"user":"u","password":(redacted),"port":1}"#,
            ),
            (r#"{\"password\":\"x\"}"#, r#"{\"password\":(redacted)"#),
            ("--password=geheim", "--password=(redacted)"),
            ("password=\"\"geheim\"\" ; why", "password=(redacted)"),
            ("password=''geheim''", "password=(redacted)"),
            ("login --password geheim --port 443", "login --password (redacted) --port 443"),
            ("login --password=geheim --port=443", "login --password=(redacted) --port=443"),
            ("VC_PASSPHRASE=a:b", "VC_PASSPHRASE=(redacted)"),
            ("CLIENT_SECRET: a", "CLIENT_SECRET: (redacted)"),
            (
                "Post \"https://u:ge:h@im@vc.example.com/sdk\": EOF",
                "Post \"https://u:(redacted)@vc.example.com/sdk\": EOF",
            ),
            ("http://u:a@b http://c:d@e", "http://u:(redacted)@b http://c:(redacted)@e"),
            ("Authorization: Bearer abc.def", "Authorization: (redacted)"),
            ("vmware-api-session-id: 52ab", "vmware-api-session-id: (redacted)"),
            ("password: 'not closed", "password: (redacted)"),
            (
                "a:\n  password: |-\n    ge\n    heim\n  b: c",
                "a:\n  password: |-\n    (redacted)\n    (redacted)\n  b: c",
            ),
            ("password:\n  geheim\nb: c", "password:\n  (redacted)\nb: c"),
            (
                "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nb",
                "(redacted)\n(redacted)\n(redacted)\nb",
            ),
        ] {
            assert_eq!(redact_text(text), left, "{text}");
        }
    }

    #[test]
    fn everything_else_is_kept() {
        for text in [
            "secretName: vc\nsecretNamespace: kube-system\n",
            "secret-name = \"vc\"",
            "user = \"u\"\nport = \"443\"",
            "the password of user: u was refused at 12:30",
            "secretKeyRef:\n  name: vc\n  key: k",
            "credentials: vcenter-a",
            "https://vc.example.com:443/sdk",
            "https://user@vc.example.com:443/sdk?mail=a:b@c",
            "clusterroles.rbac.authorization.k8s.io \"a\" is forbidden",
            "",
        ] {
            assert_eq!(redact_text(text), text);
        }
    }

    #[test]
    fn a_message_is_redacted_and_put_on_one_line() {
        for (text, expected) in [
            ("password = \"hunter2\"", "password = (redacted)"),
            ("Password=hunter2, user=k8s", "Password=(redacted)"),
            (r#"{"password":"hunter2","user":"k8s"}"#, r#"{"password":(redacted),"user":"k8s"}"#),
            ("token: abc def", "token: (redacted)"),
            ("pwd=a token=b", "pwd=(redacted)"),
            ("password=|5", "password=(redacted)"),
            ("incorrect user name or password", "incorrect user name or password"),
            ("the password of k8s expires", "the password of k8s expires"),
            ("first\nsecond\ttab", "first second tab"),
            ("failed to get secret: not found", "failed to get secret: not found"),
            ("kube-system/cpi-global-secret: no data", "kube-system/cpi-global-secret: no data"),
            ("kube-system/vc-password: geheim", "kube-system/vc-password: (redacted)"),
            ("secret=geheim", "secret=(redacted)"),
        ] {
            assert_eq!(redact_line(text), expected);
        }
    }
}
