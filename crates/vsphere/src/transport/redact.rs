//! Redacts secrets in bodies before they are logged.

/// Elements whose text is a secret: passwords, tokens, session keys.
const SECRET: [&str; 7] =
    ["password", "vcSessionCookie", "key", "sessionId", "token", "id_token", "refresh_token"];

/// The maximum logged size of a body.
pub(super) const MAX_LOGGED: usize = 16 << 10;

/// Redacts all secrets in `body` and truncates it. Redacts values of guest variables
/// (`guestinfo.*`) too, because cloud-init puts passwords there.
pub(crate) fn redacted(body: &str) -> String {
    let mut out = String::with_capacity(body.len().min(MAX_LOGGED) + 64);
    let mut rest = body;
    let mut guest_variable = false;
    while let Some(open) = rest.find('<') {
        let Some(close) = rest[open..].find('>').map(|at| open + at + 1) else { break };
        out.push_str(&rest[..close]);
        let is_end = rest[open..].starts_with("</");
        let tag = if is_end { "" } else { name(&rest[open..close]) };
        rest = &rest[close..];
        let end = rest.find('<').unwrap_or(rest.len());
        let text = &rest[..end];
        if tag == "key" && (is_guest_variable(text) || is_plain_key(text)) {
            guest_variable = is_guest_variable(text);
            continue;
        }
        if !text.is_empty() && (SECRET.contains(&tag) || (guest_variable && tag == "value")) {
            out.push_str("***");
            rest = &rest[end..];
        }
        if tag == "value" {
            guest_variable = false;
        }
        if out.len() > MAX_LOGGED {
            break;
        }
    }
    if out.len() <= MAX_LOGGED {
        out.push_str(rest);
    }
    truncated(out)
}

/// Whether an advanced option is a guest variable. Ignores the case of the key, like ESXi.
pub(crate) fn is_guest_variable(key: &str) -> bool {
    let prefix = "guestinfo.";
    key.trim_start().get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Truncates `text` to [`MAX_LOGGED`].
pub(super) fn truncated(mut text: String) -> String {
    if text.len() > MAX_LOGGED {
        text.truncate(text.floor_char_boundary(MAX_LOGGED));
        text.push('…');
    }
    text
}

/// `key` can also be an option name or a device number, which are useful in a log. Session keys are
/// long hex strings.
fn is_plain_key(text: &str) -> bool {
    text.len() < 20 || text.contains('.')
}

fn name(tag: &str) -> &str {
    let tag = tag.trim_start_matches('<');
    let tag = tag.split([' ', '>', '/', '\n', '\t', '\r']).next().unwrap_or_default();
    tag.rsplit_once(':').map_or(tag, |(_, local)| local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_redacted() {
        let body = r#"<Login xmlns="urn:vim25"><userName>admin</userName><password>hunter2 &amp; co</password></Login>"#;
        let shown = redacted(body);
        assert!(!shown.contains("hunter2") && shown.contains("admin"), "{shown}");
        let session = "<returnval><key>52f0a8c1-1a2b-3c4d-5e6f-708192a3b4c5</key><userName>admin</userName></returnval>";
        assert!(!redacted(session).contains("52f0a8c1"));
        let header = "<e:Header><vcSessionCookie>c00kie</vcSessionCookie></e:Header>";
        assert!(!redacted(header).contains("c00kie"));
    }

    #[test]
    fn guest_variables_are_hidden_and_other_options_shown() {
        let body = r#"<OptionValue><key>guestinfo.userdata</key><value xsi:type="xsd:string">cGFzc3dvcmQ=</value></OptionValue>
            <OptionValue><key>disk.EnableUUID</key><value xsi:type="xsd:string">TRUE</value></OptionValue>"#;
        let shown = redacted(body);
        assert!(
            !shown.contains("cGFzc3dvcmQ=")
                && shown.contains("TRUE")
                && shown.contains("guestinfo.userdata"),
            "{shown}"
        );
        for key in ["GuestInfo.UserData", "GUESTINFO.x", " guestinfo.x"] {
            let shown = redacted(&body.replace("guestinfo.userdata", key));
            assert!(!shown.contains("cGFzc3dvcmQ=") && shown.contains("TRUE"), "{shown}");
        }
    }

    #[test]
    fn long_bodies_are_truncated() {
        assert!(redacted(&"<a>ä</a>".repeat(10_000)).len() < MAX_LOGGED + 16);
    }

    #[test]
    fn malformed_bodies_are_handled() {
        for body in ["", "<", "<a", "tet", "<password>x", "<password>", "</>"] {
            let shown = redacted(body);
            assert!(!shown.contains('x'), "{shown}");
        }
    }
}
