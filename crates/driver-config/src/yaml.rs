//! YAML for `vsphere.conf`, safe for texts of any content.
//!
//! The writer quotes every text and escapes every character that YAML 1.1 or 1.2 could treat specially. The reader
//! never lets the parser guess a type: `password: 0123` is the text `0123`, as the driver reads it.

use std::cell::RefCell;
use std::fmt;
use std::fmt::Write as _;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use zeroize::Zeroizing;

use crate::keys::{self, Key, KeyField, ReadError, UnknownKey, WriteError};
use crate::secret::{SecretText, WipedText};

/// Writes sections of keys, at most two levels deep as in the format.
#[derive(Default)]
pub(crate) struct Writer {
    text: WipedText,
}

impl Writer {
    /// Writes a section, unless none of its keys is set.
    pub(crate) fn section<T>(
        &mut self,
        name: &str,
        keys: &'static [Key<T>],
        from: &T,
    ) -> Result<(), WriteError> {
        let body = body(name, 2, keys, from)?;
        if !body.is_empty() {
            let _ = writeln!(self.text, "{name}:");
            self.text.push_str(body.as_str());
        }
        Ok(())
    }

    /// Writes a section of named entries with the same keys.
    pub(crate) fn named<'a, T: 'static>(
        &mut self,
        section: &str,
        keys: &'static [Key<T>],
        entries: impl Iterator<Item = (&'a String, &'a T)>,
    ) -> Result<(), WriteError> {
        for (index, (name, entry)) in entries.enumerate() {
            let body = body(&format!("{section}.{name}"), 4, keys, entry)?;
            let name = quote(name);
            if index == 0 {
                let _ = writeln!(self.text, "{section}:");
            }
            let empty = if body.is_empty() { " {}" } else { "" };
            let _ = writeln!(self.text, "  {}:{empty}", name.as_str());
            self.text.push_str(body.as_str());
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> SecretText {
        SecretText::from(self.text.as_str())
    }
}

fn body<T>(
    section: &str,
    indent: usize,
    keys: &'static [Key<T>],
    from: &T,
) -> Result<WipedText, WriteError> {
    let mut text = WipedText::default();
    for key in keys.iter().filter(|key| !key.yaml.is_empty()) {
        let path = || format!("{section}.{}", key.yaml);
        if let Some(value) = value(key, indent, from, path)? {
            let _ = writeln!(text, "{:indent$}{}:{}", "", key.yaml, value.as_str());
        }
    }
    Ok(text)
}

/// The text after `key:`, with its leading blank.
fn value<T>(
    key: &Key<T>,
    indent: usize,
    from: &T,
    path: impl Fn() -> String,
) -> Result<Option<WipedText>, WriteError> {
    let spaced = |text: &str| {
        let mut spaced = WipedText::default();
        spaced.push(' ');
        spaced.push_str(text);
        spaced
    };
    let lines = |lines: String| {
        let mut text = WipedText::default();
        text.push_str(&lines);
        text
    };
    Ok(match &key.slot {
        KeyField::Text(get, _) => {
            (!get(from).is_empty()).then(|| spaced(quote(get(from)).as_str()))
        }
        KeyField::Secret(get, _) => {
            (!get(from).is_empty()).then(|| spaced(quote(get(from).expose()).as_str()))
        }
        KeyField::Flag(get, _) => get(from).then(|| spaced("true")),
        KeyField::Number(get, _) => get(from).map(|n| spaced(&n.to_string())),
        KeyField::Port(get, _) => get(from).map(|n| spaced(&n.to_string())),
        KeyField::Commas(get, _) => {
            keys::joined(get(from), path)?.map(|text| spaced(quote(&text).as_str()))
        }
        KeyField::List(get, _) => {
            let items = get(from);
            // The driver joins the list with commas.
            keys::check_items(items, path)?;
            let line = |item: &String| format!("\n{:indent$}  - {}", "", quote(item).as_str());
            (!items.is_empty()).then(|| lines(items.iter().map(line).collect()))
        }
        KeyField::Map(get, _) => {
            let line = |(name, text): (&String, &String)| {
                format!("\n{:indent$}  {}: {}", "", quote(name).as_str(), quote(text).as_str())
            };
            let map = get(from);
            (!map.is_empty()).then(|| lines(map.iter().map(line).collect()))
        }
    })
}

/// A double-quoted scalar. Unprintable characters become numeric escapes.
fn quote(text: &str) -> WipedText {
    let mut quoted = WipedText::default();
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            c if is_plain(c) => quoted.push(c),
            c if u32::from(c) <= 0xffff => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => {
                let _ = write!(quoted, "\\U{:08X}", u32::from(c));
            }
        }
    }
    quoted.push('"');
    quoted
}

/// Characters that need no escape. Of all blanks only the space: a reader may fold others.
fn is_plain(c: char) -> bool {
    c == ' '
        || (!c.is_control()
            && !c.is_whitespace()
            && !matches!(c, '\u{feff}' | '\u{fffe}'..='\u{ffff}'))
}

/// Collects unknown keys and errors while reading.
#[derive(Default)]
pub(crate) struct Context {
    unknown: RefCell<Vec<UnknownKey>>,
    failure: RefCell<Option<ReadError>>,
}

impl Context {
    /// Reads a document with `root` as its top level.
    pub(crate) fn read<R>(
        &self,
        text: &str,
        root: impl for<'de> DeserializeSeed<'de, Value = R>,
    ) -> Result<R, ReadError> {
        // Snippets would copy lines of the file, and so passwords, into the error.
        let options = serde_saphyr::options! { with_snippet: false };
        let broken = |error: serde_saphyr::Error| {
            let place = error.location();
            ReadError::Yaml {
                line: place.as_ref().map_or(0, serde_saphyr::Location::line),
                column: place.as_ref().map_or(0, serde_saphyr::Location::column),
            }
        };
        // Parsed as a whole first, so that a syntax error is not reported as a wrong value.
        serde_saphyr::from_str_with_options::<IgnoredAny>(text, options.clone()).map_err(broken)?;
        serde_saphyr::with_deserializer_from_str_with_options(text, options, |de| {
            root.deserialize(de)
        })
        .map_err(|error| self.failure.take().unwrap_or_else(|| broken(error)))
    }

    pub(crate) fn unknown(&self) -> Vec<UnknownKey> {
        self.unknown.take()
    }

    pub(crate) fn report<'a>(&self, path: String, key: &str, known: impl Iterator<Item = &'a str>) {
        let nearest = keys::nearest(key, known);
        self.unknown.borrow_mut().push(UnknownKey { path, nearest });
    }

    fn fail<E: serde::de::Error>(&self, error: ReadError) -> E {
        self.failure.replace(Some(error));
        E::custom("a value has the wrong form")
    }
}

pub(crate) struct SectionSeed<'a, T: 'static> {
    pub(crate) context: &'a Context,
    pub(crate) path: String,
    pub(crate) keys: &'static [Key<T>],
    pub(crate) into: &'a mut T,
}

impl<'de, T> DeserializeSeed<'de> for SectionSeed<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, de: D) -> Result<(), D::Error> {
        de.deserialize_option(self)
    }
}

impl<'de, T> Visitor<'de> for SectionSeed<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the keys of `{}`", self.path)
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, de: D) -> Result<(), D::Error> {
        de.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let path = || format!("{}.{name}", self.path);
            let known = self.keys.iter().find(|key| key.yaml == name && !name.is_empty());
            if let Some(key) = known {
                read_value(key, self.into, &mut map, self.context, path)?;
            } else {
                map.next_value::<IgnoredAny>()?;
                self.context.report(path(), &name, self.keys.iter().map(|key| key.yaml));
            }
        }
        Ok(())
    }
}

/// Reads a section of named entries.
pub(crate) struct NamedSeed<'a, T: 'static> {
    pub(crate) context: &'a Context,
    pub(crate) section: &'static str,
    pub(crate) keys: &'static [Key<T>],
    pub(crate) into: &'a mut std::collections::BTreeMap<String, T>,
}

impl<'de, T: Default> DeserializeSeed<'de> for NamedSeed<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, de: D) -> Result<(), D::Error> {
        de.deserialize_option(self)
    }
}

impl<'de, T: Default> Visitor<'de> for NamedSeed<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "named entries of `{}`", self.section)
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, de: D) -> Result<(), D::Error> {
        de.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let path = format!("{}.{name}", self.section);
            let into = self.into.entry(name).or_default();
            map.next_value_seed(SectionSeed {
                context: self.context,
                path,
                keys: self.keys,
                into,
            })?;
        }
        Ok(())
    }
}

fn read_value<'de, T, A: MapAccess<'de>>(
    key: &Key<T>,
    into: &mut T,
    map: &mut A,
    context: &Context,
    path: impl Fn() -> String,
) -> Result<(), A::Error> {
    let wrong = |expected| context.fail(ReadError::Value { path: path(), expected });
    let text = |map: &mut A| -> Result<Zeroizing<String>, A::Error> {
        let text = map.next_value::<Option<String>>().map_err(|_| wrong("a single value"))?;
        Ok(Zeroizing::new(text.unwrap_or_default()))
    };
    match &key.slot {
        KeyField::Text(_, set) => text(map)?.as_str().clone_into(set(into)),
        KeyField::Secret(_, set) => *set(into) = SecretText::from(text(map)?.as_str()),
        KeyField::Flag(_, set) => {
            *set(into) = yaml_bool(&text(map)?).ok_or_else(|| wrong("true or false"))?;
        }
        KeyField::Number(..) | KeyField::Port(..) => {
            let digits = text(map)?;
            if !digits.is_empty() {
                key.set_number(into, &digits, &path).map_err(|error| context.fail(error))?;
            }
        }
        KeyField::Commas(_, set) => *set(into) = keys::split(&text(map)?),
        KeyField::List(_, set) => {
            let items = map
                .next_value::<Option<Vec<String>>>()
                .map_err(|_| wrong("a list, each item on its own line after `- `"))?;
            // The driver joins the list with commas and splits it again.
            *set(into) = items.unwrap_or_default().iter().flat_map(|i| keys::split(i)).collect();
        }
        KeyField::Map(_, set) => {
            let map = map
                .next_value::<Option<std::collections::BTreeMap<String, String>>>()
                .map_err(|_| wrong("a map of names to texts"))?;
            *set(into) = map.unwrap_or_default();
        }
    }
    Ok(())
}

/// The truth values of YAML 1.1, which the driver accepts.
fn yaml_bool(text: &str) -> Option<bool> {
    match text {
        "" => Some(false),
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Some(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Some(false)
        }
        _ => None,
    }
}
