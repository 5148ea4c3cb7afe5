//! The decoder as an attacker sees it: bytes from the network, in pieces.

use super::codec::Decode;
use super::envelope;
use super::reader::Reader;
use super::stream::{Stream, child, open_response};
use super::{Value, XmlError};
use crate::about::ServiceContent;
use crate::collector::{Change, Found};
use crate::inventory::Object;
use crate::tasks::TaskInfo;

/// Feeds `bytes` to everything that reads replies. The first byte chooses the size of the pieces.
/// Returns how much was understood; never panics, never hangs, never takes memory out of
/// proportion.
pub fn decode(bytes: &[u8]) -> usize {
    let Some((size, document)) = bytes.split_first() else { return 0 };
    let mut understood = 0;
    if let Ok(text) = std::str::from_utf8(document) {
        understood += usize::from(envelope::reply::<Vec<Value>>(text).is_ok());
        understood += usize::from(envelope::reply::<ServiceContent>(text).is_ok());
        understood += usize::from(envelope::reply::<Option<TaskInfo>>(text).is_ok());
        understood += usize::from(crate::version::service_versions(text, "urn:vim25").is_ok());
        let _ = redaction::redact_xml(text);
    }
    let step = usize::from(*size) + 1;
    understood += in_pieces(document, step, |reader| child(reader, Found::<Object>::decode))
        .unwrap_or_default();
    understood += in_pieces(document, step, changes).unwrap_or_default();
    understood
}

/// Reads the next change, or moves into the list that holds them.
fn changes(reader: &mut Reader<'_>) -> Result<Option<()>, XmlError> {
    let Some(start) = reader.next_child()? else { return Ok(None) };
    match start.name() {
        "filterSet" => {}
        "objectSet" => drop(Change::<Object>::decode(&start, reader)?),
        _ => reader.skip()?,
    }
    Ok(Some(()))
}

/// Reads the children of `returnval` from a document that arrives in pieces.
fn in_pieces<T>(
    document: &[u8],
    step: usize,
    read: impl Fn(&mut Reader<'_>) -> Result<Option<T>, XmlError>,
) -> Result<usize, XmlError> {
    let mut stream = Stream::new();
    let mut pieces = document.chunks(step);
    let (mut depth, mut found) = (0, 0);
    loop {
        let progress = match depth {
            0 => match stream.attempt(open_response)? {
                Some(Some(_)) => return Ok(found),
                arrived => arrived.is_some(),
            },
            1 => match stream.attempt(|reader| Ok(reader.next_child()?.is_some()))? {
                Some(false) => return Ok(found),
                arrived => arrived.is_some(),
            },
            _ => match stream.attempt(&read)? {
                Some(None) => return Ok(found),
                arrived => {
                    found += usize::from(arrived.is_some());
                    arrived.is_some()
                }
            },
        };
        if progress {
            depth += 1;
        } else {
            match pieces.next() {
                Some(piece) => stream.feed(piece)?,
                None => stream.end(),
            }
        }
    }
}
