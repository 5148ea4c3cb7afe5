//! The sessions of all users of a vCenter. A vCenter allows about 2,000 sessions; programs that
//! leak sessions lock out others.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::client::Client;
use crate::collector::spec::{FilterSpec, ObjectSpec, PropertySpec};
use crate::collector::{managed, retrieve};
use crate::error::Error;
use crate::wire::Method;
use crate::xml::codec::data;

data! {
    pub struct UserSession {
        /// Identifies the session. The key can end the session but not use it.
        key: String = "key",
        user: String = "userName",
        /// When the user logged in.
        login_time: Timestamp = "loginTime",
        /// When the session was last used.
        last_active: Timestamp = "lastActiveTime",
        /// The client's IP address.
        ip_address: Option<String> = "ipAddress",
        /// The client program.
        user_agent: Option<String> = "userAgent",
        calls: Option<i64> = "callCount",
    }
}

managed! {
    struct Sessions of SessionManager {
        LIST {
            sessions: Box<[UserSession]> = "sessionList",
        }
    }
}

impl Client {
    /// Lists the sessions that the user can see. With `Sessions.TerminateSession`, these are the
    /// sessions of all users.
    pub async fn sessions(&self) -> Result<Vec<UserSession>, Error> {
        let manager = self.content()?.session_manager;
        let spec = FilterSpec {
            properties: vec![PropertySpec::new("SessionManager", Sessions::LIST.iter().copied())],
            objects: vec![ObjectSpec::just(manager)],
            skip_missing: false,
        };
        let found = retrieve::<Sessions>(self, &spec, None).await?;
        let mut all = Vec::new();
        for found in found {
            if let Some(missing) = found.missing.into_iter().next() {
                return Err(self.wire().fault("sessionList", missing.fault));
            }
            all.extend(found.value.and_then(|list| list.sessions).unwrap_or_default());
        }
        Ok(all)
    }

    /// Ends sessions of other clients. Needs `Sessions.TerminateSession`.
    pub async fn end_sessions(&self, keys: &[String]) -> Result<(), Error> {
        let manager = self.content()?.session_manager;
        self.call(Method::change("TerminateSession"), &manager, &[("sessionId", &keys)]).await
    }

    /// The key of the client's own session.
    pub async fn session_key(&self) -> Result<String, Error> {
        Ok(self.ticket().await?.key.to_string())
    }
}

/// How many sessions each user and program hold.
pub fn holders(sessions: &[UserSession]) -> BTreeMap<(&str, &str), usize> {
    let mut holders = BTreeMap::new();
    for session in sessions {
        let holder = (session.user.as_str(), session.user_agent.as_deref().unwrap_or_default());
        *holders.entry(holder).or_default() += 1;
    }
    holders
}
