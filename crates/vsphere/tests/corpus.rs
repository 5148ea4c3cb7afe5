//! Decodes the fuzzer's corpus in every test run.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use vsphere::fuzzing::{decode, decode_rest};

/// The number of successful decoders for each document of a corpus.
fn understood(corpus: &str, decode: fn(&[u8]) -> usize) -> BTreeMap<String, usize> {
    let folder = testkit::repository().join("fuzz/corpus").join(corpus);
    let mut understood = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the corpus is there") {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        understood.insert(name, decode(&std::fs::read(entry.path()).unwrap()));
    }
    understood
}

#[test]
fn the_rest_decoder_handles_the_whole_corpus() {
    let understood = understood("rest_decoder", decode_rest);
    for document in
        ["ids-rest", "ids-api", "category", "tag", "attached", "error-rest", "error-api"]
    {
        assert!(understood[document] > 0, "{document} is not understood: {understood:?}");
    }
    for document in ["web-page", "deep"] {
        assert_eq!(understood[document], 0, "{document} is taken for a reply");
    }
}

#[test]
fn the_decoder_reads_what_it_should_and_survives_the_rest() {
    let understood = understood("soap_decoder", decode);
    for document in ["service-content", "objects", "changes", "versions", "entities", "task"] {
        assert!(understood[document] > 0, "{document} is not understood: {understood:?}");
    }
    for document in ["dtd", "web-page"] {
        assert_eq!(understood[document], 0, "{document} is taken for a reply");
    }
}
