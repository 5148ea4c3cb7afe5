//! Reads a reply while it is still arriving.
//!
//! A large reply is a long list of small elements. [`Stream`] holds only the unread text. It reads
//! an element in one go; if the element is incomplete, it drops the attempt and repeats it with
//! more text. It blocks no thread and never holds the whole reply in memory.
//!
//! [`Stream`] does no I/O. The caller feeds it.

use super::reader::{Reader, Start, XmlError};

/// The maximum size of one element, which is one object with all its properties.
const MAX_ELEMENT: usize = 32 << 20;

/// The unread part of a reply that is still arriving.
#[derive(Debug)]
pub(crate) struct Stream {
    text: String,
    /// The read position in `text`.
    at: usize,
    /// The first bytes of an incomplete UTF-8 character.
    partial: Vec<u8>,
    /// How many elements are open at `at`.
    depth: usize,
    /// The unread length below which an attempt would fail again.
    retry_at_len: usize,
    ended: bool,
}

impl Stream {
    pub(crate) fn new() -> Self {
        Self {
            text: String::new(),
            at: 0,
            partial: Vec::new(),
            depth: 0,
            retry_at_len: 0,
            ended: false,
        }
    }

    /// Appends bytes that arrived.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), XmlError> {
        if self.at > 0 {
            self.retry_at_len = self.retry_at_len.saturating_sub(self.at);
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

    /// Marks the end of the reply.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        self.retry_at_len = 0;
    }

    /// Reads one element with `read`. Returns `None` if it has not arrived completely.
    ///
    /// After a failed attempt, the next one waits until the unread text has doubled. A large
    /// element that arrives in small chunks thus costs at most twice its decoding.
    pub(crate) fn attempt<T>(
        &mut self,
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, XmlError>,
    ) -> Result<Option<T>, XmlError> {
        let unread = &self.text[self.at..];
        if unread.len() < self.retry_at_len {
            return Ok(None);
        }
        let mut reader = Reader::at_depth(unread, self.depth);
        match read(&mut reader) {
            Ok(value) => {
                self.at += reader.position();
                self.depth = reader.depth();
                self.retry_at_len = 0;
                Ok(Some(value))
            }
            Err(error) if error.is_incomplete() && !self.ended => {
                self.retry_at_len = unread.len() * 2;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Reads the next child completely with `read`. Returns `None` at the end of the parent.
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

    /// Reads `<list><item>…</item>…</list>` in chunks of `size` bytes.
    fn items(xml: &str, size: usize) -> Result<Vec<String>, XmlError> {
        let mut stream = Stream::new();
        let mut chunks = xml.as_bytes().chunks(size);
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
                match chunks.next() {
                    Some(chunk) => stream.feed(chunk)?,
                    None => stream.end(),
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_chunk_boundaries(
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
    fn a_truncated_reply_is_an_error_and_not_a_short_list() {
        let error = items("<list><item>1</item><item>2</it", 5).unwrap_err();
        assert!(error.is_incomplete());
    }

    #[test]
    fn bytes_that_are_not_utf8_are_rejected() {
        let mut stream = Stream::new();
        assert!(matches!(stream.feed(&[b'<', 0xff, b'>']), Err(XmlError::NotText)));
    }
}
