//! A `tokenizer.json` and a text.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| moex_model::fuzzing::tokenizer(bytes));
