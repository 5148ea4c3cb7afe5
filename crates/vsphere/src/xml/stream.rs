//! Reading a reply while it is still arriving.
//!
//! A large reply is a long list of small elements. [`Stream`] holds only the part of the text that
//! was not read yet: an element is read in one go from what is there, and if it is not all there,
//! the attempt is forgotten and made again when more has come. So no thread waits, no tree is
//! built, and the whole text is never in memory.
//!
//! It does no I/O itself: the caller feeds it.

use super::reader::{Reader, Start, XmlError};

/// The largest single element (one object with all its properties) that is held.
const MAX_ELEMENT: usize = 32 << 20;

/// Text of a reply that has arrived and was not read yet.
#[derive(Debug)]
pub(crate) struct Stream {
    text: String,
    /// Where reading goes on in `text`.
    at: usize,
    /// The first bytes of a character that is still incomplete.
    partial: Vec<u8>,
    /// How many elements are open at `at`.
    depth: usize,
    /// An attempt on less text than this would fail again.
    worth_trying: usize,
    ended: bool,
}

impl Stream {
    pub(crate) fn new() -> Self {
        Self {
            text: String::new(),
            at: 0,
            partial: Vec::new(),
            depth: 0,
            worth_trying: 0,
            ended: false,
        }
    }

    /// Takes bytes that arrived.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), XmlError> {
        if self.at > 0 {
            self.worth_trying = self.worth_trying.saturating_sub(self.at);
            self.text.drain(..self.at);
            self.at = 0;
        }
        let joined;
        let bytes = if self.partial.is_empty() {
            bytes
        } else {
            self.partial.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.partial);
            joined.as_slice()
        };
        match std::str::from_utf8(bytes) {
            Ok(text) => self.text.push_str(text),
            Err(error) if error.error_len().is_none() => {
                let (whole, rest) = bytes.split_at(error.valid_up_to());
                self.text.push_str(std::str::from_utf8(whole).map_err(|_| XmlError::NotText)?);
                self.partial = rest.to_vec();
            }
            Err(_) => return Err(XmlError::NotText),
        }
        if self.text.len() > MAX_ELEMENT {
            Err(XmlError::TooLarge { limit: MAX_ELEMENT })
        } else {
            Ok(())
        }
    }

    /// Says that no more will arrive.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        self.worth_trying = 0;
    }

    /// Reads one piece, or returns `None` when it has not all arrived.
    ///
    /// After a failed attempt nothing is tried before the unread text has doubled, so that a large
    /// element that arrives in small pieces costs no more than twice its reading.
    pub(crate) fn attempt<T>(
        &mut self,
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, XmlError>,
    ) -> Result<Option<T>, XmlError> {
        let unread = &self.text[self.at..];
        if unread.len() < self.worth_trying {
            return Ok(None);
        }
        let mut reader = Reader::at_depth(unread, self.depth);
        match read(&mut reader) {
            Ok(value) => {
                self.at += reader.position();
                self.depth = reader.depth();
                self.worth_trying = 0;
                Ok(Some(value))
            }
            Err(error) if error.is_incomplete() && !self.ended => {
                self.worth_trying = unread.len() * 2;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Reads the next child, all of it, with `read`; the outer `None` of the result is the end of the
/// parent.
pub(crate) fn child<T>(
    reader: &mut Reader<'_>,
    read: impl FnOnce(&Start<'_>, &mut Reader<'_>) -> Result<T, XmlError>,
) -> Result<Option<T>, XmlError> {
    match reader.next_child()? {
        Some(start) => read(&start, reader).map(Some),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::codec::Decode;
    use super::*;

    /// Reads `<list><item>…</item>…</list>` in pieces of `size` bytes.
    fn items(xml: &str, size: usize) -> Result<Vec<String>, XmlError> {
        let mut stream = Stream::new();
        let mut pieces = xml.as_bytes().chunks(size);
        let mut opened = false;
        let mut found = Vec::new();
        loop {
            let progress = if opened {
                match stream.attempt(|r| child(r, String::decode))? {
                    Some(Some(item)) => {
                        found.push(item);
                        true
                    }
                    Some(None) => return Ok(found),
                    None => false,
                }
            } else {
                opened = stream
                    .attempt(|r| r.next_child().map(|start| start.is_some()))?
                    .unwrap_or(false);
                opened
            };
            if !progress {
                match pieces.next() {
                    Some(piece) => stream.feed(piece)?,
                    None => stream.end(),
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_how_the_text_was_cut(
            words in proptest::collection::vec("[a-zäöü€😀<>& ]{0,20}", 0..20),
            size in 1_usize..64,
        ) {
            let mut writer = super::super::writer::Writer::default();
            writer.open("list");
            for word in &words { writer.leaf("item", word); }
            writer.close("list");
            prop_assert_eq!(items(&writer.finish(), size).unwrap(), words);
        }
    }

    #[test]
    fn a_reply_that_is_cut_off_is_an_error_and_not_a_short_list() {
        let error = items("<list><item>1</item><item>2</it", 5).unwrap_err();
        assert!(error.is_incomplete());
    }

    #[test]
    fn bytes_that_are_not_text_are_refused() {
        let mut stream = Stream::new();
        assert!(matches!(stream.feed(&[b'<', 0xff, b'>']), Err(XmlError::NotText)));
    }
}
