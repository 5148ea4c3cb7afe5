//! REST replies from a vCenter that means us harm.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    vsphere::fuzzing::decode_rest(bytes);
});
