//! Any bytes as a file of safetensors.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| moex_model::fuzzing::safetensors(bytes));
