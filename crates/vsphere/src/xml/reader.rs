//! Pulls elements out of XML text, one at a time, never building a tree.

use std::borrow::Cow;

use quick_xml::Reader as Events;
use quick_xml::errors::{Error as ParseError, IllFormedError};
use quick_xml::events::{BytesStart, Event};
use snafu::Snafu;

/// Elements nested deeper than this are refused: vCenter's deepest reply (a chain of 32 snapshots)
/// needs under 60.
pub(crate) const MAX_DEPTH: usize = 200;

/// Why a piece of XML could not be read.
#[derive(Debug, Clone, Snafu)]
#[snafu(visibility(pub(crate)))]
pub enum XmlError {
    /// The text stops before the element that was being read is complete.
    #[snafu(display("the document ends in the middle of an element"))]
    Ended,
    /// The text is not XML.
    #[snafu(display("the document is not well-formed XML"))]
    Malformed {
        /// What the parser met.
        source: quick_xml::Error,
    },
    /// The bytes are not UTF-8.
    #[snafu(display("the document is not UTF-8 text"))]
    NotText,
    /// A document type definition: vCenter never sends one, and expanding one is a known attack.
    #[snafu(display("the document carries a document type definition, which is refused"))]
    Dtd,
    /// More levels than any reply has.
    #[snafu(display("the document nests elements more than {MAX_DEPTH} levels deep"))]
    TooDeep,
    /// One element of the reply is larger than a reader is willing to hold.
    #[snafu(display("one element of the document is larger than {limit} bytes"))]
    TooLarge {
        /// The limit that was passed.
        limit: usize,
    },
    /// An entity that XML does not define by itself.
    #[snafu(display("the document uses the unknown entity &{name};"))]
    Entity {
        /// Its name.
        name: String,
    },
    /// An element that must be there is not.
    #[snafu(display("{of} arrived without {field}"))]
    Missing {
        /// The type that was being read.
        of: &'static str,
        /// The element that is missing.
        field: &'static str,
    },
    /// Text that does not say what it should.
    #[snafu(display("\"{text}\" is not {expected}"))]
    Unreadable {
        /// The text, shortened.
        text: String,
        /// What it should have been.
        expected: &'static str,
    },
    /// Another element than the one that belongs here.
    #[snafu(display("found the element {found} where {expected} belongs"))]
    Unexpected {
        /// What was found.
        found: String,
        /// What belongs there.
        expected: &'static str,
    },
}

impl XmlError {
    /// Text that cannot be understood, cut to a length fit for a log line.
    pub(crate) fn unreadable(text: &str, expected: &'static str) -> Self {
        Self::Unreadable { text: text.chars().take(60).collect(), expected }
    }

    /// Whether more text could turn the failure into a success.
    pub(crate) fn is_incomplete(&self) -> bool {
        matches!(self, Self::Ended)
    }
}

impl From<ParseError> for XmlError {
    /// The parser reports text that stops early as an error of its grammar; here that is
    /// [`XmlError::Ended`].
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

/// The start tag of an element.
#[derive(Debug)]
pub(crate) struct Start<'x>(BytesStart<'x>);

impl Start<'_> {
    /// The element's name without its prefix.
    pub(crate) fn name(&self) -> &str {
        local(self.0.name().into_inner())
    }

    /// The plain attribute `name` (no prefix), such as the `type` of a reference.
    pub(crate) fn attribute(&self, name: &str) -> Option<Cow<'_, str>> {
        self.0
            .attributes()
            .flatten()
            .find(|a| a.key.into_inner() == name)
            .map(|a| unescaped(a.value))
    }

    /// The element's `xsi:type`, without prefix, whatever the prefix of the attribute.
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

/// Attribute values with the five predefined entities resolved; a value with any other is taken as
/// it stands.
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

/// A cursor in XML text. It always stands inside an element (or before the root); the methods move
/// it on.
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
    /// A cursor before the first tag of `text`.
    pub(crate) fn new(text: &'x str) -> Self {
        Self::at_depth(text, 0)
    }

    /// A cursor in text whose surroundings, `depth` elements deep, were read before.
    pub(crate) fn at_depth(text: &'x str, depth: usize) -> Self {
        let mut events = Events::from_str(text);
        let config = events.config_mut();
        config.expand_empty_elements = true;
        config.allow_unmatched_ends = true;
        config.check_end_names = true;
        Self { text, events, depth }
    }

    /// How many bytes were read.
    pub(crate) fn position(&self) -> usize {
        usize::try_from(self.events.buffer_position()).unwrap_or(usize::MAX).min(self.text.len())
    }

    /// How many elements are open.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// The next child of the element the cursor stands in, or `None` once that element has ended.
    /// The caller must read the child to its end (`text`, `skip`, or children until `None`) before
    /// asking again.
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

    /// The text of the element the cursor stands in, exactly as it was written; the cursor leaves
    /// the element. Children, where text was expected, are passed over.
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

    /// Passes over the rest of the element the cursor stands in.
    pub(crate) fn skip(&mut self) -> Result<(), XmlError> {
        let outside = self.depth.saturating_sub(1);
        while self.depth > outside {
            self.next_child()?;
        }
        Ok(())
    }

    /// Passes over the rest of the element the cursor stands in and returns what was inside it,
    /// unread.
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
    fn entities_and_white_space_arrive_exactly() {
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
    fn a_document_type_definition_is_refused() {
        let bomb = r#"<!DOCTYPE a [<!ENTITY b "bbbbbbbb">]><a>&b;</a>"#;
        assert!(matches!(text_of(bomb), Err(XmlError::Dtd)));
    }

    #[test]
    fn text_that_stops_early_is_told_from_text_that_is_wrong() {
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
    fn raw_returns_what_is_inside() {
        let mut reader = Reader::new("<a><b x='1'>t<c/></b><d>2</d></a>");
        reader.next_child().unwrap();
        reader.next_child().unwrap();
        assert_eq!(reader.raw().unwrap(), "t<c/>");
        assert_eq!(reader.next_child().unwrap().unwrap().name(), "d");
    }
}
