//! Any bytes as a `config.json`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| moex_model::fuzzing::config(bytes));
