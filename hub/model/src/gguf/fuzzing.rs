//! The body of the fuzz target in `hub/model/fuzz`, here so that ordinary tests run it too. It panics on a broken rule and is no
//! part of the crate's interface.

use super::{Gguf, Vocabulary};
use crate::{families::FromTensors, llama_cpp};

/// Any bytes as a file: parsing ends without a panic, every tensor it names lies in the file, and whatever reads the keys
/// ends without a panic too.
pub fn parse(bytes: &[u8]) {
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
        drop(crate::text::Tokenizer::from_vocabulary(&vocabulary));
    }
}
