//! REST calls to a vCenter, and the REST session.
//!
//! Up to 7.0 Update 1 there is only `/rest`, which wraps replies in `{"value": …}`. Later releases
//! have `/api`, without the wrapper. Only this module decides by version which one to use.

use reqwest::Method as Verb;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value as Json;
use tracing::instrument;
use zeroize::Zeroizing;

use crate::credentials::Credentials;
use crate::error::Error;
use crate::transport::body_trace;
use crate::transport::http::{Outgoing, ReplySize, secret_header};
use crate::transport::observe::Outcome;
use crate::version::ApiVersion;
use crate::wire::Wire;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Rest,
    Api,
}

impl Style {
    pub(crate) fn for_version(version: ApiVersion) -> Self {
        if version >= ApiVersion::V7_0U2 { Self::Api } else { Self::Rest }
    }

    /// The path of `endpoint`, such as `cis/session`.
    pub(crate) fn path(self, endpoint: &str) -> String {
        match self {
            Self::Rest => format!("/rest/com/vmware/{endpoint}"),
            Self::Api => match endpoint {
                "cis/session" => "/api/session".to_owned(),
                endpoint => format!("/api/{endpoint}"),
            },
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct RestCall {
    pub(crate) verb: Verb,
    /// With ids and query, as sent.
    pub(crate) path: String,
    /// Without ids, as counted and reported.
    pub(crate) name: String,
    pub(crate) body: Option<Json>,
}

impl RestCall {
    /// A reply to a request with a body can be long. A single object is always small.
    fn size(&self) -> ReplySize {
        if self.body.is_some() { ReplySize::Whole } else { ReplySize::Small }
    }
}

fn style(wire: &Wire) -> Result<Style, Error> {
    Ok(Style::for_version(wire.service_info()?.api))
}

/// Returns the session id.
pub(crate) async fn open_session(
    wire: &Wire,
    credentials: &Credentials,
) -> Result<SecretString, Error> {
    let path = style(wire)?.path("cis/session");
    let call = RestCall { verb: Verb::POST, name: format!("POST {path}"), path, body: None };
    let header = secret_header(credentials.authorization()).map(|value| (AUTHORIZATION, value));
    match send(wire, &call, header).await? {
        Json::String(id) => Ok(SecretString::from(id)),
        _ => Err(Error::NotVcenter {
            address: wire.name().to_owned(),
            what: "its REST service returned no session id".to_owned(),
        }),
    }
}

pub(crate) async fn close_session(wire: &Wire, id: &SecretString) -> Result<(), Error> {
    let path = style(wire)?.path("cis/session");
    let call = RestCall { verb: Verb::DELETE, name: format!("DELETE {path}"), path, body: None };
    with_session(wire, &call, id).await.map(drop)
}

/// Makes the call in the session `id`.
pub(crate) async fn with_session(
    wire: &Wire,
    call: &RestCall,
    id: &SecretString,
) -> Result<Json, Error> {
    let header = secret_header(Zeroizing::new(id.expose_secret().to_owned()))
        .map(|value| (HeaderName::from_static("vmware-api-session-id"), value));
    send(wire, call, header).await
}

#[instrument(level = "debug", name = "call", skip_all, fields(vcenter = wire.name(), method = call.name))]
async fn send(
    wire: &Wire,
    call: &RestCall,
    secret: Option<(HeaderName, HeaderValue)>,
) -> Result<Json, Error> {
    let mut headers: Vec<_> = secret.into_iter().collect();
    if call.body.is_some() {
        headers.push((CONTENT_TYPE, HeaderValue::from_static("application/json")));
    }
    let body = call.body.as_ref().map(|body| Zeroizing::new(body.to_string()));
    let outgoing = Outgoing {
        name: &call.name,
        verb: call.verb.clone(),
        path: &call.path,
        headers,
        body: body.clone(),
        within: wire.http.limits().call,
        idle: None,
        // A logout must not wait behind the calls that it ends.
        queues: call.verb != Verb::DELETE,
        size: call.size(),
    };
    let mut incoming = wire.http.send(outgoing).await?;
    let status = incoming.status();
    let text = incoming.text().await?;
    body_trace::rest(wire.name(), &call.name, body.as_ref().map(|body| body.as_str()), &text);
    let (address, method) = (wire.name().to_owned(), call.name.clone());
    if matches!(status.as_u16(), 502..=504) {
        incoming.set_outcome(Outcome::Failed);
        let retry_after = incoming.retry_after();
        return Err(Error::Unavailable { address, status: status.as_u16(), retry_after });
    }
    if !status.is_success() {
        incoming.set_outcome(Outcome::Refused);
        return Err(Error::Rest {
            address,
            method,
            status: status.as_u16(),
            message: error_message(&text),
        });
    }
    if text.trim().is_empty() {
        incoming.set_outcome(Outcome::Done);
        return Ok(Json::Null);
    }
    let Ok(json) = serde_json::from_str::<Json>(&text) else {
        incoming.set_outcome(Outcome::Failed);
        let what = format!("its reply to {} is not JSON", call.name);
        return Err(Error::NotVcenter { address, what });
    };
    incoming.set_outcome(Outcome::Done);
    Ok(unwrap_value(&call.path, json))
}

pub(crate) fn unwrap_value(path: &str, json: Json) -> Json {
    match json {
        Json::Object(mut map) if path.starts_with("/rest/") && map.contains_key("value") => {
            map.remove("value").unwrap_or_default()
        }
        json => json,
    }
}

/// The messages of an error reply, in the format of either API.
pub(crate) fn error_message(text: &str) -> String {
    let json: Json = serde_json::from_str(text).unwrap_or_default();
    let holder = if json.get("value").is_some_and(|v| v.get("messages").is_some()) {
        &json["value"]
    } else {
        &json
    };
    let sentences: Vec<&str> = holder["messages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|m| m["default_message"].as_str())
        .collect();
    let kind = holder["error_type"].as_str().or_else(|| json["type"].as_str()).unwrap_or_default();
    match (sentences.is_empty(), kind) {
        (false, _) => sentences.join("; "),
        (true, "") => "no reason given".to_owned(),
        (true, kind) => kind.rsplit('.').next().unwrap_or(kind).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_selects_the_rest_api() {
        for (version, path) in [
            ("6.7.3", "/rest/com/vmware/cis/session"),
            ("7.0.1.0", "/rest/com/vmware/cis/session"),
            ("7.0.2.0", "/api/session"),
            ("9.0.0.0", "/api/session"),
        ] {
            assert_eq!(Style::for_version(version.parse().unwrap()).path("cis/session"), path);
        }
    }

    #[test]
    fn error_messages_are_read_from_both_apis() {
        let old = r#"{"type":"com.vmware.vapi.std.errors.unauthenticated","value":{"messages":[{"default_message":"Authentication required."}]}}"#;
        assert_eq!(error_message(old), "Authentication required.");
        let new = r#"{"error_type":"UNAUTHENTICATED","messages":[{"default_message":"Unable to authenticate user"}]}"#;
        assert_eq!(error_message(new), "Unable to authenticate user");
        assert_eq!(
            error_message(
                r#"{"type":"com.vmware.vapi.std.errors.not_found","value":{"messages":[]}}"#
            ),
            "not_found"
        );
        assert_eq!(error_message("<html>"), "no reason given");
    }
}
