//! RoPE: positions as rotations of pairs of columns, in the rotate-half form (column `i` pairs with `i + C/2`).

use super::{Llama3, Yarn};

/// How frequencies are changed for contexts longer than a model was first trained on (config `rope_scaling`).
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// All frequencies are divided by this.
    Linear(f64),
    /// Llama 3's.
    Llama3(Llama3),
    /// YaRN.
    Yarn(Yarn),
    /// Each frequency is divided by its own factor, (C/2).
    Factors(Vec<f32>),
}

/// The frequencies of a model's rotations.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians a position, (C/2).
    frequencies: Vec<f32>,
    /// The factor of sine and cosine: 1 except for YaRN.
    scale: f32,
}

/// Cosines and sines of some positions, computed once for each step and used by every layer and head.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RopeTable {
    /// C/2.
    half: usize,
    /// (T, C/2).
    cos: Vec<f32>,
    /// (T, C/2).
    sin: Vec<f32>,
}

impl Rope {
    /// For `width` C rotated columns: `theta^(-2i / C)` (config `rope_theta`), changed as `scaling` says.
    pub fn new(width: usize, theta: f32, scaling: Option<&RopeScaling>) -> Self {
        let inverse = (0..width / 2).map(|i| {
            let exponent = (2 * i) as f32 / width as f32;
            // Computed in f64 and rounded to the nearest f32: as close as torch's own pow.
            1.0 / (libm::pow(f64::from(theta), f64::from(exponent)) as f32)
        });
        let mut frequencies: Vec<f32> = inverse.collect();
        let mut scale = 1.0;
        match scaling {
            None => {}
            Some(RopeScaling::Linear(factor)) => frequencies.iter_mut().for_each(|f| *f /= *factor as f32),
            Some(RopeScaling::Factors(factors)) => {
                frequencies.iter_mut().zip(factors).for_each(|(f, factor)| *f /= factor);
            }
            Some(RopeScaling::Llama3(llama3)) => {
                frequencies.iter_mut().for_each(|f| *f = llama3.stretch(*f));
            }
            Some(RopeScaling::Yarn(yarn)) => {
                frequencies = yarn.stretch(&frequencies, width, theta);
                scale = yarn.attention_scale();
            }
        }
        Self { frequencies, scale }
    }

    /// The rotations of T rows at these positions.
    pub fn table(&self, positions: &[u32]) -> RopeTable {
        let mut table = RopeTable::default();
        self.fill(positions.iter().copied(), &mut table);
        table
    }

    /// Computes [`Self::table`] into an existing one, without allocating if it had as many rows before.
    pub fn fill(&self, positions: impl Iterator<Item = u32>, table: &mut RopeTable) {
        table.half = self.frequencies.len();
        table.cos.clear();
        table.sin.clear();
        for position in positions {
            let angles = self.frequencies.iter().map(|f| position as f32 * f);
            table.cos.extend(angles.clone().map(|a| libm::cosf(a) * self.scale));
            table.sin.extend(angles.map(|a| libm::sinf(a) * self.scale));
        }
    }
}

#[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
impl Rope {
    /// Pairs of columns that are rotated, C/2.
    pub(crate) fn half(&self) -> usize {
        self.frequencies.len()
    }
}

#[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
impl RopeTable {
    /// Cosine and sine of every pair of columns, row after row (T, C/2).
    pub(crate) fn pairs(&self) -> impl Iterator<Item = [f32; 2]> + '_ {
        self.cos.iter().zip(&self.sin).map(|(cos, sin)| [*cos, *sin])
    }
}

/// Rotates the heads of row `t` of the table, `row` (H, C).
///
/// # Panics
/// If there is no such row, or `row` is not whole heads of the table's width.
pub fn rope_row(row: &mut [f32], table: &RopeTable, t: usize) {
    let half = table.half;
    if half == 0 {
        return assert!(row.is_empty(), "heads without width");
    }
    assert!(row.len().is_multiple_of(2 * half), "heads of {}", 2 * half);
    let (cos, sin) = (&table.cos[t * half..][..half], &table.sin[t * half..][..half]);
    for head in row.chunks_exact_mut(2 * half) {
        let (first, second) = head.split_at_mut(half);
        for i in 0..half {
            let (a, b) = (first[i], second[i]);
            first[i] = a * cos[i] - b * sin[i];
            second[i] = b * cos[i] + a * sin[i];
        }
    }
}

/// Which columns are rotated as a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// `i` and `i + width / 2`.
    Halves,
    /// `2 i` and `2 i + 1`.
    Neighbours,
}

/// Which columns of a head are rotated, if not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePlace {
    /// Its first ones (partial rotary).
    First,
    /// Its last ones (latent attention).
    Last,
}

/// Rotates columns of each head in row `t`, `row` (H, `head_width`): as many columns as the table has.
///
/// # Panics
/// If there is no such row, or heads are narrower than the table.
pub fn rope_columns(
    row: &mut [f32],
    head_width: usize,
    (pairs, place): (RopePairs, RopePlace),
    table: &RopeTable,
    t: usize,
) {
    let half = table.half;
    if pairs == RopePairs::Halves && head_width == 2 * half {
        return rope_row(row, table, t);
    }
    let (cos, sin) = (&table.cos[t * half..][..half], &table.sin[t * half..][..half]);
    for head in row.chunks_exact_mut(head_width) {
        let columns = match place {
            RopePlace::First => &mut head[..2 * half],
            RopePlace::Last => &mut head[head_width - 2 * half..],
        };
        match pairs {
            RopePairs::Halves => rope_row(columns, table, t),
            RopePairs::Neighbours => {
                for (pair, (cos, sin)) in columns.as_chunks_mut::<2>().0.iter_mut().zip(cos.iter().zip(sin)) {
                    let [a, b] = *pair;
                    *pair = [a * cos - b * sin, b * cos + a * sin];
                }
            }
        }
    }
}

/// Rotates `x` (T, H, C), row `t` by the table's row `t`.
///
/// # Panics
/// If `x` is not T rows of `n_heads` heads of the table's width.
pub fn rope(x: &mut [f32], n_heads: usize, table: &RopeTable) {
    let half = table.half;
    if half == 0 || n_heads == 0 {
        return assert!(x.is_empty(), "heads without width");
    }
    let row_len = n_heads * 2 * half;
    assert_eq!(x.len() * half, table.cos.len() * row_len, "rows of {row_len}");
    for (t, row) in x.chunks_exact_mut(row_len).enumerate() {
        rope_row(row, table, t);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cpu::dot, noise::noise};

    #[test]
    fn position_zero_changes_nothing() {
        let mut x = noise(1, 2 * 8, 1.0);
        let before = x.clone();
        rope(&mut x, 2, &Rope::new(8, 1e6, None).table(&[0]));
        assert_eq!(x, before);
    }

    #[test]
    fn the_first_pair_turns_by_one_radian_a_position() {
        let mut x = vec![1.0, 0.0, 0.0, 0.0];
        rope(&mut x, 1, &Rope::new(4, 1e4, None).table(&[3]));
        assert!((x[0] - 3.0_f32.cos()).abs() < 1e-6 && (x[2] - 3.0_f32.sin()).abs() < 1e-6);
    }

    #[test]
    fn products_depend_on_the_distance_alone() {
        let table = |position| Rope::new(64, 1e6, None).table(&[position]);
        let product = |a, b| {
            let (mut q, mut k) = (noise(1, 64, 1.0), noise(2, 64, 1.0));
            rope(&mut q, 1, &table(a));
            rope(&mut k, 1, &table(b));
            dot(&q, &k)
        };
        assert!((product(7, 3) - product(104, 100)).abs() < 1e-3);
        assert!((product(7, 3) - product(7, 6)).abs() > 1e-2);
    }
}
