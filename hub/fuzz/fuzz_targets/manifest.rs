//! Any bytes as a manifest of packed experts.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| moex_hub::shards::fuzzing::manifest(bytes));
