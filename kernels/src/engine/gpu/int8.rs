//! Experts with int8 activations: their panels and words are the CPU's; this file tells the shaders where each part
//! lies. Knows no wgpu.

use super::{
    layout::kind,
    shaders::Constants,
    structs::{Shape, TILE_PAIRS},
};
use crate::{
    ExpertShape, WeightFormat,
    quant::{Definition, Geometry, Scale, Terms, UNIT, block_words, columns_at, row_stride},
    simd::{PackedBlock, PackedExpertShape, PackedShape, ROWS},
};

/// The columns that a workgroup of `int8_rows` takes.
const ROWS_COLS: usize = 256;
/// Workgroups for one such range of columns: one for each pair that a tile may have.
const ROWS_PAIRS: usize = TILE_PAIRS;

/// A kernel of a step.
#[derive(Debug)]
pub(super) struct Int8Kernel {
    /// Its shader's.
    pub(super) entry_point: &'static str,
    /// The shader's override constants.
    pub(super) constants: Constants,
    /// In x.
    pub(super) workgroups: u32,
}

/// One of the steps that an expert is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Int8Step {
    /// x to h.
    GateUp,
    /// h to rows of activations.
    Rows,
    /// Rows of activations to y.
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

    /// The kernel for tiles of any number of pairs, for experts of `shape`; `is_software` says what the GPU is made of.
    pub(super) fn kernel(self, shape: &ExpertShape, is_software: bool) -> Int8Kernel {
        let (entry_point, constants) = match self {
            Self::GateUp => ("int8_product", product(shape.format.gate_up, Cut::PLAIN, is_software)),
            Self::Rows => ("int8_rows", rows(shape.format.down)),
            Self::Down => ("int8_product", product(shape.format.down, Cut::PLAIN, is_software)),
        };
        Int8Kernel { entry_point, constants, workgroups: self.workgroups(shape) }
    }

    /// The parameters that its shader reads for experts of `shape`, with rows of h `h_stride` words apart, and the products
    /// behind all of them.
    pub(super) fn shape(self, shape: &ExpertShape, h_stride: usize, products: u64) -> Shape {
        let packed = PackedExpertShape::from(*shape);
        let [gate_bias, up_bias, down_bias] = packed.biases_at();
        let (matrix, start, bias) = match self {
            Self::GateUp => (packed.gate_up_shape(), 0, gate_bias),
            Self::Rows | Self::Down => (packed.down_shape(), packed.gate_up_bytes(), down_bias),
        };
        let is_rows = self == Self::Rows;
        let of_matrix = matrix_shape(&matrix);
        Shape {
            kind: kind(shape),
            is_down: u32::from(self == Self::Down),
            items: if is_rows { matrix.cols as u32 } else { of_matrix.items },
            x_stride: if is_rows { matrix.cols } else { h_stride } as u32,
            result_stride: h_stride as u32,
            products: products as u32,
            weights: place(start),
            bias: place(bias),
            up_bias: place(up_bias),
            ..of_matrix
        }
    }
}

/// The parameters of one matrix, packed at the start of its slab: what [`Int8Step::Down`] reads of rows `x_stride` words apart.
pub(super) fn matrix_shape(matrix: &PackedShape) -> Shape {
    let PackedShape { format, rows, cols } = *matrix;
    // Of integers units, of floats columns.
    let items = match format.geometry() {
        None => cols.next_multiple_of(UNIT),
        Some(geometry) => cols.div_ceil(geometry.cols) * geometry.n_units(),
    };
    Shape {
        is_down: 1,
        out: rows as u32,
        items: items as u32,
        x_stride: row_stride(format.geometry(), cols) as u32,
        weight_stride: place(matrix.panel_bytes()),
        ..Shape::default()
    }
}

fn place(bytes: usize) -> u32 {
    (bytes / 4) as u32
}

/// How products are cut into workgroups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// Rows of a workgroup: a panel's, or two panels', as gate and up always take.
    pub(super) rows: usize,
    /// Threads of a workgroup, at least eight for each row.
    pub(super) threads: usize,
    /// Products of a row that a workgroup keeps at once: for all its threads with any format and four pairs.
    capacity: usize,
}

impl Cut {
    /// For every shape: two panels, and as many threads as every device has.
    pub(super) const PLAIN: Self = Self { rows: 2 * ROWS, threads: 256, capacity: 96 };

    /// For one matrix of `format`, `cols` wide: about two units for each of at most `max_threads`, which are read one after
    /// another, and no more memory than one row's products take, so that many workgroups run beside each other.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn of(format: WeightFormat, cols: usize, rows: usize, max_threads: usize) -> Self {
        let lanes = (cols.div_ceil(2 * UNIT)).next_power_of_two().clamp(8, max_threads / rows);
        let n_addends = format.definition().map_or(1, |definition| integer(definition)[0]);
        let n_products = cols.div_ceil(UNIT).max(4 * lanes) * n_addends;
        let capacity = n_products.min(MEMORY_BYTES / (size_of::<f32>() * rows));
        Self { rows, threads: rows * lanes, capacity }
    }
}

/// The override constants of products with matrices of `format`. On a GPU made of software threads that wait for each other take
/// several times as long as the products do, and so does a workgroup's memory, which it may set to zero once for each four threads:
/// there a row of integers has one thread, and a workgroup keeps what one unit gives for four pairs.
pub(super) fn product(format: WeightFormat, cut: Cut, is_software: bool) -> Constants {
    // Float formats have none of these.
    let numbers = format.definition().map_or([1; INTEGER.len()], integer);
    let addends = numbers[0];
    let (threads, capacity) = match format.definition() {
        _ if !is_software => (cut.threads, cut.capacity),
        None => (cut.threads, FLOAT_CAPACITY),
        Some(_) => (cut.rows, TILE_PAIRS * addends),
    };
    let given =
        [("FLOATS", float_bits(format)), ("CAPACITY", capacity), ("ROWS", cut.rows), ("THREADS", threads)];
    let constants = given.into_iter().chain(INTEGER.into_iter().zip(numbers));
    constants.map(|(name, value)| (name, value as f64)).collect()
}

/// Those of a product with one row of `items` units: with loops of known lengths, loads of all units are under way together.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn of_one_row(constants: Constants, items: u32) -> Constants {
    [constants, vec![("ONE_PAIR", 1.0), ("ITEMS", f64::from(items))]].concat()
}

/// Threads for a row, at most so many: about two of its items for each.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn lanes(items: usize, most: usize) -> usize {
    items.div_ceil(2).next_power_of_two().clamp(8, most)
}

/// Pairs of a wide tile: `PAIRS` in `shader/int8_matrix.wgsl`.
#[cfg(not(target_arch = "wasm32"))]
pub(super) const WIDE_TILE: u32 = 32;
/// Panels that a workgroup takes for a wide tile: `ROWS` there.
#[cfg(not(target_arch = "wasm32"))]
pub(super) const WIDE_PANELS: usize = 4;

/// The override constants of products with matrices of an integer `format` in steps of many rows.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn matrix(format: WeightFormat, is_in_order: bool) -> Constants {
    let numbers = format.definition().map_or([1; INTEGER.len()], integer);
    if let Some(geometry) = format.geometry() {
        // What lowers a block is staged once for it, with whole chunks of twice 32 columns.
        debug_assert!(Terms::of(geometry) != Terms::Pairs || geometry.cols.is_multiple_of(2 * UNIT));
        // Its sums of a unit are exact as floats.
        debug_assert!(geometry.unit() <= 256);
    }
    let constants = INTEGER.into_iter().zip(numbers).map(|(name, value)| (name, value as f64));
    let zero = format.geometry().and_then(|geometry| geometry.zero).unwrap_or(0);
    let others = [("FLOATS", 0.0), ("IN_ORDER", f64::from(u8::from(is_in_order))), ("ZERO", f64::from(zero))];
    constants.chain(others).collect()
}

/// The override constants of products of integers for one row: `rows` of one panel or two, `threads` for them, and room for
/// `capacity` products of each.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn row_product(format: WeightFormat, [rows, threads, capacity]: [usize; 3]) -> Constants {
    let mut constants = product(format, Cut { rows, threads, capacity }, false);
    constants.push(("IS_APART", f64::from(u8::from(is_apart(format)))));
    constants
}

/// Products of a row of so many units, and what lowers its blocks: as `shader/shared/row_sum.wgsl` keeps them.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn row_products(format: WeightFormat, items: usize) -> usize {
    match format.definition() {
        Some(definition) if is_apart(format) => items + items / definition.geometry().n_units(),
        Some(definition) => items * integer(definition)[0],
        None => items,
    }
}

/// Whether what lowers a row's blocks follows all its products.
#[cfg(not(target_arch = "wasm32"))]
fn is_apart(format: WeightFormat) -> bool {
    format.geometry().is_some_and(|geometry| {
        terms(geometry) > 0 && geometry.n_units() >= 8 && geometry.n_groups() == geometry.n_units()
    })
}

/// The override constants of a router whose weights are floats.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn router(format: WeightFormat) -> Constants {
    vec![("FLOAT_BITS", float_bits(format) as f64)]
}

/// The memory of a workgroup, as much as every device has.
#[cfg(not(target_arch = "wasm32"))]
const MEMORY_BYTES: usize = 16_384;
/// As many as the products of floats need.
const FLOAT_CAPACITY: usize = 32;

/// Names of the override constants of integer products.
const INTEGER: [&str; 21] = [
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
    "WEIGHT_WORDS",
    "CODE_WORDS",
    "IS_POWER",
    "DEPTH",
    "HAS_ZEROS",
    "SCALES",
    "MINS",
];

fn integer(definition: &Definition) -> [usize; INTEGER.len()] {
    let (geometry, layout) = (definition.geometry(), PackedBlock::of(definition));
    let halves = geometry.unit() / geometry.group;
    let terms = terms(geometry);
    let table = |i: usize| {
        let bytes = definition.table.map_or([0; 4], |table| std::array::from_fn(|byte| table[4 * i + byte]));
        u32::from_le_bytes(bytes) as usize
    };
    [
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
        layout.bytes() / 4,
        layout.code_bytes / 4,
        usize::from(matches!(definition.scale, Scale::E8m0(_))),
        layout.m.or(layout.zeros).unwrap_or(0) / 4,
        usize::from(layout.zeros.is_some()),
        layout.scales.unwrap_or(0) / 4,
        layout.mins.unwrap_or(0) / 4,
    ]
}

/// The override constants of what rounds rows for matrices of `format`.
pub(super) fn rows(format: WeightFormat) -> Constants {
    let mut constants = vec![("FLOATS", float_bits(format))];
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
