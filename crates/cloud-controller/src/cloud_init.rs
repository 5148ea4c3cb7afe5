//! The addresses in cloud-init's metadata, in the order of the document.
//!
//! As in the Go controller, the metadata itself must be `base64`. The network inside can be plain,
//! `base64` or compressed.

use std::{fmt, io::Read as _, net::IpAddr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use snafu::{ResultExt as _, Snafu};

use crate::model::Metadata;

/// Metadata is a few kilobytes; this limits decompression.
const MAX_UNPACKED: u64 = 1 << 20;

/// The controller then uses the order of the interfaces.
#[derive(Debug, Snafu)]
pub enum MetadataError {
    #[snafu(display("guestinfo.metadata: {what} is not valid base64"))]
    Base64 { what: &'static str, source: base64::DecodeError },
    #[snafu(display("guestinfo.metadata: {what} is not valid YAML"))]
    Yaml { what: &'static str },
    #[snafu(display("guestinfo.metadata: the network cannot be decompressed"))]
    Gzip { source: std::io::Error },
    #[snafu(display("guestinfo.metadata: {what} is not text"))]
    NotText { what: &'static str },
}

/// The addresses of all interfaces, in the order of the document.
pub fn configured_addresses(metadata: &Metadata) -> Result<Vec<IpAddr>, MetadataError> {
    if metadata.content.is_empty() || metadata.encoding != "base64" {
        return Ok(Vec::new());
    }
    let what = "the metadata";
    let document = text(decode(&metadata.content, what)?, what)?;
    let document: Document = yaml(&document, what)?;
    let what = "the network";
    let network = match (document.encoding.as_deref(), document.network) {
        (_, None) => Network::default(),
        (Some("base64" | "b64"), Some(NetworkValue::Encoded(packed))) => {
            yaml(&text(decode(&packed, what)?, what)?, what)?
        }
        (Some("gzip+base64" | "gz+b64"), Some(NetworkValue::Encoded(packed))) => {
            yaml(&text(gunzip(&decode(&packed, what)?)?, what)?, what)?
        }
        (_, Some(NetworkValue::Plain(network))) => network,
        (_, Some(NetworkValue::Encoded(_))) => return YamlSnafu { what }.fail(),
    };
    let addresses = network.ethernets.0.into_iter().flat_map(|ethernet| ethernet.addresses.0);
    Ok(addresses.filter_map(|text| text.split('/').next()?.parse().ok()).collect())
}

fn decode(packed: &str, what: &'static str) -> Result<Vec<u8>, MetadataError> {
    let packed: String = packed.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
    STANDARD.decode(packed).context(Base64Snafu { what })
}

fn gunzip(packed: &[u8]) -> Result<Vec<u8>, MetadataError> {
    let mut content = Vec::new();
    let mut reader = flate2::read::GzDecoder::new(packed).take(MAX_UNPACKED);
    reader.read_to_end(&mut content).context(GzipSnafu)?;
    Ok(content)
}

fn text(bytes: Vec<u8>, what: &'static str) -> Result<String, MetadataError> {
    String::from_utf8(bytes).ok().map_or_else(|| NotTextSnafu { what }.fail(), Ok)
}

fn yaml<T: for<'de> Deserialize<'de>>(text: &str, what: &'static str) -> Result<T, MetadataError> {
    serde_saphyr::from_str(text).ok().map_or_else(|| YamlSnafu { what }.fail(), Ok)
}

#[derive(Deserialize, Default)]
struct Document {
    #[serde(rename = "network.encoding")]
    encoding: Option<String>,
    network: Option<NetworkValue>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NetworkValue {
    Encoded(String),
    Plain(Network),
}

#[derive(Deserialize, Default)]
struct Network {
    #[serde(default)]
    ethernets: Ethernets,
}

/// The interfaces in the order of the document, which a map type would not keep.
#[derive(Default)]
struct Ethernets(Vec<Ethernet>);

#[derive(Deserialize, Default)]
struct Ethernet {
    #[serde(default)]
    addresses: AddressList,
}

/// The text items of a list. Other items (addresses with options) are skipped.
#[derive(Default)]
struct AddressList(Vec<String>);

impl<'de> Deserialize<'de> for Ethernets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values;
        impl<'de> Visitor<'de> for Values {
            type Value = Ethernets;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("interfaces by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ethernets, A::Error> {
                let mut values = Vec::new();
                while map.next_key::<IgnoredAny>()?.is_some() {
                    values.extend(map.next_value::<Option<Ethernet>>()?);
                }
                Ok(Ethernets(values))
            }

            fn visit_unit<E>(self) -> Result<Ethernets, E> {
                Ok(Ethernets::default())
            }
        }
        deserializer.deserialize_any(Values)
    }
}

impl<'de> Deserialize<'de> for AddressList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Item {
            Text(String),
            Else(IgnoredAny),
        }
        struct Items;
        impl<'de> Visitor<'de> for Items {
            type Value = AddressList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("addresses")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<AddressList, A::Error> {
                let mut texts = Vec::new();
                while let Some(item) = seq.next_element()? {
                    match item {
                        Item::Text(text) => texts.push(text),
                        Item::Else(_) => {}
                    }
                }
                Ok(AddressList(texts))
            }

            fn visit_unit<E>(self) -> Result<AddressList, E> {
                Ok(AddressList::default())
            }
        }
        deserializer.deserialize_any(Items)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const NETWORK: &str = "version: 2\nethernets:\n  zulu:\n    addresses: [10.0.0.9/24, 'fd00::9/64']\n  \
                           alpha:\n    addresses:\n    - 10.0.0.1\n    - 10.0.0.2/24: {lifetime: 0}\n";

    fn metadata(document: &str) -> Metadata {
        Metadata { content: STANDARD.encode(document), encoding: "base64".into() }
    }

    fn order(document: &str) -> Vec<String> {
        let found = configured_addresses(&metadata(document)).unwrap();
        found.iter().map(ToString::to_string).collect()
    }

    fn indented() -> String {
        format!("instance-id: a\nnetwork:\n  {}", NETWORK.trim_end().replace('\n', "\n  "))
    }

    #[test]
    fn interfaces_keep_the_order_of_the_document_in_each_encoding() {
        let expected = ["10.0.0.9", "fd00::9", "10.0.0.1"];
        assert_eq!(order(&indented()), expected, "inline");
        let encoded = STANDARD.encode(NETWORK);
        for name in ["base64", "b64"] {
            let document = format!("network: {encoded}\nnetwork.encoding: {name}\n");
            assert_eq!(order(&document), expected, "{name}");
        }
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(NETWORK.as_bytes()).unwrap();
        let packed = STANDARD.encode(gzip.finish().unwrap());
        for name in ["gzip+base64", "gz+b64"] {
            let document = format!("network: {packed}\nnetwork.encoding: {name}\n");
            assert_eq!(order(&document), expected, "{name}");
        }
    }

    #[test]
    fn metadata_without_a_network_gives_no_order() {
        for document in ["instance-id: a", "network: {version: 2}", "network: {ethernets: }", "{}"]
        {
            assert!(order(document).is_empty(), "{document}");
        }
        let unencoded = Metadata { content: NETWORK.into(), encoding: String::new() };
        assert!(configured_addresses(&unencoded).unwrap().is_empty());
    }

    #[test]
    fn malformed_metadata_is_an_error() {
        let bad = |content: &str| Metadata { content: content.into(), encoding: "base64".into() };
        for (metadata, what) in [
            (bad("%%%"), "the metadata is not valid base64"),
            (metadata("network: ["), "the metadata is not valid YAML"),
            (metadata("network: '%'\nnetwork.encoding: b64"), "the network is not valid base64"),
            (metadata("network: aGVsbG8=\nnetwork.encoding: gz+b64"), "cannot be decompressed"),
            (metadata("network: text"), "the network is not valid YAML"),
            (bad("/////w=="), "the metadata is not text"),
        ] {
            let error = configured_addresses(&metadata).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
