//! Tags: what is attached to what, by name.
//!
//! Which tags are attached to many objects is one call. The names behind the ids change rarely and
//! are kept; a tag seen for the first time is looked up, and all are read again after a while.

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
use crate::wire::Nature;

/// A tag.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// Its category's name.
    pub category: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its id.
    pub id: Arc<str>,
}

/// A category of tags.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TagCategory {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What it is for.
    #[serde(default)]
    pub description: String,
    /// `SINGLE`: at most one of its tags on an object; `MULTIPLE`.
    #[serde(default)]
    pub cardinality: String,
    /// The types its tags may be attached to; none means all.
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

/// The tags of each object asked for, sorted.
pub type Attached = HashMap<MoRef, Vec<Tag>>;

/// The tags of one vCenter.
#[derive(Debug)]
pub struct Tags {
    client: Client,
    /// How long names are believed.
    fresh_for: Duration,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    read: Option<Instant>,
    categories: HashMap<String, Arc<TagCategory>>,
    tags: HashMap<String, Tag>,
    /// What [`Tags::changed`] last returned.
    last: Option<Attached>,
}

impl Client {
    /// The tags of this vCenter, with names that may be as old as `fresh_for`.
    pub fn tags(&self, fresh_for: Duration) -> Tags {
        Tags { client: self.clone(), fresh_for, known: Mutex::default() }
    }
}

impl Tags {
    /// All categories.
    pub async fn categories(&self) -> Result<Vec<Arc<TagCategory>>, Error> {
        self.forget_if_old();
        let ids: Vec<String> = self.get("cis/tagging/category", None).await?;
        let mut categories = Vec::with_capacity(ids.len());
        for id in &ids {
            categories.extend(self.category(id).await?);
        }
        categories.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(categories)
    }

    /// The tags attached to each of these objects, in one call plus one for each tag not seen
    /// before. Objects without tags, or that cannot be seen, have an empty list.
    pub async fn attached(&self, objects: &[MoRef]) -> Result<Attached, Error> {
        self.forget_if_old();
        let mut attached: Attached =
            objects.iter().map(|object| (object.clone(), Vec::new())).collect();
        if objects.is_empty() {
            return Ok(attached);
        }
        let ids: Vec<Json> =
            objects.iter().map(|o| json!({"type": o.kind.as_str(), "id": &*o.id})).collect();
        let body = json!({ "object_ids": ids });
        let answer = self
            .action("cis/tagging/tag-association", "list-attached-tags-on-objects", body)
            .await?;
        for entry in self.parse::<Vec<RawAttached>>("tag-association", answer)? {
            let mut tags = Vec::with_capacity(entry.tag_ids.len());
            for id in &entry.tag_ids {
                tags.extend(self.tag(id).await?);
            }
            tags.sort_unstable();
            attached.insert(MoRef::new(&entry.object_id.kind, entry.object_id.id), tags);
        }
        Ok(attached)
    }

    /// The same, but `None` when nothing is different from what this method returned before.
    pub async fn changed(&self, objects: &[MoRef]) -> Result<Option<Attached>, Error> {
        let attached = self.attached(objects).await?;
        let mut known = self.known();
        if known.last.as_ref() == Some(&attached) {
            return Ok(None);
        }
        known.last = Some(attached.clone());
        Ok(Some(attached))
    }

    /// Never held over a call: callers do not wait for each other's.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget_if_old(&self) {
        let mut known = self.known();
        if known.read.is_none_or(|read| read.elapsed() >= self.fresh_for) {
            known.categories.clear();
            known.tags.clear();
            known.read = Some(Instant::now());
        }
    }

    /// A tag that was deleted since it was listed is `None`.
    async fn tag(&self, id: &str) -> Result<Option<Tag>, Error> {
        if let Some(tag) = self.known().tags.get(id) {
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
        self.known().tags.insert(id.to_owned(), tag.clone());
        Ok(Some(tag))
    }

    async fn category(&self, id: &str) -> Result<Option<Arc<TagCategory>>, Error> {
        if let Some(category) = self.known().categories.get(id) {
            return Ok(Some(Arc::clone(category)));
        }
        let category: Arc<TagCategory> = match self.get("cis/tagging/category", Some(id)).await {
            Err(Error::Rest { status: 404, .. }) => return Ok(None),
            category => Arc::new(category?),
        };
        self.known().categories.insert(id.to_owned(), Arc::clone(&category));
        Ok(Some(category))
    }

    async fn get<T: DeserializeOwned>(&self, endpoint: &str, id: Option<&str>) -> Result<T, Error> {
        let style = self.client.rest_style()?;
        let base = style.path(endpoint);
        let path = match (id, style) {
            (None, _) => base.clone(),
            (Some(id), Style::Rest) => format!("{base}/id:{}", escaped(id)),
            (Some(id), Style::Api) => format!("{base}/{}", escaped(id)),
        };
        let call = RestCall { verb: Verb::GET, path, name: format!("GET {base}"), body: None };
        let answer = self.client.rest(Nature::Read, &call).await?;
        self.parse(&call.name, answer)
    }

    async fn action(&self, endpoint: &str, action: &str, body: Json) -> Result<Json, Error> {
        let style = self.client.rest_style()?;
        let mark = if style == Style::Rest { "~" } else { "" };
        let path = format!("{}?{mark}action={action}", style.path(endpoint));
        let call =
            RestCall { verb: Verb::POST, name: format!("POST {path}"), path, body: Some(body) };
        // It only reads, whatever its verb.
        self.client.rest(Nature::Read, &call).await
    }

    fn parse<T: DeserializeOwned>(&self, what: &str, json: Json) -> Result<T, Error> {
        serde_json::from_value(json).map_err(|error| Error::NotVcenter {
            address: self.client.address().to_owned(),
            what: format!("its answer to {what} has another shape than a vCenter's: {error}"),
        })
    }
}

/// An id as part of a path. Tag ids have colons, which are allowed there; anything else unusual is
/// escaped.
fn escaped(id: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~:".contains(&b);
    id.bytes()
        .map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

/// What an attacker's answers go through, for fuzzing. Returns how many shapes fit.
pub(crate) fn count_matching_types(json: &Json) -> usize {
    fn fits<T: DeserializeOwned>(json: &Json) -> usize {
        usize::from(T::deserialize(json).is_ok())
    }
    fits::<Vec<String>>(json)
        + fits::<TagCategory>(json)
        + fits::<RawTag>(json)
        + fits::<Vec<RawAttached>>(json)
}
