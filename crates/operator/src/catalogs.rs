//! Which catalog is in use: the embedded one, or the newer one a CompatibilityConfig leads to.
//!
//! A catalog that is refused changes nothing: the one before stays in use, and the CompatibilityConfig
//! and a finding say why. Fetching happens beside the rounds, so a slow network holds up nobody.

use std::{sync::Arc, time::Duration};

use api::{CompatibilityConfig, CompatibilityConfigStatus};
use catalog::{
    Catalog,
    trust::{Intake, PublicKey, Refusal, Shelf, Trust, project_keys},
};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::Time};
use kube::{Api, Client, ResourceExt};
use tokio::{sync::watch, task::JoinSet, time::Instant};

/// How often a URL is looked at where the object does not say.
const POLL: Duration = Duration::from_hours(6);
/// How soon after a failure it is looked at again.
const RETRY: Duration = Duration::from_mins(5);
/// How long one fetch may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is wrong with a catalog that was offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Where it came from.
    pub source: String,
    /// What kind of trouble it is.
    pub kind: TroubleKind,
    /// The reason in words.
    pub reason: String,
}

/// A kind of trouble with a catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TroubleKind {
    /// It cannot be had.
    Unreachable,
    /// Its signature does not hold.
    Untrusted,
    /// It is older than the one in use.
    RolledBack,
    /// It makes no sense.
    Unreadable,
}

impl TroubleKind {
    /// As a condition's reason.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "Unreachable",
            Self::Untrusted => "Untrusted",
            Self::RolledBack => "RolledBack",
            Self::Unreadable => "Unreadable",
        }
    }
}

/// The catalogs.
#[derive(Debug)]
pub struct Catalogs {
    embedded: Arc<Catalog>,
    shelf: Shelf,
    /// Where the one in use came from, and when.
    source: String,
    fetched: Option<Timestamp>,
    trouble: Option<Trouble>,
    /// What was looked at last: a URL or ConfigMap, and the state of the object that named it.
    last: Option<(String, Instant)>,
    fetching: JoinSet<(String, Result<Vec<u8>, String>)>,
    changed: Arc<watch::Sender<()>>,
}

impl Catalogs {
    /// The embedded catalog, to begin with.
    pub fn new(changed: Arc<watch::Sender<()>>) -> Self {
        let shelf = Shelf::embedded();
        Self {
            embedded: shelf.catalog(),
            shelf,
            source: "embedded".into(),
            fetched: None,
            trouble: None,
            last: None,
            fetching: JoinSet::new(),
            changed,
        }
    }

    /// The embedded catalog.
    pub fn embedded(&self) -> Arc<Catalog> {
        self.embedded.clone()
    }

    /// The catalog in use.
    pub fn current(&self) -> Arc<Catalog> {
        self.shelf.catalog()
    }

    /// Why the one that was offered last is not in use.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }

    /// Follows the CompatibilityConfig, or the lack of one.
    pub async fn follow(
        &mut self,
        client: &Client,
        config: Option<&CompatibilityConfig>,
    ) -> Result<(), kube::Error> {
        let Some(config) = config else {
            if self.last.take().is_some() {
                (self.shelf, self.trouble) = (Shelf::embedded(), None);
                (self.source, self.fetched) = ("embedded".into(), None);
            }
            return Ok(());
        };
        while let Some(done) = self.fetching.try_join_next() {
            let Ok((source, outcome)) = done else { continue };
            match outcome {
                Ok(bytes) => self.offer(&source, &bytes, config, false),
                Err(reason) => {
                    let kind = TroubleKind::Unreachable;
                    self.trouble = Some(Trouble { source, kind, reason });
                }
            }
        }
        match (&config.spec.bundle, &config.spec.matrix_url) {
            (Some(bundle), _) => self.look_into(client, config, &bundle.config_map.0).await?,
            (None, Some(url)) if !url.0.is_empty() => self.fetch(config, &url.0),
            (None, _) => {}
        }
        Ok(())
    }

    /// A ConfigMap beside the object. Whoever may write it may also write the object that names it, so
    /// it needs no signature unless a key is named.
    async fn look_into(
        &mut self,
        client: &Client,
        config: &CompatibilityConfig,
        name: &str,
    ) -> Result<(), kube::Error> {
        let home = config.namespace().unwrap_or_default();
        let maps = Api::<ConfigMap>::namespaced(client.clone(), &home);
        let map = maps.get_opt(name).await?;
        let version = map.as_ref().and_then(ResourceExt::resource_version).unwrap_or_default();
        let source = format!("ConfigMap {home}/{name}");
        let seen = format!("{source} {version} {:?}", config.metadata.generation);
        if self.last.as_ref().is_some_and(|(last, _)| *last == seen) {
            return Ok(());
        }
        self.last = Some((seen, Instant::now()));
        if let Some(text) = map.and_then(|map| map.data?.remove("catalog.yaml")) {
            self.offer(&source, text.as_bytes(), config, true);
        } else {
            let reason = "it does not exist, or has no key catalog.yaml".into();
            self.trouble = Some(Trouble { source, kind: TroubleKind::Unreachable, reason });
        }
        Ok(())
    }

    /// Begins a fetch if one is due.
    fn fetch(&mut self, config: &CompatibilityConfig, url: &str) {
        let poll = config.spec.poll.as_ref().and_then(api::text::Span::duration).unwrap_or(POLL);
        let pause = if self.trouble.is_some() { poll.min(RETRY) } else { poll };
        let seen = format!("{url} {:?}", config.metadata.generation);
        let due =
            self.last.as_ref().is_none_or(|(last, at)| *last != seen || at.elapsed() >= pause);
        if !due || !self.fetching.is_empty() {
            return;
        }
        self.last = Some((seen, Instant::now()));
        let (url, changed) = (url.to_owned(), self.changed.clone());
        self.fetching.spawn(async move {
            let outcome = tokio::time::timeout(PATIENCE, get(&url)).await;
            let outcome = outcome.unwrap_or_else(|_| Err(format!("no answer in {PATIENCE:?}")));
            changed.send_replace(());
            (url, outcome)
        });
    }

    fn offer(&mut self, source: &str, bytes: &[u8], config: &CompatibilityConfig, by_hand: bool) {
        let keys = match config.spec.public_key.as_deref() {
            Some(key) => key.parse::<PublicKey>().map(|key| vec![key]),
            None if by_hand => Ok(Vec::new()),
            None => project_keys(),
        };
        let outcome = match keys {
            Ok(keys) => {
                let trust = Trust { keys: &keys, unsigned: by_hand && keys.is_empty() };
                let offered = self.shelf.offer(bytes, trust, Timestamp::now());
                offered.map_err(|refusal| (kind_of(&refusal), refusal.to_string()))
            }
            Err(error) => Err((TroubleKind::Untrusted, format!("spec.publicKey: {error}"))),
        };
        match outcome {
            Ok(new) => {
                self.trouble = None;
                if new {
                    source.clone_into(&mut self.source);
                    tracing::info!(
                        source,
                        serial = self.current().serial,
                        "another catalog is in use"
                    );
                }
                self.fetched = Some(Timestamp::now());
            }
            Err((kind, reason)) => {
                tracing::warn!(source, reason, "a catalog was refused");
                self.trouble = Some(Trouble { source: source.to_owned(), kind, reason });
            }
        }
    }

    /// The status of the CompatibilityConfig, but for its conditions.
    pub fn status(&self) -> CompatibilityConfigStatus {
        CompatibilityConfigStatus {
            source: Some(self.source.clone()),
            digest: Some(self.shelf.digest()),
            serial: i64::try_from(self.current().serial).ok(),
            fetched_at: self.fetched.map(Time),
            ..CompatibilityConfigStatus::default()
        }
    }
}

fn kind_of(refusal: &Refusal) -> TroubleKind {
    match refusal {
        Refusal::Unsigned | Refusal::UnknownKey { .. } | Refusal::Tampered { .. } => {
            TroubleKind::Untrusted
        }
        Refusal::RolledBack { .. } | Refusal::SerialReused { .. } | Refusal::Expired { .. } => {
            TroubleKind::RolledBack
        }
        _ => TroubleKind::Unreadable,
    }
}

async fn get(url: &str) -> Result<Vec<u8>, String> {
    let said = |error: reqwest::Error| {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text.extend([": ", &error.to_string()]);
            cause = error.source();
        }
        text
    };
    let mut answer =
        reqwest::get(url).await.and_then(reqwest::Response::error_for_status).map_err(said)?;
    let mut intake = Intake::expecting(answer.content_length()).map_err(|e| e.to_string())?;
    while let Some(piece) = answer.chunk().await.map_err(said)? {
        intake.push(&piece).map_err(|e| e.to_string())?;
    }
    Ok(intake.into_bytes())
}

/// The CompatibilityConfig that is followed: the oldest in the operator's namespace.
pub fn followed(mut all: Vec<CompatibilityConfig>, namespace: &str) -> Option<CompatibilityConfig> {
    all.retain(|config| config.namespace().as_deref() == Some(namespace));
    all.sort_by_key(|config| (config.creation_timestamp(), config.name_any()));
    all.into_iter().next()
}

#[cfg(test)]
mod tests {
    use catalog::trust::{Bundle, SigningKey};
    use serde_json::json;

    use super::*;

    fn config(key: Option<&SigningKey>) -> CompatibilityConfig {
        let key = key.map(|key| key.public().to_string());
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {"publicKey": key}}))
            .unwrap()
    }

    fn catalogs() -> Catalogs {
        Catalogs::new(Arc::new(watch::Sender::new(())))
    }

    /// The embedded catalog as a later one.
    fn newer() -> String {
        let text = catalog::EMBEDDED.replace("serial: 1\n", "serial: 7\n");
        assert_ne!(text, catalog::EMBEDDED, "the embedded catalog has another serial");
        text
    }

    #[test]
    fn a_catalog_from_the_network_needs_a_signature_that_holds() {
        let (key, _) = SigningKey::generate().unwrap();
        let (other, _) = SigningKey::generate().unwrap();
        let signed = Bundle::sign(newer().as_bytes(), std::slice::from_ref(&key)).to_json();

        let mut catalogs = catalogs();
        catalogs.offer("url", newer().as_bytes(), &config(Some(&key)), false);
        assert_eq!(catalogs.trouble().unwrap().kind, TroubleKind::Untrusted);
        catalogs.offer("url", signed.as_bytes(), &config(Some(&other)), false);
        assert_eq!(catalogs.trouble().unwrap().kind, TroubleKind::Untrusted);
        assert_eq!(catalogs.current().serial, 1, "nothing of it is used");

        catalogs.offer("url", signed.as_bytes(), &config(Some(&key)), false);
        assert_eq!(catalogs.trouble(), None);
        assert_eq!(catalogs.current().serial, 7);
    }

    #[test]
    fn a_catalog_put_into_the_cluster_by_hand_needs_none_unless_a_key_is_named() {
        let (key, _) = SigningKey::generate().unwrap();
        let mut catalogs = catalogs();
        catalogs.offer("map", newer().as_bytes(), &config(Some(&key)), true);
        assert_eq!(catalogs.trouble().unwrap().kind, TroubleKind::Untrusted);
        catalogs.offer("map", newer().as_bytes(), &config(None), true);
        assert_eq!(catalogs.current().serial, 7);
        catalogs.offer("map", b"schema: 99", &config(None), true);
        assert_eq!(catalogs.trouble().unwrap().kind, TroubleKind::Unreadable);
        assert_eq!(catalogs.current().serial, 7, "the one before stays in use");
    }
}
