//! A pull reader for XML text. It never builds a tree.

use std::borrow::Cow;

use quick_xml::Reader as Events;
use quick_xml::errors::{Error as ParseError, IllFormedError};
use quick_xml::events::{BytesStart, Event};
use snafu::Snafu;

/// The maximum nesting depth. vCenter's deepest reply, a chain of 32 snapshots, needs less than 60.
pub(crate) const MAX_DEPTH: usize = 200;

/// Why XML could not be decoded.
#[derive(Debug, Clone, Snafu)]
#[snafu(visibility(pub(crate)))]
pub enum XmlError {
    /// The text ends before the current element is complete.
    #[snafu(display("the document ends in the middle of an element"))]
    Ended,
    #[snafu(display("the document is not well-formed XML"))]
    Malformed { source: quick_xml::Error },
    #[snafu(display("the document is not UTF-8 text"))]
    NotText,
    /// The document has a DTD. vCenter never sends one, and expanding one is a known attack.
    #[snafu(display("the document has a document type definition, which is not allowed"))]
    Dtd,
    /// The document has more levels than any vCenter reply.
    #[snafu(display("the document nests elements more than {MAX_DEPTH} levels deep"))]
    TooDeep,
    /// One element of the reply exceeds the memory limit.
    #[snafu(display("one element of the document is larger than {limit} bytes"))]
    TooLarge { limit: usize },
    /// The document uses an entity that XML does not predefine.
    #[snafu(display("the document uses the unknown entity &{name};"))]
    Entity { name: String },
    /// A required element is missing.
    #[snafu(display("{of} has no {field}"))]
    Missing { of: &'static str, field: &'static str },
    /// The text of an element does not parse.
    #[snafu(display("\"{text}\" is not {expected}"))]
    Unreadable {
        /// The text, truncated.
        text: String,
        /// The expected type.
        expected: &'static str,
    },
    /// The document has a different element in this place.
    #[snafu(display("expected the element {expected}, found {found}"))]
    Unexpected { found: String, expected: &'static str },
}

impl XmlError {
    /// Truncates `text` for use in a log line.
    pub(crate) fn unreadable(text: &str, expected: &'static str) -> Self {
        Self::Unreadable { text: text.chars().take(60).collect(), expected }
    }

    /// Whether decoding may succeed with more text.
    pub(crate) fn is_incomplete(&self) -> bool {
        matches!(self, Self::Ended)
    }
}

impl From<ParseError> for XmlError {
    /// Maps the parser's errors for truncated text to [`XmlError::Ended`].
    fn from(source: ParseError) -> Self {
        match source {
            ParseError::Syntax(_)
            | ParseError::IllFormed(
                IllFormedError::UnclosedReference | IllFormedError::MissingEndTag(_),
            ) => Self::Ended,
            source => Self::Malformed { source },
        }
    }
}

#[derive(Debug)]
pub(crate) struct Start<'x>(BytesStart<'x>);

impl Start<'_> {
    /// The local name, without prefix.
    pub(crate) fn name(&self) -> &str {
        local(self.0.name().into_inner())
    }

    /// The attribute `name` without prefix, such as the `type` of a reference.
    pub(crate) fn attribute(&self, name: &str) -> Option<Cow<'_, str>> {
        self.0
            .attributes()
            .flatten()
            .find(|a| a.key.into_inner() == name)
            .map(|a| unescaped(a.value))
    }

    /// The local name in `xsi:type`. The attribute may use any prefix.
    pub(crate) fn xsi_type(&self) -> Option<Cow<'_, str>> {
        let found = self.0.attributes().flatten().find(|a| {
            matches!(a.key.into_inner().split_once(':'), Some((prefix, "type")) if prefix != "xmlns")
        })?;
        Some(match unescaped(found.value) {
            Cow::Borrowed(value) => Cow::Borrowed(local(value)),
            Cow::Owned(value) => Cow::Owned(local(&value).to_owned()),
        })
    }
}

/// Resolves the five predefined entities. Leaves a value with any other entity unchanged.
fn unescaped(value: Cow<'_, str>) -> Cow<'_, str> {
    if !value.contains('&') {
        return value;
    }
    match quick_xml::escape::unescape(&value) {
        Ok(Cow::Owned(text)) => Cow::Owned(text),
        _ => value,
    }
}

fn local(name: &str) -> &str {
    name.rsplit_once(':').map_or(name, |(_, local)| local)
}

/// A cursor in XML text, always inside an element or before the root.
pub(crate) struct Reader<'x> {
    text: &'x str,
    events: Events<&'x [u8]>,
    depth: usize,
}

impl std::fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("position", &self.position())
            .field("depth", &self.depth)
            .finish()
    }
}

impl<'x> Reader<'x> {
    /// Starts before the first tag of `text`.
    pub(crate) fn new(text: &'x str) -> Self {
        Self::at_depth(text, 0)
    }

    /// Starts inside `depth` elements that an earlier reader has opened.
    pub(crate) fn at_depth(text: &'x str, depth: usize) -> Self {
        let mut events = Events::from_str(text);
        let config = events.config_mut();
        config.expand_empty_elements = true;
        config.allow_unmatched_ends = true;
        config.check_end_names = true;
        Self { text, events, depth }
    }

    /// The number of bytes read.
    pub(crate) fn position(&self) -> usize {
        usize::try_from(self.events.buffer_position()).unwrap_or(usize::MAX).min(self.text.len())
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Moves to the next child of the current element. Returns `None` when the element has ended.
    ///
    /// The caller must read the child to its end (`text`, `skip`, or children until `None`) before
    /// the next call.
    pub(crate) fn next_child(&mut self) -> Result<Option<Start<'x>>, XmlError> {
        loop {
            match self.events.read_event()? {
                Event::Start(start) => {
                    self.depth += 1;
                    if self.depth > MAX_DEPTH {
                        return TooDeepSnafu.fail();
                    }
                    return Ok(Some(Start(start)));
                }
                Event::End(_) => {
                    self.depth = self.depth.saturating_sub(1);
                    return Ok(None);
                }
                Event::Eof => return EndedSnafu.fail(),
                Event::DocType(_) => return DtdSnafu.fail(),
                _ => {}
            }
        }
    }

    /// Reads the text of the current element unchanged and leaves the element. Skips child
    /// elements.
    pub(crate) fn text(&mut self) -> Result<Cow<'x, str>, XmlError> {
        let mut text = Cow::Borrowed("");
        loop {
            match self.events.read_event()? {
                Event::Text(part) => append(&mut text, part.xml10_content()),
                Event::CData(part) => append(&mut text, part.xml10_content()),
                Event::GeneralRef(reference) => {
                    let c = match reference.resolve_char_ref()? {
                        Some(c) => c,
                        None => predefined(&reference.into_inner())?,
                    };
                    text.to_mut().push(c);
                }
                Event::Start(_) => {
                    self.depth += 1;
                    self.skip()?;
                }
                Event::End(_) => {
                    self.depth = self.depth.saturating_sub(1);
                    return Ok(text);
                }
                Event::Eof => return EndedSnafu.fail(),
                Event::DocType(_) => return DtdSnafu.fail(),
                _ => {}
            }
        }
    }

    /// Skips the rest of the current element.
    pub(crate) fn skip(&mut self) -> Result<(), XmlError> {
        let outside = self.depth.saturating_sub(1);
        while self.depth > outside {
            self.next_child()?;
        }
        Ok(())
    }

    /// Skips the rest of the current element and returns its content as raw XML.
    pub(crate) fn raw(&mut self) -> Result<&'x str, XmlError> {
        let from = self.position();
        self.skip()?;
        let inside = self.text.get(from..self.position()).unwrap_or_default();
        Ok(inside.rfind("</").map_or("", |end| &inside[..end]))
    }
}

fn append<'x>(text: &mut Cow<'x, str>, part: Cow<'x, str>) {
    if text.is_empty() {
        *text = part;
    } else {
        text.to_mut().push_str(&part);
    }
}

fn predefined(name: &str) -> Result<char, XmlError> {
    Ok(match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        _ => return EntitySnafu { name: name.chars().take(40).collect::<String>() }.fail(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(xml: &str) -> Result<String, XmlError> {
        let mut reader = Reader::new(xml);
        reader.next_child()?.expect("a root");
        Ok(reader.text()?.into_owned())
    }

    #[test]
    fn entities_and_white_space_are_preserved() {
        assert_eq!(
            text_of("<a>  x &amp;&lt;&gt;&quot;&apos; &#65;&#x1F600;\n y </a>").unwrap(),
            "  x &<>\"' A\u{1F600}\n y "
        );
        assert_eq!(text_of("<a><![CDATA[1 < 2 && 3]]></a>").unwrap(), "1 < 2 && 3");
        assert_eq!(text_of("<a/>").unwrap(), "");
    }

    #[test]
    fn an_unknown_entity_is_named() {
        let error = text_of("<a>&secret;</a>").unwrap_err();
        assert_eq!(error.to_string(), "the document uses the unknown entity &secret;");
    }

    #[test]
    fn a_document_type_definition_is_rejected() {
        let bomb = r#"<!DOCTYPE a [<!ENTITY b "bbbbbbbb">]><a>&b;</a>"#;
        assert!(matches!(text_of(bomb), Err(XmlError::Dtd)));
    }

    #[test]
    fn truncated_text_is_distinguished_from_malformed_text() {
        for cut in ["<a>text", "<a><b></b>", "<a>x &am", "<a", "<a b=\"c"] {
            assert!(text_of(cut).unwrap_err().is_incomplete(), "{cut}");
        }
        let error = text_of("<a><b></c></a>").unwrap_err();
        assert!(matches!(error, XmlError::Malformed { .. }), "{error:?}");
    }

    #[test]
    fn depth_is_limited() {
        let deep = "<a>".repeat(100_000);
        let mut reader = Reader::new(&deep);
        reader.next_child().unwrap();
        assert!(matches!(reader.skip(), Err(XmlError::TooDeep)));
    }

    #[test]
    fn the_xsi_type_is_found_under_any_prefix_and_not_mistaken_for_the_type_of_a_reference() {
        let xml = r#"<obj type="VirtualMachine" xmlns:q="http://www.w3.org/2001/XMLSchema-instance" q:type="vim25:ManagedObjectReference">vm-1</obj>"#;
        let mut reader = Reader::new(xml);
        let start = reader.next_child().unwrap().unwrap();
        assert_eq!(start.attribute("type").as_deref(), Some("VirtualMachine"));
        assert_eq!(start.xsi_type().as_deref(), Some("ManagedObjectReference"));
    }

    #[test]
    fn raw_returns_the_content() {
        let mut reader = Reader::new("<a><b x='1'>t<c/></b><d>2</d></a>");
        reader.next_child().unwrap();
        reader.next_child().unwrap();
        assert_eq!(reader.raw().unwrap(), "t<c/>");
        assert_eq!(reader.next_child().unwrap().unwrap().name(), "d");
    }
}
