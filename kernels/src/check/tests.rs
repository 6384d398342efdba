//! Honest answers pass, lies do not.

use std::sync::Arc;

use half::f16;

use super::{
    AnsweredRow, CheckFailure, CheckScratch, KernelRows, N_ANSWER, N_PRODUCTS, Projection, Secrets,
    f16_rounding, norm, products_nmse,
};
use crate::{
    ExpertFormat, ExpertKind, ExpertShape, WeightFormat,
    engine::{ActivationFormat, Batch, Call, CpuEngine, EnginePlan, Pair},
    noise::noise,
    simd::Simd,
};

/// Bits that look random (splitmix64).
fn random(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z >> 32) as u32
    }
}

/// An expert of random weights, its rows in the precision that they are checked in, and an honest worker's answer for
/// each.
struct Case {
    projection: Projection,
    activations: ActivationFormat,
    rows: KernelRows,
    gates: Vec<f32>,
    /// (R, 2F).
    products: Vec<f32>,
    /// (R, D), through an f16 wire.
    answers: Vec<f32>,
}

impl Case {
    fn new(shape: ExpertShape, activations: ActivationFormat, n_rows: usize, seed: u64) -> Self {
        let (hidden, inner) = (shape.hidden, shape.inner);
        let block = shape.noise(seed, 0.05);
        let plan =
            EnginePlan { shapes: shape.into(), activations, n_slots: 1, max_rows: 4096, max_pairs: 4096 };
        let engine = CpuEngine::new(plan).unwrap();
        engine.load(0, shape.format, &block).unwrap();
        // A few columns are far larger than the rest, as in real activations; some rows are small, some gates are
        // nearly zero.
        let mut rows = noise(seed ^ 7, n_rows * hidden, 1.0);
        rows.iter_mut().step_by(311).for_each(|x| *x *= 12.0);
        for (t, row) in rows.chunks_mut(hidden).enumerate() {
            let scale = [1.0, 0.01, 30.0, 1e-4][t % 4];
            row.iter_mut().for_each(|x| *x = f16::from_f32(*x * scale).to_f32());
        }
        let gates: Vec<f32> = (0..n_rows).map(|t| [0.3, 0.7, 1.0, 1e-3, 0.0][t % 5]).collect();
        let pairs = (0..).zip(&gates).map(|(row, gate)| Pair { row, gate: *gate }).collect();
        let batch = Batch { rows, calls: vec![Call { slot: 0, pairs }] };
        let computed = engine.compute_with_products(&batch).unwrap();
        assert_eq!(computed.rows, engine.compute(&batch).unwrap());
        let simd = Simd::detect();
        let secrets = Arc::new(Secrets::new(hidden, inner, random(seed)));
        let projection = Projection::new(simd, &shape.view(&block).unwrap(), secrets);
        let mut met = KernelRows::default();
        met.fill(simd, activations, shape.format.gate_up, hidden, &batch.rows);
        assert_eq!(met.n_rows(), n_rows);
        let answers = computed.rows.iter().map(|y| f16::from_f32(*y).to_f32()).collect();
        let products = computed.products.unwrap();
        Self { projection, activations, rows: met, gates, products, answers }
    }

    fn check(&self, row: usize, products: &[f32], answer: &[f32]) -> Result<(), CheckFailure> {
        let wire_rounding = f16_rounding(Simd::detect(), answer);
        let answered = AnsweredRow { row, gate: self.gates[row], products, answer, wire_rounding };
        let mut scratch = CheckScratch::default();
        self.projection.check(Simd::detect(), self.activations, &self.rows, &answered, &mut scratch)
    }

    fn products(&self, row: usize) -> &[f32] {
        let n = self.products.len() / self.gates.len();
        &self.products[row * n..][..n]
    }

    fn answer(&self, row: usize) -> &[f32] {
        let n = self.answers.len() / self.gates.len();
        &self.answers[row * n..][..n]
    }
}

fn shapes() -> Vec<ExpertShape> {
    let mut shapes = Vec::new();
    for format in WeightFormat::ALL {
        for (hidden, inner) in [(256, 128), (300, 100), (512, 256)] {
            shapes.push(ExpertShape::uniform(hidden, inner, format));
        }
    }
    let mixed = ExpertFormat::new(WeightFormat::Q4K, WeightFormat::Q6K);
    shapes.push(ExpertShape { hidden: 512, inner: 256, format: mixed });
    let clamped = ExpertFormat::uniform(WeightFormat::Mxfp4).of_kind(ExpertKind::ClampedSwiglu);
    shapes.push(ExpertShape { hidden: 300, inner: 100, format: clamped });
    shapes
}

/// Rows to check for each shape and kind of activations; `MOEX_CHECK_ROWS` sets another number.
fn n_rows() -> usize {
    std::env::var("MOEX_CHECK_ROWS").ok().and_then(|n| n.parse().ok()).unwrap_or(40)
}

#[test]
fn an_honest_answer_passes_in_every_format() {
    let mut n_passed = 0_u64;
    for shape in shapes() {
        for activations in [ActivationFormat::Int8, ActivationFormat::F32] {
            let mut left = n_rows();
            for seed in 0.. {
                let n = left.min(1000);
                let case = Case::new(shape, activations, n, seed);
                for row in 0..n {
                    let checked = case.check(row, case.products(row), case.answer(row));
                    assert_eq!(checked, Ok(()), "{shape:?} {activations} seed {seed} row {row}");
                }
                n_passed += n as u64;
                left -= n;
                if left == 0 {
                    break;
                }
            }
        }
    }
    println!("{n_passed} honest rows passed");
}

#[test]
fn a_lie_fails() {
    for shape in shapes() {
        for activations in [ActivationFormat::Int8, ActivationFormat::F32] {
            let case = Case::new(shape, activations, 3, 9);
            let (products, answer) = (case.products(0), case.answer(0));
            let scaled = |values: &[f32], factor| values.iter().map(|v| v * factor).collect::<Vec<f32>>();
            for factor in [-20.0, 3.0, 1.03, 0.97, 0.0, f32::NAN, f32::INFINITY] {
                let said = case.check(0, products, &scaled(answer, factor));
                assert_eq!(said, Err(CheckFailure::Answer), "{shape:?} {activations} {factor}");
                let said = case.check(0, &scaled(products, factor), answer);
                assert!(said.is_err(), "{shape:?} {activations} products x {factor}");
            }
            let zeros = vec![0.0; products.len()];
            assert_eq!(case.check(0, &zeros, &vec![0.0; answer.len()]), Err(CheckFailure::Products));
            assert!(case.check(0, case.products(2), case.answer(2)).is_err(), "another row's");
            // One wrong value alone, and two wrong values that cancel for half of all vectors of signs.
            let mut one = answer.to_vec();
            one[5] += 0.5 * answer.iter().map(|y| y * y).sum::<f32>().sqrt();
            assert_eq!(case.check(0, products, &one), Err(CheckFailure::Answer));
            one[6] = answer[6] + one[5] - answer[5];
            assert_eq!(case.check(0, products, &one), Err(CheckFailure::Answer));
            // One value that is not finite, or whose square is not, among others of the liar's choice.
            for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e30] {
                one = scaled(answer, 3.0);
                one[5] = value;
                let said = case.check(0, products, &one);
                assert_eq!(said, Err(CheckFailure::Answer), "{shape:?} {activations} {value}");
                one = scaled(products, 3.0);
                one[5] = value;
                let said = case.check(0, &one, answer);
                assert_eq!(said, Err(CheckFailure::Products), "{shape:?} {activations} products {value}");
            }
        }
    }
}

#[test]
fn products_differ_from_an_experts_own_by_rounding_or_are_false() {
    for shape in shapes() {
        let case = Case::new(shape, ActivationFormat::Int8, 3, 9);
        let block = shape.noise(9, 0.05);
        let expert = shape.view(&block).unwrap();
        let nmse = |said: &[f32]| products_nmse(&expert, &case.rows, 1, said);
        assert!(nmse(case.products(1)) < 1e-4, "{shape:?}: {}", nmse(case.products(1)));
        let doubled: Vec<f32> = case.products(1).iter().map(|product| product * 2.0).collect();
        assert!((nmse(&doubled) - 1.0).abs() < 0.05, "{shape:?}: {}", nmse(&doubled));
        assert!(nmse(&vec![f32::NAN; doubled.len()]).is_nan());
    }
}

/// Noise of 3 % of the length of an answer, or of the products and with the answer that follows from them, in every value
/// or in a few. The module's doc computes how much goes unseen: of the products most, one in 17,000.
#[test]
fn noise_of_three_per_cent_is_seen() {
    let simd = Simd::detect();
    let shape = ExpertShape::uniform(512, 256, WeightFormat::Int4G128);
    let case = Case::new(shape, ActivationFormat::Int8, 500, 3);
    let noisy = |values: &[f32], seed: u64, n_values: usize| -> Vec<f32> {
        let mut error = noise(seed, n_values, 1.0);
        error.resize(values.len(), 0.0);
        let scale = 0.03 * norm(simd, values) / norm(simd, &error);
        let sum = values.iter().zip(error).map(|(value, e)| f16::from_f32(value + e * scale).to_f32());
        sum.collect()
    };
    // Below this, an f16 has fewer than three digits.
    let has_digits = |values: &[f32]| norm(simd, values) >= 1e-2 * (values.len() as f32).sqrt();
    let (mut unseen, mut tried) = ([0, 0], [0, 0]);
    for row in 0..500 {
        let (products, answer) = (case.products(row), case.answer(row));
        for (seed, n_values) in (0..40).zip([1, 2, 16, 512].into_iter().cycle()) {
            let seed = row as u64 * 64 + seed;
            if has_digits(answer) {
                unseen[0] += usize::from(case.check(row, products, &noisy(answer, seed, n_values)).is_ok());
                tried[0] += 1;
            }
            if has_digits(products) {
                let failure = case.check(row, &noisy(products, seed, n_values), answer);
                unseen[1] += usize::from(failure != Err(CheckFailure::Products));
                tried[1] += 1;
            }
        }
    }
    println!("{unseen:?} of {tried:?} unseen");
    assert!(tried.iter().all(|tried| *tried > 5_000), "{tried:?}");
    assert!(unseen[0] * 10_000 <= tried[0] && unseen[1] * 5_000 <= tried[1], "{unseen:?} of {tried:?}");
}

/// Counts the multiplications of a check, and the bytes that the memory plan counts.
#[test]
fn a_check_is_less_than_a_hundredth_of_the_work() {
    let (hidden, inner) = (2048, 768);
    let multiplications = N_PRODUCTS * (hidden + 2 * inner) + N_ANSWER * (hidden + inner);
    assert_eq!((multiplications, 3 * hidden * inner), (22_016, 4_718_592), "0.5 %");
    assert_eq!(Projection::n_bytes(hidden, inner), 36_864);
    assert_eq!(Secrets::n_bytes(hidden, inner), 51_200);
}
