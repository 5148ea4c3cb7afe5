//! Tags of objects, by name.
//!
//! One call returns the tags of many objects as ids. The names behind the ids rarely change, so the
//! client caches them. It looks up new ids and drops the whole cache after a while.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Method as Verb;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};
use tokio::time::Instant;

use crate::client::Client;
use crate::error::Error;
use crate::moref::MoRef;
use crate::rest::{RestCall, Style};
use crate::wire::CallKind;

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// The name of the category.
    pub category: Arc<str>,
    pub name: Arc<str>,
    pub id: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TagCategory {
    pub id: String,
    pub name: String,
    #[serde(default)]
    pub description: String,
    /// `SINGLE` allows at most one tag of the category on an object; `MULTIPLE` allows several.
    #[serde(default)]
    pub cardinality: String,
    /// The object types that tags of the category can be attached to. Empty means all.
    #[serde(default)]
    pub associable_types: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct RawTag {
    id: String,
    name: String,
    category_id: String,
}

#[derive(Debug, Deserialize)]
struct RawObject {
    id: String,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Deserialize)]
struct RawAttached {
    object_id: RawObject,
    #[serde(default)]
    tag_ids: Vec<String>,
}

/// The tags of each requested object, sorted.
pub type Attached = HashMap<MoRef, Vec<Tag>>;

#[derive(Debug)]
pub struct Tags {
    client: Client,
    /// The maximum age of cached names.
    fresh_for: Duration,
    cache: Mutex<TagCache>,
}

#[derive(Debug, Default)]
struct TagCache {
    filled: Option<Instant>,
    categories: HashMap<String, Arc<TagCategory>>,
    tags: HashMap<String, Tag>,
    /// The last result of [`Tags::changed`].
    last: Option<Attached>,
}

impl Client {
    /// Access to tags. Caches names for up to `fresh_for`.
    pub fn tags(&self, fresh_for: Duration) -> Tags {
        Tags { client: self.clone(), fresh_for, cache: Mutex::default() }
    }
}

impl Tags {
    pub async fn categories(&self) -> Result<Vec<Arc<TagCategory>>, Error> {
        self.drop_stale_cache();
        let ids: Vec<String> = self.get("cis/tagging/category", None).await?;
        let mut categories = Vec::with_capacity(ids.len());
        for id in &ids {
            categories.extend(self.category(id).await?);
        }
        categories.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(categories)
    }

    /// The tags of each object. Makes one call, plus one for each tag that is not in the cache. The
    /// list is empty for objects without tags and for objects that the user cannot see.
    pub async fn attached(&self, objects: &[MoRef]) -> Result<Attached, Error> {
        self.drop_stale_cache();
        let mut attached: Attached =
            objects.iter().map(|object| (object.clone(), Vec::new())).collect();
        if objects.is_empty() {
            return Ok(attached);
        }
        let ids: Vec<Json> =
            objects.iter().map(|o| json!({"type": o.kind.as_str(), "id": &*o.id})).collect();
        let body = json!({ "object_ids": ids });
        let reply = self
            .action("cis/tagging/tag-association", "list-attached-tags-on-objects", body)
            .await?;
        for entry in self.parse::<Vec<RawAttached>>("tag-association", reply)? {
            let mut tags = Vec::with_capacity(entry.tag_ids.len());
            for id in &entry.tag_ids {
                tags.extend(self.tag(id).await?);
            }
            tags.sort_unstable();
            attached.insert(MoRef::new(&entry.object_id.kind, entry.object_id.id), tags);
        }
        Ok(attached)
    }

    /// Like [`Tags::attached`], but returns `None` if nothing changed since the last call.
    pub async fn changed(&self, objects: &[MoRef]) -> Result<Option<Attached>, Error> {
        let attached = self.attached(objects).await?;
        let mut cache = self.cache();
        if cache.last.as_ref() == Some(&attached) {
            return Ok(None);
        }
        cache.last = Some(attached.clone());
        Ok(Some(attached))
    }

    /// Must not be held across a call, so that callers do not block each other.
    fn cache(&self) -> MutexGuard<'_, TagCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drop_stale_cache(&self) {
        let mut cache = self.cache();
        if cache.filled.is_none_or(|filled| filled.elapsed() >= self.fresh_for) {
            cache.categories.clear();
            cache.tags.clear();
            cache.filled = Some(Instant::now());
        }
    }

    /// Returns `None` for a tag that was deleted since it was listed.
    async fn tag(&self, id: &str) -> Result<Option<Tag>, Error> {
        if let Some(tag) = self.cache().tags.get(id) {
            return Ok(Some(tag.clone()));
        }
        let raw: RawTag = match self.get("cis/tagging/tag", Some(id)).await {
            Err(Error::Rest { status: 404, .. }) => return Ok(None),
            raw => raw?,
        };
        let Some(category) = self.category(&raw.category_id).await? else { return Ok(None) };
        let tag = Tag {
            category: category.name.as_str().into(),
            name: raw.name.into(),
            id: raw.id.into(),
        };
        self.cache().tags.insert(id.to_owned(), tag.clone());
        Ok(Some(tag))
    }

    async fn category(&self, id: &str) -> Result<Option<Arc<TagCategory>>, Error> {
        if let Some(category) = self.cache().categories.get(id) {
            return Ok(Some(Arc::clone(category)));
        }
        let category: Arc<TagCategory> = match self.get("cis/tagging/category", Some(id)).await {
            Err(Error::Rest { status: 404, .. }) => return Ok(None),
            category => Arc::new(category?),
        };
        self.cache().categories.insert(id.to_owned(), Arc::clone(&category));
        Ok(Some(category))
    }

    async fn get<T: DeserializeOwned>(&self, endpoint: &str, id: Option<&str>) -> Result<T, Error> {
        let style = self.client.rest_style()?;
        let base = style.path(endpoint);
        let path = match (id, style) {
            (None, _) => base.clone(),
            (Some(id), Style::Rest) => format!("{base}/id:{}", percent_encoded(id)),
            (Some(id), Style::Api) => format!("{base}/{}", percent_encoded(id)),
        };
        let call = RestCall { verb: Verb::GET, path, name: format!("GET {base}"), body: None };
        let reply = self.client.rest(CallKind::Read, &call).await?;
        self.parse(&call.name, reply)
    }

    async fn action(&self, endpoint: &str, action: &str, body: Json) -> Result<Json, Error> {
        let style = self.client.rest_style()?;
        let mark = if style == Style::Rest { "~" } else { "" };
        let path = format!("{}?{mark}action={action}", style.path(endpoint));
        let call =
            RestCall { verb: Verb::POST, name: format!("POST {path}"), path, body: Some(body) };
        // A POST that only reads.
        self.client.rest(CallKind::Read, &call).await
    }

    fn parse<T: DeserializeOwned>(&self, what: &str, json: Json) -> Result<T, Error> {
        serde_json::from_value(json).map_err(|error| Error::NotVcenter {
            address: self.client.address().to_owned(),
            what: format!("its reply to {what} has an unexpected format: {error}"),
        })
    }
}

/// Percent-encodes an id for use in a path. Keeps colons, which tag ids contain and paths allow.
fn percent_encoded(id: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~:".contains(&b);
    id.bytes()
        .map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

/// For fuzzing: the number of reply types that `json` deserializes into.
pub(crate) fn count_matching_types(json: &Json) -> usize {
    fn fits<T: DeserializeOwned>(json: &Json) -> usize {
        usize::from(T::deserialize(json).is_ok())
    }
    fits::<Vec<String>>(json)
        + fits::<TagCategory>(json)
        + fits::<RawTag>(json)
        + fits::<Vec<RawAttached>>(json)
}
