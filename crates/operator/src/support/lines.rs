//! Values that stand in a text beside a name that says they are secret: `password = …`, `"token": "…"`,
//! `--password=…`, `--password …`, a YAML block, a private key, `https://user:…@host`. No Secret needs to
//! hold them.

use std::borrow::Cow;

use super::{REDACTED, is_telling};

/// A text without such values. What is not quoted goes to the end of its line, or of its word where it
/// belongs to a flag.
pub(crate) fn without_secrets(text: &str) -> String {
    let mut lines = Vec::new();
    // What goes on below a line: a block that is indented more than so much, or a key.
    let mut block: Option<usize> = None;
    let mut key = false;
    for line in text.split('\n') {
        let indent = line.len() - line.trim_start().len();
        if key || block.is_some_and(|above| indent > above && !line.trim().is_empty()) {
            key &= !line.contains("-----END");
            lines.push(format!("{}{REDACTED}", &line[..indent]));
            continue;
        }
        if !line.trim().is_empty() {
            block = None;
        }
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY-----") {
            key = !line.contains("-----END");
            lines.push(REDACTED.to_owned());
            continue;
        }
        let (line, goes_on) = without_values(&without_userinfo(line));
        if goes_on {
            block = Some(indent);
        }
        lines.push(line);
    }
    lines.join("\n")
}

/// A line whose addresses do not say with what password they are visited.
fn without_userinfo(line: &str) -> Cow<'_, str> {
    if !line.contains("://") {
        return line.into();
    }
    let (mut out, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        rest = after;
        let end = rest.find(|c: char| c.is_whitespace() || ['/', '?', '#', '"'].contains(&c));
        let host = &rest[..end.unwrap_or(rest.len())];
        if let Some((user, _)) = host.rsplit_once('@')
            && let Some((name, _)) = user.split_once(':')
        {
            out.extend([name, ":", REDACTED]);
            rest = &rest[user.len()..];
        }
    }
    out.push_str(rest);
    out.into()
}

/// A line without such values, and whether the value of its last name stands below.
fn without_values(line: &str) -> (String, bool) {
    let (mut out, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(at) = rest.find(['=', ':', ' ', '\t']) {
        let (before, after) = rest.split_at(at + 1);
        out.push_str(before);
        rest = after;
        let Some(name) = named(&out).map(str::to_owned) else { continue };
        let value = rest.trim_start();
        out.push_str(&rest[..rest.len() - value.len()]);
        let block = value.strip_prefix(['|', '>']).is_some_and(|more| {
            more.trim_end().chars().all(|c| ['+', '-'].contains(&c) || c.is_ascii_digit())
        });
        if value.is_empty() || block {
            // Whole sections are called after tokens and secrets; what is called a password is one.
            return (out + value, block || name.to_lowercase().contains("passw"));
        }
        let end = match value.chars().next().filter(|first| ['"', '\''].contains(first)) {
            Some(quote) => quoted(value, quote),
            None if name.starts_with('-') => value.find(char::is_whitespace),
            None => None,
        };
        out.push_str(REDACTED);
        rest = end.map_or("", |end| &value[end..]);
    }
    (out + rest, false)
}

/// The name whose value comes next, if it says that this is secret. A blank ends the name of a flag
/// alone.
fn named(before: &str) -> Option<&str> {
    let mut name = before;
    let by = name.chars().next_back()?;
    name = &name[..name.len() - by.len_utf8()];
    let blank = by.is_whitespace();
    if !blank {
        name = name.trim_end_matches([' ', '\t', '"', '\'', '\\']);
    }
    let part = |c: char| c.is_alphanumeric() || ['-', '_', '.', '/'].contains(&c);
    let begin = name.trim_end_matches(part).len();
    let name = &name[begin..];
    (is_telling(name) && (!blank || name.starts_with("--"))).then_some(name)
}

/// Where a quoted value ends, its quotes included; nowhere if it is not closed.
fn quoted(value: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    let end = value.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == quote && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    end.map(|(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_beside_a_telling_name_is_not_shown() {
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
            assert_eq!(without_secrets(text), left, "{text}");
        }
    }

    #[test]
    fn what_helps_stays() {
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
            assert_eq!(without_secrets(text), text);
        }
    }
}
