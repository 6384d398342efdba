//! Any bytes as operations on both ends of a connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| moex_protocol::fuzzing::sessions(bytes));
