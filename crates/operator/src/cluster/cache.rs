//! Caches that a watch fills with small extracts of large objects.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    pin::Pin,
    sync::{Arc, PoisonError, RwLock},
};

use futures::{Stream, StreamExt, stream::BoxStream};
use health::facts::Known;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Resource, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::probes::reason;

/// The reason of a cache that has neither been listed nor refused yet.
const UNTRIED: &str = "it has not been listed yet";

/// A watch that fills a cache, to run as a task.
pub(crate) type Filler = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Extracts of objects, by `namespace/name`. Clones share the same cache.
#[derive(Debug)]
pub(crate) struct Cache<T>(Arc<RwLock<CacheState<T>>>);

impl<T> Clone for Cache<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[derive(Debug)]
struct CacheState<T> {
    items: BTreeMap<String, T>,
    /// Items of a list that is not complete yet.
    listing: BTreeMap<String, T>,
    /// The reason why there is no complete view; `None` as soon as there is one.
    unlisted: Option<String>,
    revision: u64,
}

/// The objects of one kind, and the function that extracts an item from each.
pub(crate) struct WatchSource<K, T> {
    open: Box<dyn Fn() -> BoxStream<'static, watcher::Result<watcher::Event<K>>> + Send + Sync>,
    keep: fn(&K) -> Option<T>,
    differs: fn(&T, &T) -> bool,
}

impl<K, T> WatchSource<K, T>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    T: Clone + PartialEq + Send + Sync + 'static,
{
    /// A source of the items that `keep` extracts from each object of `api`.
    pub(crate) fn new(api: Api<K>, config: watcher::Config, keep: fn(&K) -> Option<T>) -> Self {
        let open = move || watcher(api.clone(), config.clone()).boxed();
        Self { open: Box::new(open), keep, differs: PartialEq::ne }
    }

    /// Sets the function that decides whether a changed item is a change to report.
    pub(crate) fn differing(mut self, differs: fn(&T, &T) -> bool) -> Self {
        self.differs = differs;
        self
    }

    /// A cache, and the watch that fills it.
    pub(crate) fn watch(self, changed: &Arc<watch::Sender<()>>) -> (Cache<T>, Filler) {
        let cache = Cache::blank();
        let (target, changed) = (cache.clone(), changed.clone());
        let filler = (self.open)().default_backoff().for_each(move |event| {
            if target.apply(event, self.keep, self.differs) {
                changed.send_replace(());
            }
            std::future::ready(())
        });
        (cache, Box::pin(filler))
    }

    /// Like [`Self::watch`], for a kind that not every cluster defines. The watch fills the cache while
    /// `definition` exists and empties it otherwise, so it sends the API server no request that must fail.
    pub(crate) fn watch_while(
        self,
        definition: Cache<()>,
        changed: &Arc<watch::Sender<()>>,
    ) -> (Cache<T>, Filler) {
        let cache = Cache::blank();
        let (target, changed) = (cache.clone(), changed.clone());
        let filler = async move {
            let mut news = changed.subscribe();
            let mut events = None;
            loop {
                let defined = definition.read(|known| !known.is_empty());
                match (&defined, &events) {
                    (Known::Known(true), None) => {
                        target.forget(UNTRIED);
                        events = Some(Box::pin((self.open)().default_backoff()));
                    }
                    (Known::Known(false), _) => {
                        events = None;
                        if target.empty() {
                            changed.send_replace(());
                        }
                    }
                    (Known::Unknown { reason }, None) => target.forget(reason),
                    _ => {}
                }
                let next = async {
                    match &mut events {
                        Some(events) => events.next().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    event = next => {
                        let Some(event) = event else { return };
                        if target.apply(event, self.keep, self.differs) {
                            changed.send_replace(());
                        }
                    }
                    more = news.changed() => if more.is_err() { return },
                }
            }
        };
        (cache, Box::pin(filler))
    }
}

impl<T> Cache<T> {
    fn blank() -> Self {
        let inner = CacheState {
            items: BTreeMap::new(),
            listing: BTreeMap::new(),
            unlisted: Some(UNTRIED.to_owned()),
            revision: 0,
        };
        Self(Arc::new(RwLock::new(inner)))
    }

    /// Drops the view, for this reason.
    fn forget(&self, reason: &str) {
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        inner.items.clear();
        inner.listing.clear();
        let news = inner.unlisted.as_deref() != Some(reason);
        inner.unlisted = Some(reason.to_owned());
        inner.revision += u64::from(news);
    }

    /// Records that no objects exist. Returns whether that is a change.
    fn empty(&self) -> bool {
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let news = inner.unlisted.take().is_some() || !inner.items.is_empty();
        inner.items.clear();
        inner.listing.clear();
        inner.revision += u64::from(news);
        news
    }
}

impl<T: Clone + PartialEq + Send + Sync + 'static> Cache<T> {
    /// A cache of the items that `keep` extracts from each object of a watch, and the task that fills it. The
    /// task notifies `changed` when an item appears, disappears or `differs` from its previous value.
    pub(crate) fn watch<K>(
        events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
        keep: fn(&K) -> Option<T>,
        differs: fn(&T, &T) -> bool,
        changed: Arc<watch::Sender<()>>,
    ) -> (Self, Filler)
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let cache = Self::blank();
        let target = cache.clone();
        let filler = events.default_backoff().for_each(move |event| {
            if target.apply(event, keep, differs) {
                changed.send_replace(());
            }
            std::future::ready(())
        });
        (cache, Box::pin(filler))
    }

    /// Applies an event. Returns whether it changed the view.
    fn apply<K: Resource>(
        &self,
        event: watcher::Result<watcher::Event<K>>,
        keep: fn(&K) -> Option<T>,
        differs: fn(&T, &T) -> bool,
    ) -> bool {
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let news = match event {
            Ok(watcher::Event::Init) => {
                inner.listing.clear();
                false
            }
            Ok(watcher::Event::InitApply(object)) => {
                let key = key(&object);
                if let Some(item) = keep(&object) {
                    inner.listing.insert(key, item);
                }
                false
            }
            Ok(watcher::Event::InitDone) => {
                let listing = std::mem::take(&mut inner.listing);
                let news = inner.unlisted.take().is_some() || inner.items != listing;
                inner.items = listing;
                news
            }
            Ok(watcher::Event::Apply(object)) => {
                let key = key(&object);
                match keep(&object) {
                    Some(item) => {
                        let news = inner.items.get(&key).is_none_or(|old| differs(old, &item));
                        inner.items.insert(key, item);
                        news
                    }
                    None => inner.items.remove(&key).is_some(),
                }
            }
            Ok(watcher::Event::Delete(object)) => inner.items.remove(&key(&object)).is_some(),
            Err(error) => {
                let reason = reason(&error);
                // A complete view stays valid: a restarted watch catches up.
                let news = inner.unlisted.as_ref().is_some_and(|before| *before != reason);
                if inner.unlisted.is_some() {
                    inner.unlisted = Some(reason);
                }
                news
            }
        };
        inner.revision += u64::from(news);
        news
    }

    /// Waits until there is a complete view. `news` must receive every change.
    pub(crate) async fn listed(&self, mut news: watch::Receiver<()>) {
        while matches!(self.read(|_| ()), Known::Unknown { .. }) && news.changed().await.is_ok() {}
    }

    /// Whether there is a complete view, or a reason why there is none.
    pub(crate) fn is_tried(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).unlisted.as_deref() != Some(UNTRIED)
    }

    /// A number that changes whenever the cached items change.
    pub(crate) fn revision(&self) -> u64 {
        self.0.read().unwrap_or_else(PoisonError::into_inner).revision
    }

    /// Passes all items to `with`, or returns the reason why there is no view.
    pub(crate) fn read<R>(&self, with: impl FnOnce(&BTreeMap<String, T>) -> R) -> Known<R> {
        let inner = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match &inner.unlisted {
            Some(reason) => Known::unknown(reason),
            None => Known::Known(with(&inner.items)),
        }
    }
}

/// Drops the metadata that no fact needs.
pub(crate) fn slim(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

fn key<K: Resource>(object: &K) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn map(name: &str, value: &str) -> ConfigMap {
        let map = json!({"metadata": {"name": name}, "data": {"k": value}});
        serde_json::from_value(map).unwrap()
    }

    fn keep(map: &ConfigMap) -> Option<String> {
        map.data.as_ref()?.get("k").filter(|value| *value != "no").cloned()
    }

    fn cache() -> Cache<String> {
        Cache(Arc::new(RwLock::new(CacheState {
            items: BTreeMap::new(),
            listing: BTreeMap::new(),
            unlisted: Some("not yet".into()),
            revision: 0,
        })))
    }

    #[test]
    fn a_cache_that_was_never_filled_reports_why_and_not_that_it_is_empty() {
        let cache = cache();
        assert_eq!(cache.read(BTreeMap::len), Known::unknown("not yet"));
        let forbidden = kube::core::Status::failure("configmaps is forbidden", "Forbidden");
        let refused = watcher::Error::WatchError(Box::new(forbidden));
        assert!(cache.apply::<ConfigMap>(Err(refused), keep, PartialEq::ne), "the reason is news");
        assert_eq!(cache.read(BTreeMap::len), Known::unknown("configmaps is forbidden"));
        cache.apply::<ConfigMap>(Ok(watcher::Event::Init), keep, PartialEq::ne);
        assert!(cache.apply::<ConfigMap>(Ok(watcher::Event::InitDone), keep, PartialEq::ne));
        assert_eq!(cache.read(BTreeMap::len), Known::Known(0));
    }

    #[test]
    fn only_a_change_of_the_extract_is_a_change_to_report() {
        let cache = cache();
        cache.apply(Ok(watcher::Event::InitApply(map("a", "1"))), keep, PartialEq::ne);
        cache.apply::<ConfigMap>(Ok(watcher::Event::InitDone), keep, PartialEq::ne);
        let before = cache.revision();
        assert!(!cache.apply(Ok(watcher::Event::Apply(map("a", "1"))), keep, PartialEq::ne));
        assert!(!cache.apply(Ok(watcher::Event::Apply(map("b", "no"))), keep, PartialEq::ne));
        assert_eq!(cache.revision(), before);
        assert!(
            cache.apply(Ok(watcher::Event::Apply(map("a", "no"))), keep, PartialEq::ne),
            "the item is gone"
        );
        assert_eq!(cache.read(BTreeMap::len), Known::Known(0));
        assert!(cache.revision() > before);
    }
}
