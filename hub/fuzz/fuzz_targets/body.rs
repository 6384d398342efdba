//! A route and a body to it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| moex_hub::api::fuzzing::body(bytes));
