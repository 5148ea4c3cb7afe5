//! The tables of keys: one row per key with its names in both formats, its kind and its field.
//!
//! Reading, writing, spelling suggestions and the reference all use the same rows, so a new row adds a key
//! everywhere.

use std::collections::BTreeMap;

use snafu::Snafu;

use crate::gcfg::{self, Entry, Section, SyntaxError, Unwritable};
use crate::secret::SecretText;

/// A key that the driver does not know. Drivers ignore such keys silently, so a misspelt `datacenters` means
/// "all datacenters".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// The position as an admin would write it: `[Global] datacenter`, `vcenter.a.ca-file`.
    pub path: String,
    /// The key that the author probably meant.
    pub nearest: Option<String>,
}

impl std::fmt::Display for UnknownKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.nearest {
            Some(nearest) => write!(f, "`{}` (did you mean `{nearest}`?)", self.path),
            None => write!(f, "`{}`", self.path),
        }
    }
}

/// A configuration, and the keys in it that the driver ignores.
///
/// An installed driver runs with such a file, so adoption must not fail. A file that an admin has just written
/// deserves [`Read::strict`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read<T> {
    /// As the driver understands it.
    pub config: T,
    /// Keys and sections that the driver does not know.
    pub unknown: Vec<UnknownKey>,
}

impl<T> Read<T> {
    /// Fails if a key is unknown.
    pub fn strict(self) -> Result<T, ReadError> {
        if self.unknown.is_empty() {
            Ok(self.config)
        } else {
            Err(ReadError::Unknown { keys: self.unknown })
        }
    }
}

/// No variant contains a value, which may be a password.
#[derive(Debug, Clone, PartialEq, Eq, Snafu)]
#[snafu(visibility(pub(crate)))]
pub enum ReadError {
    #[snafu(display("the configuration is empty: specify at least one vCenter"))]
    Empty,
    #[snafu(display("the configuration is not in the git-config syntax the driver reads"))]
    Gcfg { source: SyntaxError },
    #[snafu(display(
        "the configuration is not valid YAML at line {line}, column {column}: check indentation, colons and quotes there"
    ))]
    Yaml {
        /// Counts from 1; 0 if unknown.
        line: u64,
        /// Counts from 1.
        column: u64,
    },
    #[snafu(display("`{path}` must be {expected}"))]
    Value {
        /// The key as an admin would write it.
        path: String,
        expected: &'static str,
    },
    /// Only [`Read::strict`] returns this.
    #[snafu(display("the driver does not know {}; it would ignore them silently", listed(keys)))]
    Unknown { keys: Vec<UnknownKey> },
}

fn listed(keys: &[UnknownKey]) -> String {
    keys.iter().map(UnknownKey::to_string).collect::<Vec<_>>().join(", ")
}

/// Why the driver could not read a configuration back unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Snafu)]
#[snafu(visibility(pub(crate)))]
pub enum WriteError {
    /// A value contains characters that the format does not support.
    #[snafu(display("`{path}` cannot be written"))]
    Unwritable {
        /// The key as an admin would write it.
        path: String,
        source: Unwritable,
    },
    /// The driver would split or trim an item of a comma-separated list.
    #[snafu(display(
        "`{path}` has an item that is empty, contains a comma, or begins or ends with a blank: \
         the driver separates the items by commas, so it would read something else"
    ))]
    ListItem {
        /// The key as an admin would write it.
        path: String,
    },
}

pub(crate) struct Key<T: 'static> {
    /// Empty if YAML has no such key.
    pub(crate) yaml: &'static str,
    pub(crate) ini: &'static str,
    pub(crate) slot: KeyField<T>,
}

type Get<T, F> = fn(&T) -> &F;
type Set<T, F> = fn(&mut T) -> &mut F;

/// The field of a key, by kind. An empty text, list or map means that the key is not set.
pub(crate) enum KeyField<T: 'static> {
    Text(Get<T, String>, Set<T, String>),
    Secret(Get<T, SecretText>, Set<T, SecretText>),
    Flag(Get<T, bool>, Set<T, bool>),
    Number(Get<T, Option<u32>>, Set<T, Option<u32>>),
    Port(Get<T, Option<u16>>, Set<T, Option<u16>>),
    /// A list in YAML, comma-separated in gcfg.
    List(Get<T, Vec<String>>, Set<T, Vec<String>>),
    /// Comma-separated text in both formats.
    Commas(Get<T, Vec<String>>, Set<T, Vec<String>>),
    /// A map in YAML, a JSON object in gcfg.
    Map(Get<T, BTreeMap<String, String>>, Set<T, BTreeMap<String, String>>),
}

/// `key!(Text user = "user", "user")`: kind, field, YAML name, gcfg name.
macro_rules! key {
    ($kind:ident $($field:ident).+ = $yaml:literal, $ini:literal) => {
        $crate::keys::Key {
            yaml: $yaml,
            ini: $ini,
            slot: $crate::keys::KeyField::$kind(|t| &t.$($field).+, |t| &mut t.$($field).+),
        }
    };
}
pub(crate) use key;

impl<T> Key<T> {
    /// The text of a gcfg entry; `None` if the key is not set.
    pub(crate) fn ini_text(
        &self,
        from: &T,
        path: impl Fn() -> String,
    ) -> Result<Option<SecretText>, WriteError> {
        Ok(match &self.slot {
            KeyField::Text(get, _) => (!get(from).is_empty()).then(|| get(from).as_str().into()),
            KeyField::Secret(get, _) => (!get(from).is_empty()).then(|| get(from).clone()),
            KeyField::Flag(get, _) => get(from).then(|| "true".into()),
            KeyField::Number(get, _) => get(from).map(|n| n.to_string().into()),
            KeyField::Port(get, _) => get(from).map(|n| n.to_string().into()),
            KeyField::List(get, _) | KeyField::Commas(get, _) => {
                joined(get(from), path)?.map(Into::into)
            }
            KeyField::Map(get, _) => {
                (!get(from).is_empty()).then(|| serde_json::json!(get(from)).to_string().into())
            }
        })
    }

    /// Sets the field from the text of a gcfg entry; `None` for a key without `=`.
    pub(crate) fn set_ini(
        &self,
        into: &mut T,
        value: Option<&str>,
        path: impl Fn() -> String,
    ) -> Result<(), ReadError> {
        let wrong = |expected| ReadError::Value { path: path(), expected };
        if let (KeyField::Flag(_, set), None) = (&self.slot, value) {
            *set(into) = true;
            return Ok(());
        }
        let value = value.ok_or_else(|| wrong("followed by `=` and a value"))?;
        match &self.slot {
            KeyField::Text(_, set) => value.clone_into(set(into)),
            KeyField::Secret(_, set) => *set(into) = value.into(),
            KeyField::Flag(_, set) => {
                *set(into) = gcfg_bool(value).ok_or_else(|| wrong("true or false"))?;
            }
            KeyField::Number(..) | KeyField::Port(..) => self.set_number(into, value, path)?,
            KeyField::List(_, set) | KeyField::Commas(_, set) => *set(into) = split(value),
            KeyField::Map(_, set) => {
                *set(into) = serde_json::from_str(value)
                    .map_err(|_| wrong("a JSON object of texts, such as {\"team\":\"a\"}"))?;
            }
        }
        Ok(())
    }

    /// Sets a number in decimal or `0x` notation; an empty text means "not set".
    pub(crate) fn set_number(
        &self,
        into: &mut T,
        value: &str,
        path: impl Fn() -> String,
    ) -> Result<(), ReadError> {
        let wrong = |expected| ReadError::Value { path: path(), expected };
        let digits = value.trim();
        let parsed = match digits.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => digits.parse::<u32>().ok(),
        };
        match &self.slot {
            KeyField::Number(_, set) => {
                *set(into) = Some(parsed.ok_or_else(|| wrong("a whole number"))?);
            }
            KeyField::Port(_, set) if digits.is_empty() => *set(into) = None,
            KeyField::Port(_, set) => {
                let port = parsed.and_then(|n| u16::try_from(n).ok());
                *set(into) = Some(port.ok_or_else(|| wrong("a port from 1 to 65535"))?);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Joins the items of a list. Refuses items that the driver would read differently.
pub(crate) fn joined(
    items: &[String],
    path: impl Fn() -> String,
) -> Result<Option<String>, WriteError> {
    if items.is_empty() {
        return Ok(None);
    }
    check_items(items, path)?;
    Ok(Some(items.join(",")))
}

pub(crate) fn check_items(items: &[String], path: impl Fn() -> String) -> Result<(), WriteError> {
    let bad = |item: &String| item.is_empty() || item.contains(',') || item.trim() != item;
    if items.iter().any(bad) {
        return Err(WriteError::ListItem { path: path() });
    }
    Ok(())
}

pub(crate) fn split(value: &str) -> Vec<String> {
    let items = value.split(',').map(str::trim);
    items.filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

fn gcfg_bool(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// Writes the keys of one section that are set.
pub(crate) fn write_section<T>(
    writer: &mut gcfg::Writer,
    name: &str,
    subsection: Option<&str>,
    keys: &'static [Key<T>],
    from: &T,
) -> Result<(), WriteError> {
    let mut entries = Vec::new();
    for key in keys {
        let path = || place(name, subsection, key.ini);
        if let Some(text) = key.ini_text(from, path)? {
            entries.push((key.ini, text));
        }
    }
    // A plain section without keys has no meaning; a named one defines its name.
    if entries.is_empty() && subsection.is_none() {
        return Ok(());
    }
    writer
        .section(name, subsection)
        .map_err(|source| WriteError::Unwritable { path: format!("[{name}]"), source })?;
    for (key, text) in entries {
        writer.entry(key, text.expose()).map_err(|source| WriteError::Unwritable {
            path: place(name, subsection, key),
            source,
        })?;
    }
    Ok(())
}

pub(crate) fn read_section<T>(
    section: &Section,
    keys: &'static [Key<T>],
    into: &mut T,
    unknown: &mut Vec<UnknownKey>,
) -> Result<(), ReadError> {
    for Entry { key, value, line } in &section.entries {
        let path = || place(&section.name, section.subsection.as_deref(), key);
        if let Some(known) = keys.iter().find(|known| same(known.ini, key)) {
            known.set_ini(into, value.as_ref().map(SecretText::expose), path)?;
        } else if value.is_none() {
            // A password broken over two lines looks like this: the error must not contain its second half.
            let what = format!("line {line}, a word without =");
            let path = place(&section.name, section.subsection.as_deref(), &what);
            unknown.push(UnknownKey { path, nearest: None });
        } else {
            let nearest = nearest(key, keys.iter().map(|known| known.ini));
            unknown.push(UnknownKey { path: path(), nearest });
        }
    }
    Ok(())
}

/// Compares names as gcfg does, without case.
pub(crate) fn same(known: &str, written: &str) -> bool {
    known.eq_ignore_ascii_case(written)
}

fn place(section: &str, subsection: Option<&str>, key: &str) -> String {
    match subsection {
        Some(subsection) => format!("[{section} \"{subsection}\"] {key}"),
        None => format!("[{section}] {key}"),
    }
}

/// The known name that the author probably meant: first the spelling of the other format (`ca-file` for
/// `caFile`), then the smallest edit distance, up to a third of the letters.
pub(crate) fn nearest<'a>(written: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let folded = fold(written);
    known
        .filter(|name| !name.is_empty())
        .map(|name| (strsim::levenshtein(&folded, &fold(name)), name))
        .min()
        .filter(|(changes, _)| changes * 3 <= folded.chars().count())
        .map(|(_, name)| name.to_owned())
}

fn fold(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_key_gets_the_right_suggestion() {
        let known = ["datacenters", "caFile", "insecureFlag", "thumbprint"];
        let cases = [
            ("datacenter", Some("datacenters")),
            ("ca-file", Some("caFile")),
            ("insecure", None),
            ("insecure-flag", Some("insecureFlag")),
            ("thumprint", Some("thumbprint")),
            ("colour", None),
        ];
        for (written, expected) in cases {
            assert_eq!(nearest(written, known.into_iter()).as_deref(), expected, "{written}");
        }
    }
}
