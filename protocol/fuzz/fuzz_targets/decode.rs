//! Any bytes as a message.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| moex_protocol::fuzzing::decode(bytes));
