//! A chat template and a message.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| moex_model::fuzzing::template(bytes));
