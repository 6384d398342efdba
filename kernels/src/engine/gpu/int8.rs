//! Experts with int8 activations: the same panels and the same words as the CPU's, and where the shaders find what in them.
//! Knows no wgpu.

use super::layout::Layout;
use crate::{
    ExpertKind, ExpertShape, WeightFormat,
    quant::{Definition, Geometry, Scale, Terms, UNIT, block_words, columns_at, row_stride},
    simd::{PackedBlock, PackedExpertShape, PackedShape, ROWS},
};

/// Override constants by name.
pub(super) type Constants = Vec<(&'static str, f64)>;

/// The columns that a workgroup of `int8_rows` takes.
const ROWS_COLS: usize = 256;
/// Its workgroups for these columns of a tile: one for each pair that it may have.
const ROWS_PAIRS: usize = super::structs::TILE_PAIRS;

/// One of the steps that an expert is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Int8Step {
    /// x to h.
    GateUp,
    /// h to rows of activations.
    Rows,
    /// These to y.
    Down,
}

impl Int8Step {
    /// In order.
    pub(super) const ALL: [Self; 3] = [Self::GateUp, Self::Rows, Self::Down];

    /// Its workgroups in x for experts of `shape`.
    pub(super) fn workgroups(self, shape: &ExpertShape) -> u32 {
        let panels = |rows: usize| rows.div_ceil(ROWS);
        let n = match self {
            Self::GateUp => panels(shape.inner),
            Self::Rows => shape.inner.div_ceil(ROWS_COLS) * ROWS_PAIRS,
            Self::Down => panels(shape.hidden).div_ceil(2),
        };
        n as u32
    }

    /// Its override constants for experts of `shape`.
    pub(super) fn constants(self, shape: &ExpertShape, layout: &Layout) -> Constants {
        match self {
            Self::GateUp => product(shape, false, layout),
            Self::Rows => rows(shape, layout.h_stride()),
            Self::Down => product(shape, true, layout),
        }
    }
}

/// Words from one row of activations for `format` to the next.
pub(super) fn stride(format: WeightFormat, cols: usize) -> usize {
    row_stride(format.geometry(), cols)
}

fn product(shape: &ExpertShape, is_down: bool, layout: &Layout) -> Constants {
    let packed = PackedExpertShape::from(*shape);
    let (matrix, start) = match is_down {
        false => (packed.gate_up_shape(), 0),
        true => (packed.down_shape(), packed.gate_up_bytes()),
    };
    let PackedShape { format, rows, cols } = matrix;
    let [gate_bias, up_bias, down_bias] = packed.biases_at();
    let mut constants = vec![
        ("DOWN", usize::from(is_down)),
        ("KIND", usize::from(shape.format.kind == ExpertKind::ClampedSwiglu)),
        ("OUT", rows),
        ("START", start / 4),
        ("PANEL", matrix.panel_bytes() / 4),
        ("X_STRIDE", layout.h_stride()),
        ("PRODUCTS", layout.products_start() as usize),
        ("BIAS", if is_down { down_bias } else { gate_bias } / 4),
        ("UP_BIAS", up_bias / 4),
        ("FLOATS", float_bits(format)),
    ];
    let numbers = match format.definition() {
        // Columns are all there is; the rest is not looked at.
        None => std::array::from_fn(|i| if i == 0 { cols.next_multiple_of(UNIT) } else { 1 }),
        Some(definition) => integer(definition, cols),
    };
    constants.extend(INTEGER.into_iter().zip(numbers));
    constants.into_iter().map(|(name, value)| (name, value as f64)).collect()
}

/// What products with integers have; the first those with floats too.
const INTEGER: [&str; 23] = [
    "ITEMS",
    "ADDENDS",
    "UNITS",
    "CODE_UNITS",
    "BLOCK_WORDS",
    "COLUMNS_AT",
    "TERMS",
    "HALVES",
    "BITS",
    "IS_WIDE",
    "HAS_TABLE",
    "TABLE_0",
    "TABLE_1",
    "TABLE_2",
    "TABLE_3",
    "CODES",
    "PARAMETERS",
    "PARAMETER_WORDS",
    "IS_POWER",
    "DEPTH",
    "HAS_ZEROS",
    "SCALES",
    "MINS",
];

/// Of rows of so many columns.
fn integer(definition: &Definition, cols: usize) -> [usize; INTEGER.len()] {
    let (geometry, layout) = (definition.geometry(), PackedBlock::of(definition));
    let n_blocks = cols.div_ceil(geometry.cols);
    let halves = geometry.unit() / geometry.group;
    let terms = terms(geometry);
    let table = |i: usize| {
        let bytes = definition.table.map_or([0; 4], |table| std::array::from_fn(|byte| table[4 * i + byte]));
        u32::from_le_bytes(bytes) as usize
    };
    [
        n_blocks * geometry.n_units(),
        halves + usize::from(terms > 0),
        geometry.n_units(),
        geometry.unit() / UNIT,
        block_words(geometry),
        columns_at(geometry),
        terms,
        halves,
        definition.code_bits(),
        usize::from(definition.top() > 127),
        usize::from(definition.table.is_some()),
        table(0),
        table(1),
        table(2),
        table(3),
        layout.code_bytes / 4,
        n_blocks * layout.code_bytes / 4,
        layout.parameter_bytes / 4,
        usize::from(matches!(definition.scale, Scale::E8m0(_))),
        layout.m.or(layout.zeros).unwrap_or(0) / 4,
        usize::from(layout.zeros.is_some()),
        layout.scales.unwrap_or(0) / 4,
        layout.mins.unwrap_or(0) / 4,
    ]
}

fn rows(shape: &ExpertShape, h_stride: usize) -> Constants {
    let format = shape.format.down;
    let mut constants = vec![("COLS", shape.inner), ("STRIDE", h_stride), ("FLOATS", float_bits(format))];
    let n = match format.geometry() {
        None => [UNIT, 1, 0, UNIT, UNIT, 0, 0],
        Some(geometry) => [
            geometry.cols,
            block_words(geometry),
            columns_at(geometry),
            geometry.unit(),
            geometry.group,
            geometry.zero.map_or(0, usize::from),
            terms(geometry),
        ],
    };
    let names = ["BLOCK_COLS", "BLOCK_WORDS", "COLUMNS_AT", "UNIT", "GROUP", "ZERO", "TERMS"];
    constants.extend(names.into_iter().zip(n));
    constants.into_iter().map(|(name, value)| (name, value as f64)).collect()
}

/// The shaders' number of a format's [`Terms`].
fn terms(geometry: Geometry) -> usize {
    match Terms::of(geometry) {
        Terms::Biases { .. } => 0,
        Terms::Sum => 1,
        Terms::Pairs => 2,
    }
}

/// The shaders' number of a float format: its bits, one more for bf16; 0 for integers.
fn float_bits(format: WeightFormat) -> usize {
    match format {
        WeightFormat::F32 => 32,
        WeightFormat::F16 => 16,
        WeightFormat::Bf16 => 17,
        _ => 0,
    }
}
