//! The fuzzer's corpus, read by the decoder in every test run.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use vsphere::fuzzing::decode;

#[test]
fn the_decoder_reads_what_it_should_and_survives_the_rest() {
    let folder = testkit::repository().join("fuzz/corpus/soap_decoder");
    let mut understood = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the corpus is there") {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        understood.insert(name, decode(&std::fs::read(entry.path()).unwrap()));
    }
    for document in ["service-content", "objects", "changes", "versions", "entities", "task"] {
        assert!(understood[document] > 0, "{document} is not understood: {understood:?}");
    }
    for document in ["dtd", "web-page"] {
        assert_eq!(understood[document], 0, "{document} is taken for a reply");
    }
}
