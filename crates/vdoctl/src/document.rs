//! The user's YAML, with the location of every value.

use std::{fmt, path::Path};

use api::check::Mistake;
use kube::core::Status;
use miette::{NamedSource, SourceSpan};
use operator::writing;
use plan::ObjectId;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;
use serde_saphyr::{Location, Spanned};

use crate::{
    failure::{Failure, MistakeSnafu, Outcome},
    text::nearest,
};

/// A file with one or more objects.
#[derive(Debug)]
pub(crate) struct File {
    name: String,
    text: String,
    pub(crate) documents: Vec<Document>,
}

/// One object, with the locations of its fields.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) value: Value,
    places: Spanned<Tree>,
}

#[derive(Debug)]
enum Tree {
    Fields(Vec<(Spanned<String>, Spanned<Tree>)>),
    Items(Vec<Spanned<Tree>>),
    Scalar(Value),
}

impl File {
    /// Reads a file; `-` is standard input.
    pub(crate) fn open(path: &Path) -> Outcome<Self> {
        let failed = |source| Failure::File { path: path.to_owned(), deed: "read", source };
        let text = if path == Path::new("-") {
            std::io::read_to_string(std::io::stdin()).map_err(failed)?
        } else {
            std::fs::read_to_string(path).map_err(failed)?
        };
        Self::parse(&path.display().to_string(), text)
    }

    pub(crate) fn parse(name: &str, text: String) -> Outcome<Self> {
        let parsed = serde_saphyr::from_multiple::<Spanned<Tree>>(&text);
        match parsed {
            Ok(trees) => {
                let documents = trees.into_iter().filter_map(|places| {
                    let value = places.value.plain();
                    (!value.is_null()).then_some(Document { value, places })
                });
                let documents = documents.collect();
                Ok(Self { name: name.to_owned(), text, documents })
            }
            Err(error) => {
                let place = error.location().unwrap_or(Location::UNKNOWN);
                let span = span(&text, place);
                let why = redaction::redact_message(&error.without_snippet().to_string(), &text);
                // The screen already shows the line.
                let why = why.split_once(" at line ").map_or(why.as_str(), |(why, _)| why);
                let (output, help) = if why.contains("budget breached") {
                    let grows = "this YAML is too large: its aliases expand to too many values";
                    (grows.to_owned(), "replace the aliases by their values")
                } else {
                    let help =
                        "the error is here or shortly before: check indentation, colons and quotes";
                    (format!("this is not valid YAML: {why}"), help)
                };
                MistakeSnafu {
                    text: output,
                    help,
                    source: Box::new(NamedSource::new(name, redaction::mask_document(&text))),
                    span,
                    label: "here",
                }
                .fail()
            }
        }
    }

    pub(crate) fn mistake(&self, document: &Document, mistake: &Mistake) -> Failure {
        self.wrong(document, &mistake.path, mistake.in_name, &mistake.text, &mistake.help)
    }

    fn document_of(&self, id: &ObjectId) -> Option<&Document> {
        self.documents.iter().find(|document| {
            document.value["kind"] == id.kind.as_str()
                && document.value["metadata"]["name"] == id.name.as_str()
        })
    }

    /// A rejection by the API server, with its location in the file if that is known.
    pub(crate) fn refused(&self, id: &ObjectId, status: &Status) -> Option<Failure> {
        let document = self.document_of(id)?;
        let cause = status.details.iter().flat_map(|details| &details.causes).next();
        let cause = cause.map(|cause| (cause.field.as_str(), cause.message.as_str()));
        let (field, why) = cause.or_else(|| undeclared(&status.message))?;
        let path = field.split(['.', '[', ']']).filter(|part| !part.is_empty());
        let path: Vec<String> = path.map(str::to_owned).collect();
        let text = format!("the cluster rejects {id}");
        Some(self.wrong(document, &path, cause.is_none(), &text, why))
    }

    /// An error for an object of an unknown kind, with its location.
    pub(crate) fn unknown_kind(&self, id: &ObjectId) -> Option<Failure> {
        let document = self.document_of(id)?;
        let known = writing::kinds();
        let named = |(_, kind): &&(String, String)| *kind == id.kind;
        let (field, help) = if let Some((version, _)) = known.iter().find(named) {
            ("apiVersion", format!("its apiVersion is {version}"))
        } else {
            let near = nearest(&id.kind, known.iter().map(|(_, kind)| kind.as_str()));
            ("kind", near.map_or_else(String::new, |near| format!("did you mean {near}?")))
        };
        let text = format!("the cluster does not know the kind of {id}");
        Some(self.wrong(document, &[field.to_owned()], false, &text, &help))
    }

    /// An error at a path of a document.
    pub(crate) fn wrong(
        &self,
        document: &Document,
        path: &[String],
        in_name: bool,
        text: &str,
        help: &str,
    ) -> Failure {
        let place = document.place(path, in_name);
        let shown = redaction::mask_document(&self.text);
        Failure::Mistake {
            text: redaction::redact_message(text, &self.text),
            help: redaction::redact_message(help, &self.text),
            source: Box::new(NamedSource::new(&self.name, shown).with_language("yaml")),
            span: span(&self.text, place),
            label: "here".into(),
        }
    }
}

/// The unknown field in a message of the API server: `...: .spec.replcas: field not declared in schema`.
fn undeclared(message: &str) -> Option<(&str, &str)> {
    let (before, _) = message.split_once(": field not declared in schema")?;
    let field = before.rsplit(' ').next().filter(|field| field.starts_with('.'))?;
    Some((field, "there is no such field: check its spelling and indentation"))
}

impl Document {
    /// The location of a path, or of its longest prefix that exists.
    fn place(&self, path: &[String], in_name: bool) -> Location {
        let (mut here, mut place) = (&self.places, self.places.referenced);
        for (number, step) in path.iter().enumerate() {
            let last = number + 1 == path.len();
            match &here.value {
                Tree::Fields(fields) => {
                    let Some((key, value)) = fields.iter().find(|(key, _)| key.value == *step)
                    else {
                        break;
                    };
                    place = if last && !in_name { value.referenced } else { key.referenced };
                    here = value;
                }
                Tree::Items(items) => {
                    let Some(item) = step.parse().ok().and_then(|at: usize| items.get(at)) else {
                        break;
                    };
                    (place, here) = (item.referenced, item);
                }
                Tree::Scalar(_) => break,
            }
        }
        place
    }
}

fn span(text: &str, place: Location) -> SourceSpan {
    let line = usize::try_from(place.line()).unwrap_or(1).max(1);
    let column = usize::try_from(place.column()).unwrap_or(1).max(1);
    let begin: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
    let rest = text.get(begin..).unwrap_or_default();
    let rest = rest.lines().next().unwrap_or_default();
    let skip: usize = rest.chars().take(column - 1).map(char::len_utf8).sum();
    let word = rest.get(skip..).unwrap_or_default();
    let word = word.split([':', '#', ',', '}', ']']).next().unwrap_or_default().trim_end();
    SourceSpan::new((begin + skip).min(text.len()).into(), word.len())
}

impl Tree {
    fn plain(&self) -> Value {
        match self {
            Self::Fields(fields) => {
                fields.iter().map(|(key, value)| (key.value.clone(), value.value.plain())).collect()
            }
            Self::Items(items) => items.iter().map(|item| item.value.plain()).collect(),
            Self::Scalar(value) => value.clone(),
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut fields = Vec::new();
        while let Some(entry) = map.next_entry()? {
            fields.push(entry);
        }
        Ok(Tree::Fields(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element()? {
            items.push(item);
        }
        Ok(Tree::Items(items))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "kind: VDOConfig\nspec:\n  upgrades:\n    policy: Stabel # ö\n---\nkind: X\nlist:\n- a: 1\n- b: true\n";

    #[test]
    fn a_path_leads_to_its_place_in_the_text() {
        let file = File::parse("file.yaml", TEXT.into()).unwrap();
        assert_eq!(file.documents.len(), 2);
        assert_eq!(file.documents[1].value["list"][1]["b"], true);
        let path = ["spec", "upgrades", "policy"].map(String::from);
        let at = |document: usize, path: &[String], in_name| {
            let span = span(TEXT, file.documents[document].place(path, in_name));
            &TEXT[span.offset()..span.offset() + span.len()]
        };
        assert_eq!(at(0, &path, false), "Stabel");
        assert_eq!(at(0, &path, true), "policy");
        assert_eq!(at(1, &["list", "1", "b"].map(String::from), false), "true");
    }

    #[test]
    fn an_unknown_field_is_located() {
        let output = "failed to create typed patch object (a/b; apps/v1, Kind=Deployment): \
                    .spec.replcas: field not declared in schema";
        assert_eq!(undeclared(output).map(|(field, _)| field), Some(".spec.replcas"));
        assert_eq!(undeclared("something else"), None);
    }

    #[test]
    fn too_many_aliases_are_reported() {
        let first = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        let others = (0..8).zip(1..).map(|(before, now)| {
            let ten = vec![format!("*a{before}"); 10].join(", ");
            format!("a{now}: &a{now} [{ten}]\n")
        });
        let bomb = std::iter::once(first).chain(others).collect();
        let error = File::parse("file.yaml", bomb).unwrap_err().to_string();
        assert!(error.contains("its aliases expand"), "{error}");
    }

    #[test]
    fn invalid_yaml_is_located() {
        let error = File::parse("file.yaml", "a: [1, 2\nb: 3\n".into()).unwrap_err();
        assert!(matches!(error, Failure::Mistake { .. }), "{error}");
    }
}
