//! Finds mistakes in the text of a catalog, with their positions.
//!
//! `read` ignores unknown names, so that an older operator can use a newer catalog. An author wants to know
//! about every ignored name. So this module deserializes each part as `read` does, with a deserializer
//! that tracks the path and the names that are expected there:
//!
//! ```text
//!   document ─► head ──────────────┐
//!            └► lines, expanded ───┴─► Traced ─► mistakes, at the release, its line or the one it extends
//! ```

use std::{cell::RefCell, marker::PhantomData, slice};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, MapAccess, SeqAccess, Visitor, value::StrDeserializer},
    forward_to_deserialize_any,
};
use serde_json::{Error, Map, Value, map};

use crate::{
    matrix,
    model::{Catalog, Driver, Release},
    parse::{ExpandedRelease, LINE_FIELDS, Lines, SCHEMA_MAJOR, SCHEMA_MINOR, expand},
};

/// A part of a catalog that `read` ignores or refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Field names and list indexes.
    pub path: Vec<String>,
    /// True if the name of the field is wrong, not its value.
    pub in_name: bool,
    pub text: String,
    /// The name or value found, if another one was expected.
    pub given: Option<String>,
    /// The expected names or values.
    pub known: Vec<&'static str>,
}

const CATALOG: &str = "a catalog";

/// Returns the mistakes of a catalog in document order. A compatibility matrix of the Go VDO has none. In a
/// catalog with a newer schema, unknown names are no mistakes.
pub fn proofread(document: &Value) -> Vec<Mistake> {
    let mut found = Vec::new();
    let Some(fields) = document.as_object().filter(|_| !matrix::is_matrix(document)) else {
        return found;
    };
    head(fields, &mut found);
    if let Ok(lines) = Lines::deserialize(document) {
        for (driver, key, lines) in
            [(Driver::Cpi, "cpi", lines.cpi), (Driver::Csi, "csi", lines.csi)]
        {
            check_lines(&lines, key, &mut found);
            // `read` reports contradictions.
            let _ = expand(driver, lines, &mut |expanded| {
                check_release(document, key, &expanded, &mut found);
                Ok(())
            });
        }
    }
    if is_newer(document) {
        found.retain(|mistake| mistake.given.is_none());
    }
    found
}

fn is_newer(document: &Value) -> bool {
    let schema = document["schema"].as_str().unwrap_or_default();
    let mut numbers = schema.split('.').map(|number| number.parse::<u64>().unwrap_or_default());
    (numbers.next(), numbers.next()) > (Some(SCHEMA_MAJOR), Some(SCHEMA_MINOR))
}

/// Checks the fields outside the release lines.
fn head(fields: &Map<String, Value>, found: &mut Vec<Mistake>) {
    let mut rest = fields.clone();
    let own = rest.insert("releases".to_owned(), Value::Array(Vec::new()));
    let mut notes = trace::<Catalog>(
        CATALOG,
        &Value::Object(rest),
        &["schema", "cpi", "csi", "digests", "releaseCount"],
    );
    notes.known.retain(|name| *name != "releases");
    if own.is_some() {
        notes.mistakes.push(unknown(CATALOG, vec!["releases".to_owned()], notes.known.clone()));
    }
    let lines = trace::<Lines>(CATALOG, &Value::Object(fields.clone()), &[]);
    found.append(&mut notes.mistakes);
    found.extend(lines.mistakes.into_iter().filter(|mistake| mistake.given.is_none()));
}

/// Checks the names in lines without releases. The names in other lines are checked with their releases.
fn check_lines(lines: &[Map<String, Value>], key: &str, found: &mut Vec<Mistake>) {
    let mut known = trace::<Release>("a release", &Value::Object(Map::new()), &[]).known;
    known.extend(LINE_FIELDS);
    for (number, line) in lines.iter().enumerate() {
        for name in line.keys().filter(|name| !known.contains(&name.as_str())) {
            let path = [key, &number.to_string(), name].map(str::to_owned).to_vec();
            found.push(unknown(CATALOG, path, known.clone()));
        }
    }
}

/// Checks a release with the fields it inherits.
fn check_release(
    document: &Value,
    key: &str,
    expanded: &ExpandedRelease,
    found: &mut Vec<Mistake>,
) {
    let notes = trace::<Release>("a release", &Value::Object(expanded.fields.clone()), &[]);
    let own = [expanded.line.to_string(), "releases".to_owned(), expanded.release.to_string()];
    let lines = expanded.lines.iter().map(|line| vec![line.to_string()]);
    let bases: Vec<Vec<String>> = std::iter::once(own.to_vec()).chain(lines).collect();
    for mut mistake in notes.mistakes {
        let places = bases.iter().map(|base| {
            let whole = std::iter::once(key.to_owned()).chain(base.iter().cloned());
            whole.chain(mistake.path.iter().cloned()).collect::<Vec<_>>()
        });
        // The nearest definition is the one in effect.
        let place = places.into_iter().find(|path| is_there(document, path));
        let Some(path) = place else { continue };
        mistake.path = path;
        if !found.iter().any(|known| known.path == mistake.path) {
            found.push(mistake);
        }
    }
}

fn is_there(document: &Value, path: &[String]) -> bool {
    let mut steps = path.iter();
    let found = steps.try_fold(document, |value, name| match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        other => other.get(name),
    });
    found.is_some()
}

/// An unknown name.
fn unknown(whole: &str, path: Vec<String>, known: Vec<&'static str>) -> Mistake {
    let (name, above) = path.split_last().map_or(("", &[][..]), |(name, above)| (name, above));
    let place = if above.is_empty() { whole.to_owned() } else { above.join(".") };
    let text = format!("{place} has no field {name}");
    let given = Some(name.to_owned());
    Mistake { path, in_name: true, text, given, known }
}

/// The results of one deserialization.
#[derive(Default)]
struct Notes {
    mistakes: Vec<Mistake>,
    /// The names that the outermost struct knows.
    known: Vec<&'static str>,
    /// True once an error has been recorded: the innermost position is the right one.
    failed: bool,
}

/// Deserializes a value and records its mistakes; the outermost struct also accepts the names in `more`.
fn trace<T: for<'de> Deserialize<'de>>(whole: &str, value: &Value, more: &[&'static str]) -> Notes {
    let notes = RefCell::new(Notes::default());
    let root = Traced { whole, value, path: Vec::new(), more, notes: &notes };
    drop(root.deserialize(PhantomData::<T>));
    notes.into_inner()
}

/// A value with its path.
struct Traced<'a> {
    /// The kind of the outermost value, for texts.
    whole: &'a str,
    value: &'a Value,
    path: Vec<String>,
    more: &'a [&'static str],
    notes: &'a RefCell<Notes>,
}

impl<'a> Traced<'a> {
    fn below(&self, value: &'a Value, step: String) -> Self {
        let mut path = self.path.clone();
        path.push(step);
        Self { whole: self.whole, value, path, more: &[], notes: self.notes }
    }

    /// Deserializes the value and records the position of an error.
    fn deserialize<S: DeserializeSeed<'a>>(self, seed: S) -> Result<S::Value, Error> {
        let (path, notes) = (self.path.clone(), self.notes);
        seed.deserialize(self).inspect_err(|error| {
            let mut notes = notes.borrow_mut();
            if !notes.failed {
                notes.failed = true;
                let text = match path.last() {
                    Some(name) => format!("{name} is invalid: {error}"),
                    None => format!("the catalog is invalid: {error}"),
                };
                let known = Vec::new();
                notes.mistakes.push(Mistake { path, in_name: false, text, given: None, known });
            }
        })
    }
}

impl<'de> Deserializer<'de> for Traced<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Object(fields) => {
                visitor.visit_map(Fields { rest: fields.iter(), next: None, of: self })
            }
            Value::Array(items) => {
                visitor.visit_seq(Items { rest: items.iter(), number: 0, of: self })
            }
            leaf => leaf.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let known: Vec<&'static str> = fields.iter().chain(self.more).copied().collect();
        let mut notes = self.notes.borrow_mut();
        for name in self.value.as_object().into_iter().flat_map(Map::keys) {
            if !known.contains(&name.as_str()) {
                let path = self.path.iter().chain([name]).cloned().collect();
                notes.mistakes.push(unknown(self.whole, path, known.clone()));
            }
        }
        if self.path.is_empty() {
            notes.known = known;
        }
        drop(notes);
        self.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if let Value::String(word) = self.value
            && !variants.contains(&word.as_str())
        {
            let text = format!("{} cannot be \"{word}\"", self.path.join("."));
            let (path, given) = (self.path.clone(), Some(word.clone()));
            let known = variants.to_vec();
            let mistake = Mistake { path, in_name: false, text, given, known };
            self.notes.borrow_mut().mistakes.push(mistake);
        }
        self.value.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.value.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
                bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

struct Fields<'a> {
    rest: map::Iter<'a>,
    next: Option<(&'a String, &'a Value)>,
    of: Traced<'a>,
}

impl<'a> MapAccess<'a> for Fields<'a> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'a>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        self.next = self.rest.next();
        let Some((name, _)) = self.next else { return Ok(None) };
        seed.deserialize(StrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let (name, value) = self.next.take().unzip();
        let name = name.cloned().unwrap_or_default();
        self.of.below(value.unwrap_or(&Value::Null), name).deserialize(seed)
    }
}

struct Items<'a> {
    rest: slice::Iter<'a, Value>,
    number: usize,
    of: Traced<'a>,
}

impl<'a> SeqAccess<'a> for Items<'a> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'a>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some(item) = self.rest.next() else { return Ok(None) };
        let step = self.number.to_string();
        self.number += 1;
        self.of.below(item, step).deserialize(seed).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
schema: "1.0"
serial: 3
issued: 2026-01-01T00:00:00Z
newestVsphere: "9.1"
csi:
  - line: "3.6"
    kubernetes: { min: "1.32", max: "1.34" }
    vsphere: { min: "7.0" }
    images: { driver: "example.com/driver:v{version}" }
    manifest: { csi: { controllerProbe: { delay: 1, timeout: 1, period: 1 } } }
    releases:
      - { version: 3.6.0 }
      - { version: 3.6.1, channel: latest }
  - line: "3.7"
    extends: "3.6"
    releases: [{ version: 3.7.0 }]
"#;

    fn found(text: &str) -> Vec<(String, String)> {
        let document: Value = serde_saphyr::from_str(text).unwrap();
        let mistakes = proofread(&document).into_iter();
        mistakes.map(|mistake| (mistake.path.join("."), mistake.text)).collect()
    }

    #[test]
    fn a_correct_catalog_has_no_mistakes() {
        assert_eq!(found(SMALL), []);
        assert_eq!(found(crate::EMBEDDED), []);
        assert_eq!(found(&crate::write(crate::embedded())), []);
    }

    #[test]
    fn every_misspelt_name_or_value_is_reported_once_with_its_position() {
        for (from, to, place, text) in [
            (
                "serial: 3",
                "serial: 3\nexpiers: 2027-01-01T00:00:00Z",
                "expiers",
                "a catalog has no field expiers",
            ),
            (
                "    releases:",
                "    relases: []\n    releases:",
                "csi.0.relases",
                "csi.0 has no field relases",
            ),
            (
                "max: \"1.34\"",
                "max: \"1.34\", tolerats: \"1.35\"",
                "csi.0.kubernetes.tolerats",
                "kubernetes has no field tolerats",
            ),
            (
                "channel: latest",
                "chanel: latest",
                "csi.0.releases.1.chanel",
                "a release has no field chanel",
            ),
            (
                "channel: latest",
                "channel: latset",
                "csi.0.releases.1.channel",
                "channel cannot be \"latset\"",
            ),
            (
                "period: 1",
                "period: 1, dely: 2",
                "csi.0.manifest.csi.controllerProbe.dely",
                "manifest.csi.controllerProbe has no field dely",
            ),
            (
                "serial: 3",
                "serial: x",
                "serial",
                "serial is invalid: invalid type: string \"x\", expected u64",
            ),
            ("serial: 3\n", "", "", "the catalog is invalid: missing field `serial`"),
            (
                "csi:\n",
                "digests: [1]\ncsi:\n",
                "digests",
                "digests is invalid: invalid type: sequence, expected a map",
            ),
            ("min: \"7.0\"", "min: seven", "csi.0.vsphere.min", ""),
        ] {
            let changed = SMALL.replacen(from, to, 1);
            assert_ne!(changed, SMALL, "{from}");
            let found = found(&changed);
            let [(at, message)] = &found[..] else { panic!("{to}: {found:?}") };
            assert_eq!(at, place, "{to}");
            assert!(message.starts_with(text), "{to}: {message}");
        }
    }

    #[test]
    fn a_newer_catalog_may_contain_unknown_names() {
        let newer =
            SMALL.replace("\"1.0\"", "\"1.7\"").replace("channel: latest", "channel: weekly");
        assert_eq!(found(&newer.replace("serial: 3", "serial: 3\ncolour: green")), []);
        assert_eq!(found(&newer.replace("serial: 3", "serial: x")).len(), 1);
    }
}
