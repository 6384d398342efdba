//! The bodies of the fuzz targets in `hub/model/fuzz`, here so that ordinary tests run them too. They panic on a broken rule
//! and are no part of the crate's interface.

use std::{fs, path::Path};

use bytes::Bytes;
use serde_json::{Map, json};

use crate::{
    checkpoint::folder,
    families::{Family, FromTensors},
    gguf::{Gguf, Vocabulary},
    llama_cpp,
    text::{ChatInput, ChatTemplate, MAX_TEXT_BYTES, Special, Tokenizer},
};

/// The body of a fuzz target.
pub type Target = fn(&[u8]);

/// Each target with each of its seeds: the files in the folder of its name below `folder`.
///
/// # Panics
/// If they cannot be read.
pub fn seeds(folder: &Path, targets: &[(&str, Target)]) -> Vec<(Target, Vec<u8>)> {
    let of = |(name, target): &(&str, Target)| {
        let files = fs::read_dir(folder.join(name)).expect("a folder of seeds");
        let read = |file: std::io::Result<fs::DirEntry>| fs::read(file?.path());
        let target = *target;
        files.map(move |file| (target, read(file).expect("a seed"))).collect::<Vec<_>>()
    };
    targets.iter().flat_map(of).collect()
}

/// Runs a target on one of its seeds, with some bytes changed, each at a place in it.
pub fn run_changed(mut seeds: Vec<(Target, Vec<u8>)>, seed: usize, changes: &[(usize, u8)]) {
    let (target, mut bytes) = seeds.swap_remove(seed % seeds.len());
    for (at, byte) in changes {
        let at = at % bytes.len();
        bytes[at] = *byte;
    }
    target(&bytes);
}

/// Any bytes as a GGUF file: parsing ends without a panic, every tensor it names lies in the file, and whatever reads the
/// keys ends without a panic too.
pub fn gguf(bytes: &[u8]) {
    let Ok(gguf) = Gguf::parse(bytes) else { return };
    for tensor in gguf.tensors() {
        let stored = bytes.get(tensor.bytes.clone()).expect("a tensor lies in its file");
        let (cols, rows) = tensor.shape.split_last().expect("a tensor has a dimension");
        assert_eq!(stored.len(), tensor.format.matrix_bytes(rows.iter().product(), *cols));
    }
    let vocab = gguf.tensors().first().map_or(1, |tensor| tensor.shape[0]);
    // Which error it is does not matter here.
    let tensors = FromTensors { vocab, tied_head: true, ..FromTensors::default() };
    drop(llama_cpp::spec(&gguf, &tensors));
    if let Ok(Some(vocabulary)) = Vocabulary::read(&gguf) {
        assert_eq!(vocabulary.tokens.len(), vocabulary.kinds.len());
        drop(Tokenizer::from_vocabulary(&vocabulary));
    }
}

/// Any bytes as a `config.json`.
pub fn config(bytes: &[u8]) {
    drop(Family::read(bytes));
}

/// Any bytes as a file of safetensors: every tensor that is found lies in the file.
pub fn safetensors(bytes: &[u8]) {
    let file = Bytes::copy_from_slice(bytes);
    for tensor in folder::tensors_of(&file).unwrap_or_default() {
        assert!(tensor.bytes.len() <= bytes.len());
        drop(tensor.slice(0));
    }
}

/// A `tokenizer.json` up to the first zero, and a text behind it: each id is a token's, and has bytes.
pub fn tokenizer(bytes: &[u8]) {
    let (json, text) = halves(bytes);
    let Ok(tokenizer) = Tokenizer::from_json(json) else { return };
    let Ok(ids) = tokenizer.encode(&String::from_utf8_lossy(text)) else { return };
    assert!(ids.iter().all(|id| (*id as usize) < tokenizer.n_ids()));
    drop(tokenizer.decode(&ids, Special::Keep));
}

/// A chat template up to the first zero, and a message behind it: its text is bounded.
pub fn template(bytes: &[u8]) {
    let (source, text) = halves(bytes);
    let source = String::from_utf8_lossy(source).into_owned();
    let Ok(template) = ChatTemplate::new(source, vec![("eos_token", "<end>".to_owned())]) else { return };
    let messages = [json!({ "role": "user", "content": String::from_utf8_lossy(text) })];
    let variables = Map::new();
    let input = ChatInput {
        messages: &messages,
        tools: None,
        generation_prompt: true,
        variables: &variables,
        unix_seconds: 0,
    };
    if let Ok(text) = template.render(&input) {
        assert!(text.len() <= MAX_TEXT_BYTES);
    }
}

/// What lies before the first zero, and what behind it.
fn halves(bytes: &[u8]) -> (&[u8], &[u8]) {
    let mut halves = bytes.splitn(2, |byte| *byte == 0);
    (halves.next().unwrap_or_default(), halves.next().unwrap_or_default())
}
