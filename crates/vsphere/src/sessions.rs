//! Who is logged in to a vCenter. A vCenter has room for about 2,000 sessions; programs that leak
//! them shut others out.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::client::Client;
use crate::collector::spec::{FilterSpec, ObjectSpec, PropertySpec};
use crate::collector::{managed, retrieve};
use crate::error::Error;
use crate::wire::Method;
use crate::xml::codec::data;

data! {
    /// A session.
    pub struct UserSession {
        /// Names it. Enough to end it, not to use it.
        key: String = "key",
        /// The user.
        user: String = "userName",
        /// Since when.
        login_time: Timestamp = "loginTime",
        /// Last used.
        last_active: Timestamp = "lastActiveTime",
        /// From where.
        ip_address: Option<String> = "ipAddress",
        /// By what program.
        user_agent: Option<String> = "userAgent",
        /// Calls so far.
        calls: Option<i64> = "callCount",
    }
}

managed! {
    /// The list of sessions.
    struct Sessions of SessionManager {
        /// The list.
        LIST {
            /// The list.
            sessions: Box<[UserSession]> = "sessionList",
        }
    }
}

impl Client {
    /// All sessions that the user may see: with `Sessions.TerminateSession`, everybody's.
    pub async fn sessions(&self) -> Result<Vec<UserSession>, Error> {
        let manager = self.content()?.session_manager;
        let spec = FilterSpec {
            properties: vec![PropertySpec::new("SessionManager", Sessions::LIST.iter().copied())],
            objects: vec![ObjectSpec::just(manager)],
            missing_is_fine: false,
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

    /// Ends sessions of others. Needs `Sessions.TerminateSession`.
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
