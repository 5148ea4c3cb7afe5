//! Redacts SOAP bodies.

use crate::{
    REDACTED,
    names::{is_guest_variable, is_secret_name},
};

/// Redacts the text of every element with a secret name, session keys, and the values of guest variables.
pub fn redact_xml(body: &str) -> String {
    let mut out = String::with_capacity(body.len());
    let mut rest = body;
    let mut guest_variable = false;
    while let Some(open) = rest.find('<') {
        let Some(close) = rest[open..].find('>').map(|at| open + at + 1) else { break };
        out.push_str(&rest[..close]);
        let is_end = rest[open..].starts_with("</");
        let tag = if is_end { "" } else { local_name(&rest[open..close]) };
        rest = &rest[close..];
        let end = rest.find('<').unwrap_or(rest.len());
        let text = &rest[..end];
        if tag == "key" && (is_guest_variable(text) || is_plain_key(text)) {
            guest_variable = is_guest_variable(text);
            continue;
        }
        let is_secret = tag == "key" || is_secret_name(tag) || guest_variable && tag == "value";
        if is_secret && !text.is_empty() {
            out.push_str(REDACTED);
            rest = &rest[end..];
        }
        if tag == "value" {
            guest_variable = false;
        }
    }
    out + rest
}

/// `key` is also the name of an option or a device number. Session keys are long and hexadecimal.
fn is_plain_key(text: &str) -> bool {
    text.len() < 20 || text.contains('.')
}

fn local_name(tag: &str) -> &str {
    let tag = tag.trim_start_matches('<');
    let tag = tag.split([' ', '>', '/', '\n', '\t', '\r']).next().unwrap_or_default();
    tag.rsplit_once(':').map_or(tag, |(_, local)| local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_session_keys_are_redacted() {
        let body = r#"<Login xmlns="urn:vim25"><userName>admin</userName><password>hunter2 &amp; co</password></Login>"#;
        let shown = redact_xml(body);
        assert!(!shown.contains("hunter2") && shown.contains("admin"), "{shown}");
        let session = "<returnval><key>52f0a8c1-1a2b-3c4d-5e6f-708192a3b4c5</key><userName>admin</userName></returnval>";
        assert!(!redact_xml(session).contains("52f0a8c1"));
        let header = "<e:Header><vcSessionCookie>c00kie</vcSessionCookie></e:Header>";
        assert!(!redact_xml(header).contains("c00kie"));
    }

    #[test]
    fn guest_variables_are_redacted_and_other_options_are_shown() {
        let body = r#"<OptionValue><key>guestinfo.userdata</key><value xsi:type="xsd:string">cGFzc3dvcmQ=</value></OptionValue>
            <OptionValue><key>disk.EnableUUID</key><value xsi:type="xsd:string">TRUE</value></OptionValue>"#;
        let shown = redact_xml(body);
        assert!(
            !shown.contains("cGFzc3dvcmQ=")
                && shown.contains("TRUE")
                && shown.contains("guestinfo.userdata"),
            "{shown}"
        );
        for key in ["GuestInfo.UserData", "GUESTINFO.x", " guestinfo.x"] {
            let shown = redact_xml(&body.replace("guestinfo.userdata", key));
            assert!(!shown.contains("cGFzc3dvcmQ=") && shown.contains("TRUE"), "{shown}");
        }
    }

    #[test]
    fn invalid_xml_is_redacted_too() {
        for body in ["", "<", "<a", "tet", "<password>x", "<password>", "</>"] {
            let shown = redact_xml(body);
            assert!(!shown.contains('x'), "{shown}");
        }
    }
}
