//! Bytes on the wire.

use prost::bytes::{Buf as _, BufMut as _};
use testkit::SeededRandom;
use tonic::{
    Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
    transport::Channel,
};

/// Changes some bytes of a message.
pub(crate) fn damage(bytes: &mut Vec<u8>, random: &mut SeededRandom) {
    for _ in 0..=random.below(3) {
        let length = bytes.len() as u64;
        let mut at = |bound: u64| usize::try_from(random.below(bound.max(1))).unwrap();
        let (from, byte) = (at(length), u8::try_from(at(256)).unwrap());
        let to = from + at(length.saturating_sub(from as u64) + 1).min(16);
        match at(7) {
            _ if bytes.is_empty() => bytes.push(byte),
            0 => bytes[from] ^= 1 << (byte % 8),
            1 => bytes[from] = byte,
            2 => bytes.truncate(from),
            3 => drop(bytes.drain(from..to.min(bytes.len()))),
            4 => {
                let copy = bytes[from..to.min(bytes.len())].to_vec();
                bytes.extend(copy);
            }
            5 => bytes.insert(from, byte),
            // The largest length or number that fits.
            _ => drop(bytes.splice(from..from, [0xff, 0xff, 0xff, 0xff, 0x0f])),
        }
    }
}

pub(crate) async fn call(
    channel: Channel,
    path: String,
    request: Vec<u8>,
) -> Result<Vec<u8>, Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::try_from(path).unwrap();
    client.unary(Request::new(request), path, Raw).await.map(tonic::Response::into_inner)
}

/// Messages as bytes.
#[derive(Debug)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let length = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(length).to_vec()))
    }
}
