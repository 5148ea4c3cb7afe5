//! Selects the catalog in use: the embedded one, or a newer one that a CompatibilityConfig names.
//!
//! ```text
//!   CompatibilityConfig ─► URL ─► fetch ──┐        (web server; registry, with the credentials of pull_secret)
//!                       └► ConfigMap ─────┼─► offer ─► the catalog in use ─► stored for a restart
//!   compat-matrix-config (Go VDO) ────────┘
//! ```
//!
//! A refused catalog changes nothing: the previous one stays in use, and the CompatibilityConfig and a
//! finding report the reason. A signed catalog stays in use even after a restart or its own expiry. The
//! operator fetches a catalog in parallel with the rounds, so a slow network delays nothing else.

mod fetch;
pub(crate) mod matrix;
mod pull_secret;
mod stored;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{CompatibilityConfig, CompatibilityConfigStatus, VDOConfig, vdo_config::CatalogSource};
use catalog::{
    Catalog, ReadError, Rewrite,
    parse::{MAX_BYTES, SCHEMA_MAJOR},
    trust::{CatalogStore, MAX_BUNDLE_BYTES, PublicKey, Refusal, Trust, build_keys},
};
use health::facts::{CatalogTrouble, CatalogTroubleKind};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::Time};
use kube::{Api, Client, ResourceExt};
use runtime::error_chain::error_chain;
use tokio::{
    sync::{
        oneshot::{self, error::TryRecvError},
        watch,
    },
    task::JoinSet,
    time::Instant,
};

use self::{
    fetch::{Fetched, Request},
    pull_secret::RegistryAccess,
    stored::StoredCatalog,
};

/// The poll interval of a URL if the object sets none.
const POLL: Duration = Duration::from_hours(6);
/// The pause before a retry after a failure.
const RETRY: Duration = Duration::from_mins(5);
/// The pause before VDO tries again to store a catalog.
const STORE_AGAIN: Duration = Duration::from_mins(1);
/// The timeout of one fetch.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    /// Over a network. It must be signed.
    Network,
    /// Through a ConfigMap of the admin. It must be signed if the CompatibilityConfig names a key.
    ConfigMap,
    /// Stored by VDO for a restart. VDO accepted it before, and it may have expired since.
    Restored,
}

/// A fetch in progress. It ends when dropped.
#[derive(Debug)]
struct Fetch {
    outcome: oneshot::Receiver<Outcome>,
    _task: JoinSet<()>,
}

/// The end of a fetch.
#[derive(Debug)]
struct Outcome {
    url: String,
    /// The URL with the versions of the objects that led to the fetch.
    seen: String,
    answer: Result<Fetched, Reason>,
}

/// An accepted catalog that VDO has not stored for a restart yet.
#[derive(Debug)]
struct Unstored {
    source: String,
    bundle: String,
    /// The tag that a web server gave it, and the `last` that led to it.
    etag: Option<(String, String)>,
}

/// The catalog in use, and the state of its source.
#[derive(Debug)]
pub struct Catalogs {
    embedded: Arc<Catalog>,
    /// The keys of the build. VDO trusts them if the CompatibilityConfig names none.
    build_keys: Vec<PublicKey>,
    store: CatalogStore,
    /// The catalog in use if it is a matrix, completed from the embedded catalog.
    filled: Option<Arc<Catalog>>,
    /// Where the cluster of the followed VDOConfig pulls images from.
    rewrite: Rewrite,
    /// Releases of a matrix that VDO does not use.
    left_out: Vec<String>,
    /// The catalog stored in the cluster. `None` until VDO has read it after the start.
    stored: Option<StoredCatalog>,
    unstored: Option<Unstored>,
    /// Where the catalog in use came from, and when VDO accepted it.
    source: String,
    fetched: Option<Timestamp>,
    trouble: Option<CatalogTrouble>,
    /// The URL or ConfigMap that VDO read last, with the version of the object that named it, and when.
    last: Option<(String, Instant)>,
    /// The tag that a web server gave the stored catalog in use, and the `last` that led to it.
    etag: Option<(String, String)>,
    fetching: Option<Fetch>,
    /// When time alone makes the next fetch due.
    next: Option<Instant>,
    changed: Arc<watch::Sender<()>>,
    /// Whether it stores accepted catalogs in the cluster.
    writes: bool,
}

impl Catalogs {
    /// Starts with the embedded catalog.
    pub fn new(changed: Arc<watch::Sender<()>>) -> Self {
        let store = CatalogStore::embedded();
        Self {
            embedded: store.catalog(),
            build_keys: build_keys().unwrap_or_default(),
            store,
            filled: None,
            rewrite: Rewrite::default(),
            left_out: Vec::new(),
            stored: None,
            unstored: None,
            source: "embedded".into(),
            fetched: None,
            trouble: None,
            last: None,
            etag: None,
            fetching: None,
            next: None,
            changed,
            writes: true,
        }
    }

    /// For a program that only reads the cluster.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { writes: false, ..self }
    }

    /// The catalog that a VDOConfig uses, and the reason why it is not the last offered one.
    /// The mirrors of the VDOConfig decide which images of a matrix can be pulled.
    pub fn in_use_for(&mut self, config: &VDOConfig) -> (Arc<Catalog>, Option<&CatalogTrouble>) {
        let rewrite = plan::image_rewrite(&config.spec);
        if self.rewrite != rewrite {
            self.rewrite = rewrite;
            self.fill();
        }
        let source = config.spec.upgrades.as_ref().and_then(|upgrades| upgrades.source);
        match source {
            Some(CatalogSource::Embedded) => (self.embedded(), None),
            _ => (self.current(), self.trouble()),
        }
    }

    pub fn embedded(&self) -> Arc<Catalog> {
        self.embedded.clone()
    }

    pub fn current(&self) -> Arc<Catalog> {
        self.filled.clone().unwrap_or_else(|| self.store.catalog())
    }

    /// Releases of a matrix that VDO does not use: the embedded catalog lacks them, or no image of the matrix can be
    /// pulled.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Whether a fetch is in progress.
    pub fn is_fetching(&self) -> bool {
        self.fetching.is_some()
    }

    /// How long until the next fetch is due, if nothing changes before. A fetch in progress reports its end.
    pub fn next_fetch(&self) -> Option<Duration> {
        self.next.map(|next| next.saturating_duration_since(Instant::now()))
    }

    /// Whether a trusted key signed the catalog in use.
    pub fn is_signed(&self) -> bool {
        self.store.is_signed()
    }

    /// The reason why the last offered catalog is not in use.
    pub fn trouble(&self) -> Option<&CatalogTrouble> {
        self.trouble.as_ref()
    }

    /// Follows the CompatibilityConfig. Without one, it follows the ConfigMap of the Go VDO, whose version is
    /// `legacy` if it exists. Without either, it uses the embedded catalog.
    pub async fn follow(
        &mut self,
        client: &Client,
        namespace: &str,
        config: Option<&CompatibilityConfig>,
        legacy: Option<&str>,
    ) -> Result<(), kube::Error> {
        self.restore(client, namespace, config).await?;
        self.next = None;
        let looked = self.look(client, namespace, config, legacy).await;
        self.keep(client, namespace).await;
        looked
    }

    async fn look(
        &mut self,
        client: &Client,
        namespace: &str,
        config: Option<&CompatibilityConfig>,
        legacy: Option<&str>,
    ) -> Result<(), kube::Error> {
        let Some(config) = config else {
            if let Some(version) = legacy {
                return self.look_into_legacy(client, namespace, version).await;
            }
            self.go_back();
            return Ok(());
        };
        if let Some(Outcome { url: source, seen, answer }) = self.finished_fetch() {
            match answer {
                Ok(Fetched::Catalog { bytes, etag }) => {
                    self.etag = None;
                    if self.offer(&source, &bytes, &keys_of(config), Delivery::Network) {
                        let bundle = String::from_utf8_lossy(&bytes).into_owned();
                        let etag = etag.map(|etag| (seen, etag));
                        self.unstored = Some(Unstored { source, bundle, etag });
                    }
                }
                // It answers a request for another object or key.
                Ok(Fetched::Unchanged) if !self.is_last(&seen) => {}
                Ok(Fetched::Unchanged) => {
                    (self.trouble, self.fetched) = (None, Some(Timestamp::now()));
                }
                Err((kind, reason)) => {
                    self.trouble = Some(CatalogTrouble { source, kind, reason });
                }
            }
        }
        match (&config.spec.bundle, &config.spec.matrix_url) {
            (Some(bundle), _) => {
                let offered = self.look_into(client, config, &bundle.config_map.0).await?;
                if let Some((source, bundle)) = offered.filter(|_| self.store.is_signed()) {
                    self.unstored = Some(Unstored { source, bundle, etag: None });
                }
            }
            (None, Some(url)) if !url.0.is_empty() => {
                let access = pull_secret::access(client, config).await?;
                self.fetch(config, &url.0, access);
            }
            (None, _) => {}
        }
        Ok(())
    }

    /// Returns to the embedded catalog, and keeps the highest accepted serials.
    fn go_back(&mut self) {
        if self.last.take().is_some() {
            self.store = CatalogStore::embedded().with_floors(&self.store.floors());
            (self.trouble, self.filled) = (None, None);
            self.left_out.clear();
            (self.source, self.fetched, self.etag) = ("embedded".into(), None, None);
            // VDO still stores the catalog, so that a restart does not forget its serial.
            if let Some(unstored) = &mut self.unstored {
                unstored.etag = None;
            }
        }
    }

    /// Restores the state before a restart: the lowest acceptable serials, and the catalog itself. It
    /// restores the catalog only if the config still names the same source and the signature is valid.
    async fn restore(
        &mut self,
        client: &Client,
        namespace: &str,
        config: Option<&CompatibilityConfig>,
    ) -> Result<(), kube::Error> {
        if self.stored.is_some() {
            return Ok(());
        }
        let stored = stored::read(client, namespace).await?;
        self.resume(&stored, config);
        self.stored = Some(stored);
        Ok(())
    }

    fn resume(&mut self, stored: &StoredCatalog, config: Option<&CompatibilityConfig>) {
        self.store = self.store.clone().with_floors(&stored.floors);
        let Some(config) = config else { return };
        let keys = keys_of(config);
        if source_of(config).is_some_and(|source| source == stored.source)
            && !stored.bundle.is_empty()
        {
            self.offer(&stored.source, stored.bundle.as_bytes(), &keys, Delivery::Restored);
            self.fetched = config.status.as_ref().and_then(|s| s.fetched_at.as_ref().map(|t| t.0));
        }
    }

    /// Stores the last accepted catalog. A failure does not end the round, and the next one tries again.
    async fn keep(&mut self, client: &Client, namespace: &str) {
        let Some(Unstored { source, bundle, etag }) = self.unstored.take() else { return };
        let stored = StoredCatalog { floors: self.store.floors(), source, bundle };
        if self.writes && self.stored.as_ref() != Some(&stored) {
            if let Err(error) = stored::write(client, namespace, &stored).await {
                let error = error_chain(&error);
                tracing::warn!(error, "the catalog in use could not be stored for a restart");
                let StoredCatalog { source, bundle, .. } = stored;
                self.unstored = Some(Unstored { source, bundle, etag });
                let again = Instant::now() + STORE_AGAIN;
                self.next = Some(self.next.map_or(again, |next| next.min(again)));
                return;
            }
            self.stored = Some(stored);
        }
        self.etag = etag;
    }

    /// Reads the Go VDO's ConfigMap and uses a matrix inside it. VDO does not follow a URL: the target has no
    /// signature, and would run with all the operator's permissions.
    async fn look_into_legacy(
        &mut self,
        client: &Client,
        namespace: &str,
        version: &str,
    ) -> Result<(), kube::Error> {
        let source = format!("ConfigMap {namespace}/{}", matrix::NAME);
        let seen = format!("{source} {version}");
        if self.last.as_ref().is_some_and(|(last, _)| *last == seen) {
            return Ok(());
        }
        let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
        let data = maps.get_opt(matrix::NAME).await?.and_then(|map| map.data).unwrap_or_default();
        self.take_legacy(&source, &data);
        self.last = Some((seen, Instant::now()));
        Ok(())
    }

    fn take_legacy(&mut self, source: &str, data: &BTreeMap<String, String>) {
        self.go_back();
        let of = |key: &str| data.get(key).map(String::as_str).filter(|text| !text.is_empty());
        match (of(matrix::CONTENT), of(matrix::URL)) {
            (Some(content), _) => {
                self.offer(source, content.as_bytes(), &Ok(Vec::new()), Delivery::ConfigMap);
            }
            (None, Some(url)) => {
                let reason = "what this address leads to bears no signature, so VDO does not follow \
                              it; to keep a matrix of your own, put it into versionConfigContent of \
                              the ConfigMap compat-matrix-config, else delete the ConfigMap";
                let kind = CatalogTroubleKind::Unreachable;
                self.trouble =
                    Some(CatalogTrouble { source: url.into(), kind, reason: reason.into() });
            }
            (None, None) => {}
        }
    }

    /// Reads a ConfigMap next to the object. Anybody with permission to write it can also write the object
    /// that names it, so it needs no signature unless a key is named. Returns its source and text if it is
    /// new and VDO accepted it.
    async fn look_into(
        &mut self,
        client: &Client,
        config: &CompatibilityConfig,
        name: &str,
    ) -> Result<Option<(String, String)>, kube::Error> {
        let namespace = config.namespace().unwrap_or_default();
        let maps = Api::<ConfigMap>::namespaced(client.clone(), &namespace);
        let map = maps.get_opt(name).await?;
        let version = map.as_ref().and_then(ResourceExt::resource_version).unwrap_or_default();
        let source = map_source(config, name);
        let seen = format!("{source} {version} {:?}", config.metadata.generation);
        if self.last.as_ref().is_some_and(|(last, _)| *last == seen) {
            return Ok(None);
        }
        self.last = Some((seen, Instant::now()));
        let Some(text) = map.and_then(|map| map.data?.remove("catalog.yaml")) else {
            let reason = "it does not exist, or has no key catalog.yaml".into();
            self.trouble =
                Some(CatalogTrouble { source, kind: CatalogTroubleKind::Unreachable, reason });
            return Ok(None);
        };
        let taken = self.offer(&source, text.as_bytes(), &keys_of(config), Delivery::ConfigMap);
        Ok(taken.then_some((source, text)))
    }

    fn is_last(&self, seen: &str) -> bool {
        self.last.as_ref().is_some_and(|(last, _)| last == seen)
    }

    /// Starts a fetch if one is due. A new version of the Secret with the credentials makes it due.
    fn fetch(
        &mut self,
        config: &CompatibilityConfig,
        url: &str,
        access: Result<RegistryAccess, Reason>,
    ) {
        let poll = config.spec.poll.as_ref().and_then(api::text::Span::duration).unwrap_or(POLL);
        let pause = if self.trouble.is_some() { poll.min(RETRY) } else { poll };
        let version = access.as_ref().map(|access| access.version.as_str()).unwrap_or_default();
        let seen = format!("{url} {:?} {version}", config.metadata.generation);
        if self.fetching.is_some() {
            return;
        }
        let now = Instant::now();
        let next = self.last.as_ref().filter(|(last, _)| *last == seen).map(|(_, at)| *at + pause);
        if let Some(next) = next.filter(|next| *next > now) {
            self.next = Some(next);
            return;
        }
        self.last = Some((seen.clone(), now));
        let url = url.to_owned();
        let credentials = match access {
            Ok(access) => access.credentials,
            Err((kind, reason)) => {
                self.trouble = Some(CatalogTrouble { source: url, kind, reason });
                self.next = Some(now + pause);
                return;
            }
        };
        let etag = self.etag.as_ref().filter(|(led, _)| *led == seen).map(|(_, etag)| etag.clone());
        let request = Request { url: url.clone(), etag, credentials };
        let changed = self.changed.clone();
        let (end, outcome) = oneshot::channel();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let answer = tokio::time::timeout(TIMEOUT, fetch::fetch(request)).await;
            let late = || (CatalogTroubleKind::Unreachable, format!("no answer in {TIMEOUT:?}"));
            let answer = answer.unwrap_or_else(|_| Err(late()));
            // The round that this starts must find the outcome.
            let _ = end.send(Outcome { url, seen, answer });
            changed.send_replace(());
        });
        self.fetching = Some(Fetch { outcome, _task: task });
    }

    /// The outcome of a fetch that has ended.
    fn finished_fetch(&mut self) -> Option<Outcome> {
        let outcome = match self.fetching.as_mut()?.outcome.try_recv() {
            Err(TryRecvError::Empty) => return None,
            outcome => outcome.ok(),
        };
        self.fetching = None;
        outcome
    }

    /// Offers a catalog. Returns whether it is in use now, even if it was before.
    fn offer(
        &mut self,
        source: &str,
        bytes: &[u8],
        keys: &Result<Vec<PublicKey>, String>,
        delivery: Delivery,
    ) -> bool {
        let outcome = match keys {
            Ok(_) if !stored::fits(bytes) => Err(stored::does_not_fit()),
            Ok(named) => {
                let unsigned = delivery == Delivery::ConfigMap && named.is_empty();
                let keys = if named.is_empty() { &self.build_keys } else { named };
                let trust = Trust { keys, unsigned };
                let offered = match delivery {
                    Delivery::Restored => self.store.restore(bytes, trust),
                    Delivery::Network | Delivery::ConfigMap => {
                        self.store.offer(bytes, trust, Timestamp::now())
                    }
                };
                offered.map_err(|refusal| refused(&refusal))
            }
            Err(error) => Err((CatalogTroubleKind::Untrusted, format!("spec.publicKey: {error}"))),
        };
        match outcome {
            Ok(new) => {
                self.trouble = None;
                if new {
                    self.fill();
                    source.clone_into(&mut self.source);
                    tracing::info!(
                        source,
                        serial = self.current().serial,
                        "another catalog is in use"
                    );
                }
                self.fetched = Some(Timestamp::now());
                true
            }
            Err((kind, reason)) => {
                tracing::warn!(source, reason, "a catalog was refused");
                self.trouble = Some(CatalogTrouble { source: source.to_owned(), kind, reason });
                false
            }
        }
    }

    /// Completes the catalog in use if it is a matrix.
    fn fill(&mut self) {
        let matrix = self.store.catalog();
        (self.filled, self.left_out) = (None, Vec::new());
        if matrix.is_matrix() {
            let (filled, left_out) = matrix::filled(&matrix, &self.embedded, &self.rewrite);
            tracing::info!(left_out = left_out.join(", "), "a matrix was completed");
            (self.filled, self.left_out) = (Some(filled), left_out);
        }
    }

    /// The status of the CompatibilityConfig, without its conditions.
    pub fn status(&self) -> CompatibilityConfigStatus {
        CompatibilityConfigStatus {
            source: Some(self.source.clone()),
            digest: Some(self.store.digest()),
            serial: i64::try_from(self.current().serial).ok(),
            fetched_at: self.fetched.map(Time),
            ..CompatibilityConfigStatus::default()
        }
    }
}

/// The keys that a CompatibilityConfig names.
fn keys_of(config: &CompatibilityConfig) -> Result<Vec<PublicKey>, String> {
    let key = config.spec.public_key.as_deref().map(str::parse::<PublicKey>).transpose();
    key.map(|key| key.into_iter().collect()).map_err(|error| error.to_string())
}

/// The source of the catalog that a CompatibilityConfig names, as the status shows it.
pub(crate) fn source_of(config: &CompatibilityConfig) -> Option<String> {
    match (&config.spec.bundle, &config.spec.matrix_url) {
        (Some(bundle), _) => Some(map_source(config, &bundle.config_map.0)),
        (None, url) => url.as_ref().map(|url| url.0.clone()).filter(|url| !url.is_empty()),
    }
}

fn map_source(config: &CompatibilityConfig, name: &str) -> String {
    format!("ConfigMap {}/{name}", config.namespace().unwrap_or_default())
}

fn kind_of(refusal: &Refusal) -> CatalogTroubleKind {
    match refusal {
        Refusal::Unsigned | Refusal::UnknownKey { .. } | Refusal::Tampered { .. } => {
            CatalogTroubleKind::Untrusted
        }
        Refusal::RolledBack { .. } | Refusal::SerialReused { .. } | Refusal::Expired { .. } => {
            CatalogTroubleKind::RolledBack
        }
        Refusal::TooLarge => too_large(MAX_BUNDLE_BYTES),
        Refusal::Read { source: ReadError::TooLarge } => too_large(MAX_BYTES),
        Refusal::Read { source: ReadError::OtherSchema { found } } if is_newer(found) => {
            let known = format!("{SCHEMA_MAJOR}.x");
            CatalogTroubleKind::TooNew { schema: found.clone(), known }
        }
        _ => CatalogTroubleKind::Unreadable,
    }
}

fn too_large(limit: usize) -> CatalogTroubleKind {
    CatalogTroubleKind::TooLarge { limit: format!("{} MiB", limit >> 20) }
}

fn is_newer(schema: &str) -> bool {
    let major = schema.split('.').next().and_then(|major| major.parse::<u64>().ok());
    major.is_some_and(|major| major > SCHEMA_MAJOR)
}

/// The reason why a catalog is not in use.
type Reason = (CatalogTroubleKind, String);

fn refused(refusal: &Refusal) -> Reason {
    (kind_of(refusal), refusal.to_string())
}

/// The CompatibilityConfig that VDO follows: the oldest one in the operator's namespace.
pub fn followed(mut all: Vec<CompatibilityConfig>, namespace: &str) -> Option<CompatibilityConfig> {
    all.retain(|config| config.namespace().as_deref() == Some(namespace));
    all.sort_by_key(|config| (config.creation_timestamp(), config.name_any()));
    all.into_iter().next()
}

#[cfg(test)]
mod tests;
