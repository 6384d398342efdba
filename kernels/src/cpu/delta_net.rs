//! The gated delta net: attention whose past is one matrix a head, whatever its length (Gated Delta Networks,
//! <https://arxiv.org/abs/2412.06464>, equation 10), as in Qwen3-Next.

use super::dot;

/// The widths of a delta net. Each key head serves Hv / Hk value heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNetShape {
    /// Hk, query and key heads.
    pub n_key_heads: usize,
    /// Hv, value heads; a multiple of Hk.
    pub n_value_heads: usize,
    /// Ck, columns of a query or key head.
    pub key_width: usize,
    /// Cv, columns of a value head.
    pub value_width: usize,
    /// Rows that the convolution sees, its own included.
    pub kernel: usize,
}

/// The weights of a delta net besides its projections.
#[derive(Clone, Copy, Debug)]
pub struct DeltaNetWeights<'a> {
    /// (conv columns, kernel): each column's own convolution, the oldest row first.
    pub conv: &'a [f32],
    /// (Hv): the decay is `exp(-exp(a_log) softplus(a + dt_bias))`.
    pub a_log: &'a [f32],
    /// (Hv).
    pub dt_bias: &'a [f32],
    /// (Cv): weights of the norm of a head's output.
    pub norm: &'a [f32],
    /// The norm adds this to the mean of squares.
    pub rms_eps: f32,
}

impl DeltaNetShape {
    /// Columns that are convolved: those of queries, keys and values.
    pub fn conv_width(&self) -> usize {
        2 * self.n_key_heads * self.key_width + self.out_width()
    }

    /// Columns of `in_proj_qkvz`: those of [`Self::conv_width`], and one gate for each column of the values.
    pub fn qkvz_width(&self) -> usize {
        self.conv_width() + self.out_width()
    }

    /// Columns of `in_proj_ba`: two for each value head.
    pub fn ba_width(&self) -> usize {
        2 * self.n_value_heads
    }

    /// Hv x Cv, the width of the output.
    pub fn out_width(&self) -> usize {
        self.n_value_heads * self.value_width
    }

    /// Floats of a sequence's state: the rows that the convolution looks back on, and a (Ck, Cv) matrix for each value
    /// head.
    pub fn state_len(&self) -> usize {
        (self.kernel - 1) * self.conv_width() + self.n_value_heads * self.key_width * self.value_width
    }
}

/// Computes one row of a sequence: `qkvz` and `ba` (projections of the row, the parts of a key head together) to `out`
/// (Hv, Cv). Updates `state` ([`DeltaNetShape::state_len`], zeros before the first row). Rows must come in order.
///
/// # Panics
/// If lengths do not fit the shape.
pub fn delta_net_row(
    shape: &DeltaNetShape,
    weights: &DeltaNetWeights<'_>,
    qkvz: &[f32],
    ba: &[f32],
    state: &mut [f32],
    out: &mut [f32],
) {
    let DeltaNetShape { n_key_heads, n_value_heads, key_width, value_width, kernel } = *shape;
    let shared = n_value_heads / n_key_heads; // value heads of a key head
    let (past, matrices) = state.split_at_mut((kernel - 1) * shape.conv_width());
    // Queries, keys and values of all heads, side by side, and the gates z (Hv, Cv).
    let mut mixed = Vec::with_capacity(shape.conv_width());
    let group_width = 2 * key_width + 2 * shared * value_width;
    let part = |from: usize, width: usize| {
        qkvz.chunks_exact(group_width).flat_map(move |group| &group[from..from + width])
    };
    mixed.extend(part(0, key_width));
    mixed.extend(part(key_width, key_width));
    mixed.extend(part(2 * key_width, shared * value_width));
    let z: Vec<f32> = part(2 * key_width + shared * value_width, shared * value_width).copied().collect();
    convolve(weights.conv, kernel, past, &mut mixed);

    let (keys_start, values_start) = (n_key_heads * key_width, 2 * n_key_heads * key_width);
    let heads = matrices.chunks_exact_mut(key_width * value_width).zip(out.chunks_exact_mut(value_width));
    for (head, (matrix, out)) in heads.enumerate() {
        let key_head = head / shared;
        let mut q = mixed[key_head * key_width..][..key_width].to_vec();
        let mut k = mixed[keys_start + key_head * key_width..][..key_width].to_vec();
        normalise(&mut q, 1.0 / (key_width as f32).sqrt());
        normalise(&mut k, 1.0);
        let v = &mixed[values_start + head * value_width..][..value_width];
        // A key head's b for each of its value heads, then its a.
        let ba = &ba[key_head * 2 * shared..][..2 * shared];
        let (b, a) = (ba[head % shared], ba[shared + head % shared]);
        let beta = 1.0 / (1.0 + libm::expf(-b));
        let decay = libm::expf(-libm::expf(weights.a_log[head]) * softplus(a + weights.dt_bias[head]));
        step(matrix, &q, &k, v, (beta, decay), out);
        gated_norm(out, &z[head * value_width..][..value_width], weights.norm, weights.rms_eps);
    }
}

/// Replaces each column of `row` by SiLU of its convolution with the rows before it, and appends the row to `past`.
fn convolve(conv: &[f32], kernel: usize, past: &mut [f32], row: &mut [f32]) {
    let width = row.len();
    for (column, value) in row.iter_mut().enumerate() {
        let taps = &conv[column * kernel..][..kernel];
        let mut sum = 0.0;
        for (age, tap) in taps[..kernel - 1].iter().enumerate() {
            sum += tap * past[age * width + column];
        }
        sum += taps[kernel - 1] * *value;
        // The oldest row is dropped.
        for age in 1..kernel - 1 {
            past[(age - 1) * width + column] = past[age * width + column];
        }
        if kernel > 1 {
            past[(kernel - 2) * width + column] = *value;
        }
        *value = sum / (1.0 + libm::expf(-sum));
    }
}

/// `x / sqrt(sum of squares + 1e-6)`, times `scale`.
fn normalise(x: &mut [f32], scale: f32) {
    let factor = scale / (dot(x, x) + 1e-6).sqrt();
    x.iter_mut().for_each(|x| *x *= factor);
}

/// The delta rule: the matrix (Ck, Cv) decays by `decay`, its output for `k` moves towards `v` by `beta`, and its
/// output for `q` is then the result (Cv).
fn step(matrix: &mut [f32], q: &[f32], k: &[f32], v: &[f32], (beta, decay): (f32, f32), out: &mut [f32]) {
    out.fill(0.0);
    for (row, k) in matrix.chunks_exact_mut(v.len()).zip(k) {
        for (cell, said) in row.iter_mut().zip(&mut *out) {
            *cell *= decay;
            *said += *cell * k;
        }
    }
    let delta: Vec<f32> = v.iter().zip(&*out).map(|(v, said)| (v - said) * beta).collect();
    out.fill(0.0);
    for (row, (k, q)) in matrix.chunks_exact_mut(v.len()).zip(k.iter().zip(q)) {
        for ((cell, delta), out) in row.iter_mut().zip(&delta).zip(&mut *out) {
            *cell += k * delta;
            *out += *cell * q;
        }
    }
}

/// RMSNorm, times SiLU of the gates.
fn gated_norm(x: &mut [f32], gates: &[f32], weights: &[f32], eps: f32) {
    super::rms_norm_in_place(x, weights, eps);
    for (x, gate) in x.iter_mut().zip(gates) {
        *x *= gate / (1.0 + libm::expf(-gate));
    }
}

/// `ln(1 + exp(x))`; where x is the same in f32, x itself.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { libm::log1pf(libm::expf(x)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: DeltaNetShape =
        DeltaNetShape { n_key_heads: 1, n_value_heads: 1, key_width: 1, value_width: 1, kernel: 2 };

    #[test]
    fn two_rows_by_hand() {
        let weights = DeltaNetWeights {
            conv: &[0.0, 1.0, 0.0, 1.0, 0.5, 1.0],
            a_log: &[0.0],
            dt_bias: &[0.0],
            norm: &[1.0],
            rms_eps: 0.0,
        };
        let silu = |x: f32| x / (1.0 + (-x).exp());
        let mut state = vec![0.0; SHAPE.state_len()];
        let mut out = [f32::NAN];
        // q, k, v, z; b, a.
        delta_net_row(&SHAPE, &weights, &[1.0, 1.0, 2.0, 3.0], &[0.0, 0.0], &mut state, &mut out);
        // Normalised, q and k are 1; beta is a half; the norm leaves the output's sign.
        assert!((out[0] - silu(3.0)).abs() < 1e-5);
        let first = 0.5 * silu(2.0);
        assert!((state[3] - first).abs() < 1e-5, "{state:?}");
        assert_eq!(state[..3], [1.0, 1.0, 2.0], "the convolution's past");
        delta_net_row(&SHAPE, &weights, &[1.0, 1.0, 4.0, 3.0], &[0.0, 0.0], &mut state, &mut out);
        // The decay is exp(-ln 2), a half; v is silu(0.5 * 2 + 4).
        let kept = first / 2.0;
        assert!((state[3] - (kept + 0.5 * (silu(5.0) - kept))).abs() < 1e-5, "{state:?}");
    }

    #[test]
    fn widths_of_qwen3_next() {
        let shape =
            DeltaNetShape { n_key_heads: 16, n_value_heads: 32, key_width: 128, value_width: 128, kernel: 4 };
        assert_eq!((shape.conv_width(), shape.qkvz_width(), shape.ba_width()), (8192, 12_288, 64));
        assert_eq!(shape.state_len(), 3 * 8192 + 32 * 128 * 128);
    }
}
