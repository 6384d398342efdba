//! A weight format as a type: what its file implements, and what all formats derive from that.

use super::{definition::Definition, parts::Parts};

/// Any format.
pub(crate) trait Format {
    const ENCODING: Encoding;

    /// Its type number in a GGUF.
    const GGUF: Option<u32>;

    /// An upper bound of the loss of uniform noise, as NMSE, from a magnitude of 0.1 on.
    #[cfg(test)]
    const NOISE_LOSS: f64;

    /// The bytes of rows of `cols` values, rounded to nearest.
    fn quantize(rows: usize, cols: usize, read_row: &mut RowReader<'_>) -> Vec<u8>;
}

/// Writes the values of the row with this number to this slice.
pub(crate) type RowReader<'a> = dyn FnMut(usize, &mut [f32]) + 'a;

/// How the bytes of a matrix become values.
#[derive(Clone, Copy)]
pub(crate) enum Encoding {
    /// One value after another, of so many bytes.
    Float { bytes: usize, decode: fn(&[u8], &mut [f32]) },
    /// Rows of whole blocks: their definition, and how a row's blocks and parameters decode.
    Integer { definition: &'static Definition, decode_row: fn(&[u8], &[u8], &mut [f32]) },
}

/// An integer format.
pub(crate) trait Integer {
    /// Where its bits lie, and what they mean.
    const DEFINITION: Definition;

    /// An upper bound of the loss of uniform noise, as NMSE. Steps of `2 / n` for `n` levels err by a twelfth of their
    /// square against a power of a third: `1 / n^2`, and a fifth more since scales are rounded too.
    #[cfg(test)]
    const NOISE_LOSS: f64;

    /// Finds the parts nearest to the values of a block.
    fn fit(values: &[f32], parts: &mut Parts);
}

impl<I: Integer> Format for I {
    const ENCODING: Encoding =
        Encoding::Integer { definition: &Self::DEFINITION, decode_row: decode_row::<Self> };
    const GGUF: Option<u32> = Self::DEFINITION.gguf;
    #[cfg(test)]
    const NOISE_LOSS: f64 = <Self as Integer>::NOISE_LOSS;

    /// The last block of a row is filled up with zeros.
    fn quantize(rows: usize, cols: usize, read_row: &mut RowReader<'_>) -> Vec<u8> {
        let definition = &Self::DEFINITION;
        let blocks_of_a_row = cols.div_ceil(definition.cols);
        let n_blocks = rows * blocks_of_a_row;
        let mut bytes = vec![0; n_blocks * (definition.bytes + definition.plane_bytes)];
        let (blocks, parameters) = bytes.split_at_mut(n_blocks * definition.bytes);
        let mut blocks = blocks.chunks_exact_mut(definition.bytes);
        let mut parameters = parameters.chunks_exact_mut(definition.plane_bytes.max(1));
        let mut parts = Parts::default();
        let mut row = vec![0.0; blocks_of_a_row * definition.cols];
        for index in 0..rows {
            read_row(index, &mut row[..cols]);
            for (values, block) in row.chunks_exact(definition.cols).zip(&mut blocks) {
                Self::fit(values, &mut parts);
                definition.write(&parts, block, parameters.next());
            }
        }
        bytes
    }
}

/// One row: its whole blocks and their parameters, both as stored, to the first `out.len()` columns.
fn decode_row<I: Integer>(blocks: &[u8], parameters: &[u8], out: &mut [f32]) {
    decode_blocks(const { &I::DEFINITION }, blocks, parameters, out);
}

// One function for all formats where code size counts.
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
fn decode_blocks(definition: &Definition, blocks: &[u8], parameters: &[u8], out: &mut [f32]) {
    let mut parts = Parts::default();
    for (i, out) in out.chunks_mut(definition.cols).enumerate() {
        let (block, parameters) = definition.block(blocks, parameters, i);
        definition.read(block, parameters, &mut parts);
        definition.values(&parts, out);
    }
}
