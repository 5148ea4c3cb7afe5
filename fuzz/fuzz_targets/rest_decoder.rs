//! REST responses of a malicious vCenter.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    vsphere::fuzzing::decode_rest(bytes);
});
