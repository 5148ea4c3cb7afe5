//! Connections of the kubelet whose requests name an authority that HTTP allows.
//!
//! The kubelet dials the registration socket by its path, and its gRPC library then sends the escaped path as the
//! `:authority` of its requests: `%2Fvar%2Flib%2Fkubelet%2F…`. Rust's HTTP library rejects that, as RFC 3986 says.
//! Between the two, this replaces the authority by `localhost`, in the first header block that has it as text. Later
//! blocks refer to that entry of the compression's table (HPACK, RFC 7541), so nothing else changes.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, copy, duplex, split},
    net::{UnixStream, unix::OwnedReadHalf},
};

/// The preface of every HTTP/2 connection.
const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
/// HTTP/2's default; the kubelet's requests have a few hundred bytes.
const MAX_FRAME: usize = 16_384;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// A literal with incremental indexing whose name is entry 1 of the static table, `:authority`.
const AUTHORITY: u8 = 0x41;
const LOCALHOST: &[u8] = b"\x41\x09localhost";

/// The connection as the server sees it, and the work that keeps it going.
pub(super) fn rewrite(connection: UnixStream) -> (DuplexStream, impl Future<Output = ()>) {
    let (server, ours) = duplex(2 * MAX_FRAME);
    let work = async move {
        let (from_kubelet, mut to_kubelet) = connection.into_split();
        let (mut from_server, to_server) = split(ours);
        let answers = async {
            let _ = copy(&mut from_server, &mut to_kubelet).await;
            let _ = to_kubelet.shutdown().await;
        };
        // A broken connection ends both; the kubelet dials again.
        tokio::join!(async { drop(requests(from_kubelet, to_server).await) }, answers);
    };
    (server, work)
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: tokio::io::WriteHalf<DuplexStream>,
) -> std::io::Result<()> {
    let mut preface = [0; PREFACE];
    from.read_exact(&mut preface).await?;
    to.write_all(&preface).await?;
    loop {
        let mut header = [0; FRAME_HEADER];
        if from.read_exact(&mut header).await.is_err() {
            return to.shutdown().await;
        }
        let length =
            usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
        if length > MAX_FRAME {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload).await?;
        let (kind, flags) = (header[3], header[4]);
        if kind == HEADERS && flags & PADDED == 0 {
            let start = if flags & PRIORITY == 0 { 0 } else { 5 };
            if let Some(block) = payload.get(start..).and_then(with_localhost) {
                payload.truncate(start);
                payload.extend(block);
                let length = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
                header[..3].copy_from_slice(&length[1..]);
            }
        }
        to.write_all(&header).await?;
        to.write_all(&payload).await?;
    }
}

/// The header block with another authority, if it has one as text.
fn with_localhost(block: &[u8]) -> Option<Vec<u8>> {
    let mut at = 0;
    while at < block.len() {
        let end = field_end(block, at)?;
        if block[at] == AUTHORITY {
            return Some([&block[..at], LOCALHOST, &block[end..]].concat());
        }
        at = end;
    }
    None
}

/// Where the header field at `at` ends.
fn field_end(block: &[u8], at: usize) -> Option<usize> {
    let first = *block.get(at)?;
    // An indexed field, or a change of the table's size: a number and nothing else.
    if first & 0x80 != 0 {
        return number(block, at, 7).map(|(_, end)| end);
    }
    if first & 0xe0 == 0x20 {
        return number(block, at, 5).map(|(_, end)| end);
    }
    // A literal field: the name by index or as text, then the value.
    let (name, mut end) = number(block, at, if first & 0x40 == 0 { 4 } else { 6 })?;
    if name == 0 {
        end = string_end(block, end)?;
    }
    string_end(block, end)
}

fn string_end(block: &[u8], at: usize) -> Option<usize> {
    let (length, start) = number(block, at, 7)?;
    start.checked_add(length).filter(|end| *end <= block.len())
}

/// An integer with a prefix of `bits`, and where it ends (RFC 7541, 5.1).
fn number(block: &[u8], at: usize, bits: u32) -> Option<(usize, usize)> {
    let most = (1usize << bits) - 1;
    let mut value = usize::from(*block.get(at)?) & most;
    let mut at = at + 1;
    if value < most {
        return Some((value, at));
    }
    for shift in [0, 7, 14] {
        let byte = usize::from(*block.get(at)?);
        at += 1;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, at));
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `:method POST`, `:scheme http`, `:path` as a literal, `:authority` as a literal, `te` as a literal with a name.
    fn block(authority: &[u8]) -> Vec<u8> {
        let mut block = vec![0x83, 0x86, 0x44, 0x02];
        block.extend(b"/x");
        block.push(AUTHORITY);
        let length = u8::try_from(authority.len()).unwrap();
        if length < 127 {
            block.push(length);
        } else {
            block.extend([127, length - 127]);
        }
        block.extend(authority);
        block.extend(b"\x40\x02te\x08trailers");
        block
    }

    #[test]
    fn only_the_authority_is_replaced() {
        let path = b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fcsi.vsphere.vmware.com-reg.sock";
        assert_eq!(with_localhost(&block(path)).unwrap(), block(b"localhost"));
        let long = [path.as_slice(), path].concat();
        assert_eq!(with_localhost(&block(&long)).unwrap(), block(b"localhost"));
        assert_eq!(with_localhost(&[0x83, 0x86, 0xbe]), None, "a reference to the table stays");
    }

    proptest! {
        #[test]
        fn any_block_is_read_without_a_panic(block in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = with_localhost(&block);
        }
    }
}
