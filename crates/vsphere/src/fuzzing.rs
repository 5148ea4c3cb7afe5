//! Entry points for the fuzz targets. Not part of the API.

use serde_json::Value as Json;

use crate::about::ServiceContent;
use crate::collector::{Change, RetrievedObject};
use crate::inventory::Object;
use crate::soap::Value;
use crate::soap::envelope::{self, open_response};
use crate::task_registry::TaskInfo;
use crate::xml::XmlError;
use crate::xml::codec::Decode;
use crate::xml::reader::Reader;
use crate::xml::stream::{Stream, child};
use crate::{rest, tags, transport, version};

/// Feeds `bytes` to every decoder of SOAP replies. The first byte sets the chunk size.
///
/// Returns how many decoders succeeded. Never panics, never hangs, and never uses memory out of
/// proportion to the input.
pub fn decode(bytes: &[u8]) -> usize {
    let Some((size, document)) = bytes.split_first() else { return 0 };
    let mut decoded = 0;
    if let Ok(text) = std::str::from_utf8(document) {
        decoded += usize::from(envelope::reply::<Vec<Value>>(text).is_ok());
        decoded += usize::from(envelope::reply::<ServiceContent>(text).is_ok());
        decoded += usize::from(envelope::reply::<Option<TaskInfo>>(text).is_ok());
        decoded += usize::from(version::service_versions(text, "urn:vim25").is_ok());
        let _ = transport::body_trace::redacted(text);
    }
    let step = usize::from(*size) + 1;
    decoded += in_chunks(document, step, |reader| child(reader, RetrievedObject::<Object>::decode))
        .unwrap_or_default();
    decoded += in_chunks(document, step, next_change).unwrap_or_default();
    decoded
}

/// Feeds `bytes` to every decoder of REST replies. Returns how many succeeded; never panics.
pub fn decode_rest(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
    let mut decoded = usize::from(rest::error_message(text) != "no reason given");
    for path in ["/rest/com/vmware/x", "/api/x"] {
        if let Ok(json) = serde_json::from_str::<Json>(text) {
            decoded += tags::count_matching_types(&rest::unwrap_value(path, json));
        }
    }
    decoded
}

/// Reads the next change, or moves into the list of changes.
fn next_change(reader: &mut Reader<'_>) -> Result<Option<()>, XmlError> {
    let Some(start) = reader.next_child()? else { return Ok(None) };
    match start.name() {
        "filterSet" => {}
        "objectSet" => drop(Change::<Object>::decode(&start, reader)?),
        _ => reader.skip()?,
    }
    Ok(Some(()))
}

/// Reads the children of `returnval` from a document that arrives in chunks of `step` bytes.
fn in_chunks<T>(
    document: &[u8],
    step: usize,
    read: impl Fn(&mut Reader<'_>) -> Result<Option<T>, XmlError>,
) -> Result<usize, XmlError> {
    let mut stream = Stream::new();
    let mut chunks = document.chunks(step);
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
            match chunks.next() {
                Some(chunk) => stream.feed(chunk)?,
                None => stream.end(),
            }
        }
    }
}
