//! Traces request and reply bodies, SOAP and REST, with secrets redacted.
//!
//! Enabled by the tracing target `vsphere::soap` at level trace, and limited to the first 16 KiB of
//! each body. Disabled, it costs one comparison per call.

use tracing::{Level, enabled, trace};
use zeroize::Zeroizing;

/// The maximum logged size of a body.
const MAX_LOGGED: usize = 16 << 10;

/// Redacts all secrets in `body` and truncates it.
pub(crate) fn redacted(body: &str) -> String {
    truncated(redaction::redact_xml(body))
}

fn truncated(mut text: String) -> String {
    if text.len() > MAX_LOGGED {
        text.truncate(text.floor_char_boundary(MAX_LOGGED));
        text.push('…');
    }
    text
}

fn is_enabled() -> bool {
    enabled!(target: "vsphere::soap", Level::TRACE)
}

pub(crate) fn request(vcenter: &str, method: &str, body: &str) {
    if is_enabled() {
        trace!(target: "vsphere::soap", vcenter, method, request = redacted(body));
    }
}

/// Traces a SOAP reply that is in memory as a whole.
pub(crate) fn reply(vcenter: &str, method: &str, body: &str) {
    if is_enabled() {
        trace!(target: "vsphere::soap", vcenter, method, reply = redacted(body));
    }
}

/// Traces both bodies of a REST call.
pub(crate) fn rest(vcenter: &str, method: &str, request: Option<&str>, reply: &str) {
    if is_enabled() {
        // The reply to a login is nothing but the session id.
        let is_login = method.starts_with("POST ") && method.ends_with("/session");
        let reply =
            if is_login { redaction::REDACTED.to_owned() } else { truncated(reply.to_owned()) };
        let request = request.map(|body| truncated(body.to_owned()));
        trace!(target: "vsphere::soap", vcenter, method, request, reply);
    }
}

/// Collects the beginning of a streamed reply and traces it on drop.
#[derive(Debug)]
pub(crate) struct ReplyTrace(Option<Recorded>);

#[derive(Debug)]
struct Recorded {
    vcenter: String,
    method: &'static str,
    text: Zeroizing<Vec<u8>>,
    bytes: usize,
}

impl ReplyTrace {
    pub(crate) fn new(vcenter: &str, method: &'static str) -> Self {
        Self(is_enabled().then(|| Recorded {
            vcenter: vcenter.to_owned(),
            method,
            text: Zeroizing::new(Vec::with_capacity(MAX_LOGGED)),
            bytes: 0,
        }))
    }

    pub(crate) fn record(&mut self, bytes: &[u8]) {
        if let Some(recorded) = &mut self.0 {
            let room = MAX_LOGGED - recorded.text.len();
            recorded.text.extend_from_slice(&bytes[..bytes.len().min(room)]);
            recorded.bytes += bytes.len();
        }
    }
}

impl Drop for ReplyTrace {
    fn drop(&mut self) {
        if let Some(recorded) = &self.0 {
            let Recorded { vcenter, method, text, bytes } = recorded;
            let reply = redacted(&String::from_utf8_lossy(text));
            trace!(target: "vsphere::soap", vcenter, method, bytes, reply);
        }
    }
}
