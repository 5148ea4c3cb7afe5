//! What was said, for somebody who looks at it: with the tracing target `vsphere::soap` at level
//! trace, the beginning of every body, SOAP and REST, secrets replaced. Off, it costs a comparison.

use redaction::redact_xml;
use tracing::{Level, enabled, trace};
use zeroize::Zeroizing;

/// The log shows at most this many bytes of a body.
const SHOWN: usize = 16 << 10;

fn is_on() -> bool {
    enabled!(target: "vsphere::soap", Level::TRACE)
}

fn cut(mut text: String) -> String {
    if text.len() > SHOWN {
        text.truncate(text.floor_char_boundary(SHOWN));
        text.push('…');
    }
    text
}

/// Traces a SOAP request.
pub(crate) fn request(vcenter: &str, method: &str, body: &str) {
    if is_on() {
        trace!(target: "vsphere::soap", vcenter, method, request = cut(redact_xml(body)));
    }
}

/// Traces a SOAP reply that was read as a whole.
pub(crate) fn reply(vcenter: &str, method: &str, body: &str) {
    if is_on() {
        trace!(target: "vsphere::soap", vcenter, method, reply = cut(redact_xml(body)));
    }
}

/// Traces both bodies of a REST call.
pub(crate) fn rest(vcenter: &str, method: &str, request: Option<&str>, reply: &str) {
    if is_on() {
        // The id of a session is all there is in the answer to a login.
        let opens = method.starts_with("POST ") && method.ends_with("/session");
        let reply = if opens { redaction::REDACTED.to_owned() } else { cut(reply.to_owned()) };
        let request = request.map(|body| cut(body.to_owned()));
        trace!(target: "vsphere::soap", vcenter, method, request, reply);
    }
}

/// The beginning of a reply that is read as it arrives; traced when this is dropped.
#[derive(Debug)]
pub(crate) struct Trail(Option<Noted>);

#[derive(Debug)]
struct Noted {
    vcenter: String,
    method: &'static str,
    text: Zeroizing<Vec<u8>>,
    bytes: usize,
}

impl Trail {
    pub(crate) fn of(vcenter: &str, method: &'static str) -> Self {
        Self(is_on().then(|| Noted {
            vcenter: vcenter.to_owned(),
            method,
            text: Zeroizing::new(Vec::with_capacity(SHOWN)),
            bytes: 0,
        }))
    }

    /// Notes bytes that arrived.
    pub(crate) fn note(&mut self, bytes: &[u8]) {
        if let Some(noted) = &mut self.0 {
            let room = SHOWN - noted.text.len();
            noted.text.extend_from_slice(&bytes[..bytes.len().min(room)]);
            noted.bytes += bytes.len();
        }
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        if let Some(noted) = &self.0 {
            let Noted { vcenter, method, text, bytes } = noted;
            let reply = cut(redact_xml(&String::from_utf8_lossy(text)));
            trace!(target: "vsphere::soap", vcenter, method, bytes, reply);
        }
    }
}
