//! SOAP responses of a malicious vCenter, complete and in chunks.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    vsphere::fuzzing::decode(bytes);
});
