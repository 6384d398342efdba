//! A `tokenizer.json` and a text.
#![no_main]

libfuzzer_sys::fuzz_target!(
    // Panics that the tokenizer catches are no finding: without this hook, which ends the process, those that it does not
    // catch end it all the same.
    init: drop(std::panic::take_hook()),
    |bytes: &[u8]| moex_model::fuzzing::tokenizer(bytes)
);
