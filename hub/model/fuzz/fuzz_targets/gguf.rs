//! Any bytes as a GGUF file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| moex_model::fuzzing::gguf(bytes));
