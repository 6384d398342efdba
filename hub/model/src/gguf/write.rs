//! Writes a header; the tensors' bytes follow it, each padded to the alignment.

use moex_kernels::WeightFormat;

use super::{DEFAULT_ALIGNMENT, MAGIC};

/// The version that is written.
const VERSION: u32 = 3;

/// A file to come: its keys and tensors in order.
#[derive(Clone, Debug, Default)]
pub struct Header {
    keys: Vec<(String, MetaValue)>,
    tensors: Vec<PlannedTensor>,
}

/// A value to be written.
#[derive(Clone, Debug, PartialEq)]
pub enum MetaValue {
    /// A u32.
    U32(u32),
    /// A u16.
    U16(u16),
    /// An f32.
    F32(f32),
    /// A bool.
    Bool(bool),
    /// A string.
    Text(String),
    /// An array of strings.
    Texts(Vec<String>),
    /// An array of i32.
    I32s(Vec<i32>),
    /// An array of f32.
    F32s(Vec<f32>),
}

#[derive(Clone, Debug)]
struct PlannedTensor {
    name: String,
    format: WeightFormat,
    shape: Vec<usize>,
}

impl PlannedTensor {
    fn n_bytes(&self) -> usize {
        let cols = self.shape.last().copied().unwrap_or(1);
        let rows = self.shape.iter().rev().skip(1).product();
        self.format.matrix_bytes(rows, cols)
    }
}

impl Header {
    /// Adds a key.
    pub fn key(&mut self, key: impl Into<String>, value: MetaValue) -> &mut Self {
        self.keys.push((key.into(), value));
        self
    }

    /// Adds a tensor of `shape`, rows before columns; its bytes follow in this order.
    ///
    /// # Panics
    /// If GGUF has no such format, or rows are not whole blocks of it.
    pub fn tensor(&mut self, name: impl Into<String>, format: WeightFormat, shape: &[usize]) -> &mut Self {
        assert!(format.gguf_type().is_some(), "a format of GGUF");
        assert!(
            shape.last().is_some_and(|cols| cols.is_multiple_of(format.block_cols())),
            "rows of whole blocks"
        );
        self.tensors.push(PlannedTensor { name: name.into(), format, shape: shape.to_vec() });
        self
    }

    /// The bytes before the first tensor's, padding included.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            put_text(&mut out, key);
            value.encode(&mut out);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            out.extend(tensor.shape.iter().rev().flat_map(|n| (*n as u64).to_le_bytes()));
            out.extend(tensor.format.gguf_type().unwrap_or_default().to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.n_bytes() + padding(tensor.n_bytes());
        }
        out.resize(out.len() + padding(out.len()), 0);
        out
    }
}

/// The padding after `n_bytes` bytes of a tensor.
pub fn padding(n_bytes: usize) -> usize {
    n_bytes.next_multiple_of(DEFAULT_ALIGNMENT as usize) - n_bytes
}

impl MetaValue {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::U16(value) => {
                put_kind(out, 2);
                out.extend(value.to_le_bytes());
            }
            Self::U32(value) => {
                put_kind(out, 4);
                out.extend(value.to_le_bytes());
            }
            Self::F32(value) => {
                put_kind(out, 6);
                out.extend(value.to_le_bytes());
            }
            Self::Bool(value) => {
                put_kind(out, 7);
                out.push(u8::from(*value));
            }
            Self::Text(text) => {
                put_kind(out, 8);
                put_text(out, text);
            }
            Self::Texts(texts) => {
                put_kind(out, 9);
                put_kind(out, 8);
                out.extend((texts.len() as u64).to_le_bytes());
                texts.iter().for_each(|text| put_text(out, text));
            }
            Self::I32s(values) => {
                put_kind(out, 9);
                put_kind(out, 5);
                out.extend((values.len() as u64).to_le_bytes());
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Self::F32s(values) => {
                put_kind(out, 9);
                put_kind(out, 6);
                out.extend((values.len() as u64).to_le_bytes());
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
        }
    }
}

/// A value type's number.
fn put_kind(out: &mut Vec<u8>, kind: u32) {
    out.extend(kind.to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
