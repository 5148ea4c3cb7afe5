//! Replies from a vCenter that means us harm, whole and in pieces.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    vsphere::fuzzing::decode(bytes);
});
