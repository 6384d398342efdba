//! The float formats: plain little-endian arrays.

use half::{bf16, f16, slice::HalfFloatSliceExt};

use super::format::{Encoding, Format, RowReader};

/// Half a step of the last of eight bits, relative to the value.
#[cfg(test)]
const LOSS: f64 = 1.2 / (256.0 * 256.0);

pub(crate) struct F32;

impl Format for F32 {
    const ENCODING: Encoding = Encoding::Float { bytes: 4, decode: decode_f32 };
    const GGUF: Option<u32> = Some(0);
    #[cfg(test)]
    const NOISE_LOSS: f64 = LOSS;

    fn quantize(rows: usize, cols: usize, read_row: &mut RowReader<'_>) -> Vec<u8> {
        encode(rows, cols, read_row, f32::to_le_bytes)
    }
}

pub(crate) struct F16;

impl Format for F16 {
    const ENCODING: Encoding = Encoding::Float { bytes: 2, decode: decode_f16 };
    const GGUF: Option<u32> = Some(1);
    #[cfg(test)]
    const NOISE_LOSS: f64 = LOSS;

    fn quantize(rows: usize, cols: usize, read_row: &mut RowReader<'_>) -> Vec<u8> {
        encode(rows, cols, read_row, |value| f16::from_f32(value).to_le_bytes())
    }
}

pub(crate) struct Bf16;

impl Format for Bf16 {
    const ENCODING: Encoding = Encoding::Float { bytes: 2, decode: decode_bf16 };
    const GGUF: Option<u32> = Some(30);
    #[cfg(test)]
    const NOISE_LOSS: f64 = LOSS;

    fn quantize(rows: usize, cols: usize, read_row: &mut RowReader<'_>) -> Vec<u8> {
        encode(rows, cols, read_row, |value| bf16::from_f32(value).to_le_bytes())
    }
}

/// Each value's bytes, one after another.
fn encode<const BYTES: usize>(
    rows: usize,
    cols: usize,
    read_row: &mut RowReader<'_>,
    value: impl Fn(f32) -> [u8; BYTES],
) -> Vec<u8> {
    let mut bytes = vec![0; rows * cols * BYTES];
    let mut row = vec![0.0; cols];
    for (index, bytes) in bytes.chunks_exact_mut((cols * BYTES).max(1)).enumerate() {
        read_row(index, &mut row);
        for (bytes, x) in bytes.as_chunks_mut::<BYTES>().0.iter_mut().zip(&row) {
            *bytes = value(*x);
        }
    }
    bytes
}

/// The bytes as f32 without a copy, if this machine can read them so: aligned f32 on a little-endian machine.
pub(super) fn borrow_f32(bytes: &[u8]) -> Option<&[f32]> {
    if cfg!(target_endian = "little") { bytemuck::try_cast_slice(bytes).ok() } else { None }
}

fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_le_bytes(*bytes);
    }
}

fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    match bytemuck::try_cast_slice::<u8, f16>(bytes) {
        // `half` finds the machine's own conversion, if it has one.
        Ok(halves) if cfg!(target_endian = "little") => halves.convert_to_f32_slice(out),
        _ => {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *value = f16::from_le_bytes(*bytes).to_f32();
            }
        }
    }
}

fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        // A bf16 is the upper half of an f32; written out, it becomes vector code.
        *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}
