//! Tests every kernel against its scalar twin, on every instruction set of the machine.

use half::f16;
use proptest::prelude::*;

use super::{
    AttentionScratch, ExpertCall, ExpertScratch, KvFormat, KvShape, PAGE_POSITIONS, PackedExpertShape,
    PackedShape, Pages, Processor, Simd, attention, experts, fill, linear,
};
use crate::{
    ExpertBiases, ExpertFormat, ExpertKind, ExpertView, MatrixView, WeightFormat, cpu,
    engine::Pair,
    nmse,
    noise::noise,
    pool::Pool,
    quant::{Activations, dot_int8},
};

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn packed(matrix: &MatrixView<'_>) -> Vec<u8> {
    let shape = PackedShape::of(matrix);
    let mut bytes = vec![0xaa; shape.bytes()];
    shape.pack(&Pool::new(1), matrix, &mut bytes);
    bytes
}

/// The definition of the float formats' sums.
fn dot_floats(w: &[f32], x: &[f32]) -> f32 {
    let mut sums = [0.0; 4];
    for (c, (w, x)) in w.iter().zip(x).enumerate() {
        sums[c % 4] += w * x;
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn products_are_those_of_the_twin_to_the_bit(
        format in prop::sample::select(&WeightFormat::ALL[..]),
        n_rows in 0_usize..40,
        n_in in 1_usize..800,
        n_out in 1_usize..70,
        n_threads in 1_usize..4,
        seed in any::<u64>(),
    ) {
        let bytes = format.quantize(n_out, n_in, &noise(seed, n_out * n_in, 0.5));
        let w = MatrixView::new(format, n_out, n_in, &bytes).unwrap();
        let packed = packed(&w);
        let view = PackedShape::of(&w).view(&packed).unwrap();
        let x = noise(seed ^ 1, n_rows * n_in, 2.0);
        let mut rows = Activations::default();
        rows.fill(format, n_in, &x);
        let weights = w.dequantize();
        let expected: Vec<f32> = (0..n_rows)
            .flat_map(|t| (0..n_out).map(move |o| (t, o)))
            .map(|(t, o)| match format.geometry() {
                Some(_) => dot_int8(&w, o, &rows, t),
                None => dot_floats(&weights[o * n_in..][..n_in], &x[t * n_in..][..n_in]),
            })
            .collect();
        let pool = Pool::new(n_threads);
        for simd in Simd::available() {
            let mut refilled = Activations::default();
            fill(simd, &pool, &mut refilled, format, n_in, &x);
            for t in 0..n_rows {
                prop_assert_eq!(refilled.row(t), rows.row(t), "{} {}", simd, format);
            }
            let mut out = vec![f32::NAN; n_rows * n_out];
            linear(simd, &pool, &view, &refilled, &mut out);
            prop_assert_eq!(bits(&out), bits(&expected), "{} {}", simd, format);
        }
    }
}

#[test]
fn any_bytes_give_the_same_everywhere() {
    // Scales and codes that no quantiser writes: extremes of every field, subnormal, infinite and NaN.
    for format in WeightFormat::ALL {
        let (n_in, n_out) = (512, 33);
        let n = format.matrix_bytes(n_out, n_in);
        for seed in 0..8 {
            let mut bytes: Vec<u8> = noise(seed, n, 128.0).iter().map(|x| x.floor() as i32 as u8).collect();
            if seed == 0 {
                bytes.fill(0xff);
            }
            let w = MatrixView::new(format, n_out, n_in, &bytes).unwrap();
            let packed = packed(&w);
            let view = PackedShape::of(&w).view(&packed).unwrap();
            let x = noise(seed, 3 * n_in, 1.0);
            let mut rows = Activations::default();
            rows.fill(format, n_in, &x);
            // NaNs may differ in their bits.
            let same = |x: &[f32]| -> Vec<u32> {
                x.iter().map(|x| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }).collect()
            };
            let mut expected = vec![0.0; 3 * n_out];
            linear(Simd::SCALAR, &Pool::new(1), &view, &rows, &mut expected);
            if format.geometry().is_some() {
                let twin: Vec<f32> =
                    (0..3 * n_out).map(|i| dot_int8(&w, i % n_out, &rows, i / n_out)).collect();
                assert_eq!(same(&expected), same(&twin), "{format}");
            }
            for simd in Simd::available() {
                let mut out = vec![0.0; 3 * n_out];
                linear(simd, &Pool::new(1), &view, &rows, &mut out);
                assert_eq!(same(&out), same(&expected), "{simd} {format}");
            }
        }
    }
}

#[test]
fn int8_activations_cost_less_than_a_thousandth() {
    for format in WeightFormat::ALL {
        let (n_in, n_out) = (2048, 64);
        let bytes = format.quantize(n_out, n_in, &noise(1, n_out * n_in, 0.05));
        let w = MatrixView::new(format, n_out, n_in, &bytes).unwrap();
        let packed = packed(&w);
        // A few columns are far larger than the rest, as in real activations.
        let mut x = noise(2, n_in, 1.0);
        x.iter_mut().step_by(311).for_each(|x| *x *= 12.0);
        let mut rows = Activations::default();
        rows.fill(format, n_in, &x);
        let (mut out, mut exact) = (vec![0.0; n_out], vec![0.0; n_out]);
        linear(Simd::detect(), &Pool::new(1), &PackedShape::of(&w).view(&packed).unwrap(), &rows, &mut out);
        cpu::linear(&x, &w, &mut exact);
        assert!(nmse(&out, &exact) < 1e-3, "{format} {}", nmse(&out, &exact));
    }
}

#[test]
fn experts_are_their_three_products_whoever_computes_them() {
    let (hidden, inner) = (300, 100);
    for (gate_up, down, kind) in [
        (WeightFormat::Int4G128, WeightFormat::Int4G128, ExpertKind::Silu),
        (WeightFormat::Q4K, WeightFormat::Q6K, ExpertKind::Silu),
        (WeightFormat::Q8_0, WeightFormat::Q4_1, ExpertKind::Silu),
        (WeightFormat::Bf16, WeightFormat::F16, ExpertKind::Silu),
        (WeightFormat::Mxfp4, WeightFormat::Mxfp4, ExpertKind::ClampedSwiglu),
        (WeightFormat::Q8_0, WeightFormat::Bf16, ExpertKind::ClampedSwiglu),
    ] {
        let format = ExpertFormat { gate_up, down, kind };
        let shape = PackedExpertShape { hidden, inner, format };
        let blocks: Vec<Vec<u8>> = (0..3)
            .map(|expert| {
                let [gate, up, weights] = [1, 2, 3].map(|i| noise(expert * 3 + i, hidden * inner, 0.1));
                let (gate, up) =
                    (gate_up.quantize(inner, hidden, &gate), gate_up.quantize(inner, hidden, &up));
                let weights = down.quantize(hidden, inner, &weights);
                let bias = noise(expert + 50, hidden, 1.0);
                let of_width = |width| MatrixView::of_f32(1, width, &bias[..width]).unwrap();
                let biases =
                    ExpertBiases { kind, gate: of_width(inner), up: of_width(inner), down: of_width(hidden) };
                let view = ExpertView {
                    gate: MatrixView::new(gate_up, inner, hidden, &gate).unwrap(),
                    up: MatrixView::new(gate_up, inner, hidden, &up).unwrap(),
                    down: MatrixView::new(down, hidden, inner, &weights).unwrap(),
                    biases: kind.has_biases().then_some(biases),
                };
                let mut packed = vec![0; shape.bytes()];
                shape.pack(&Pool::new(1), &view, &mut packed);
                // In f32, for the row and the expert that are looked at below.
                if expert == 1 {
                    let pairs = [Pair { row: 20, gate: 0.5 }];
                    let (mut exact, mut out) = (vec![0.0; hidden], vec![0.0; hidden]);
                    let rows = noise(77, 21 * hidden, 1.0);
                    cpu::expert_ffn(&view, &rows, &pairs, &mut exact);
                    let calls = [ExpertCall { expert: &packed, pairs: &pairs }];
                    let mut scratch = ExpertScratch::default();
                    experts(Simd::detect(), &Pool::new(2), &shape, &mut scratch, &calls, &rows, &mut out)
                        .unwrap();
                    assert!(nmse(&out, &exact) < 1e-3, "{gate_up} {down} {}", nmse(&out, &exact));
                }
                packed
            })
            .collect();
        let rows = noise(9, 40 * hidden, 1.0);
        let pairs: Vec<Pair> = (0..37).map(|row| Pair { row, gate: row as f32 / 8.0 }).collect();
        let calls = [
            ExpertCall { expert: &blocks[2], pairs: &pairs[..5] },
            ExpertCall { expert: &blocks[0], pairs: &[] },
            ExpertCall { expert: &blocks[1], pairs: &pairs },
        ];
        let mut expected: Option<Vec<u32>> = None;
        for simd in Simd::available() {
            for n_threads in [1, 3] {
                let pool = Pool::new(n_threads);
                let mut scratch = ExpertScratch::default();
                let mut out = vec![f32::NAN; 42 * hidden];
                experts(simd, &pool, &shape, &mut scratch, &calls, &rows, &mut out).unwrap();
                // Each pair alone.
                let mut alone = vec![f32::NAN; 42 * hidden];
                let singles = calls.iter().flat_map(|call| call.pairs.iter().map(|pair| (call.expert, pair)));
                for ((expert, pair), out) in singles.zip(alone.chunks_mut(hidden)) {
                    let call = [ExpertCall { expert, pairs: std::slice::from_ref(pair) }];
                    experts(simd, &pool, &shape, &mut scratch, &call, &rows, out).unwrap();
                }
                assert_eq!(bits(&out), bits(&alone));
                assert_eq!(
                    *expected.get_or_insert_with(|| bits(&out)),
                    bits(&out),
                    "{simd} {gate_up} {down}"
                );
            }
        }
        let short = [ExpertCall { expert: &blocks[0][1..], pairs: &[] }];
        let mut scratch = ExpertScratch::default();
        assert!(experts(Simd::SCALAR, &Pool::new(1), &shape, &mut scratch, &short, &rows, &mut []).is_err());
    }
}

#[test]
fn instruction_sets_have_names() {
    for simd in Simd::available() {
        assert_eq!(simd.name().parse::<Simd>().unwrap().name(), simd.name());
    }
    let error = "sse9".parse::<Simd>().unwrap_err().to_string();
    assert!(error.contains("sse9") && error.contains("scalar"), "{error}");
}

#[test]
fn shapes_too_large_to_address_have_no_view() {
    for format in WeightFormat::ALL {
        let shape = PackedShape { format, rows: usize::MAX, cols: usize::MAX };
        assert_eq!(shape.bytes(), usize::MAX);
        assert!(shape.view(&[]).is_err());
        let expert = PackedExpertShape { hidden: usize::MAX, inner: usize::MAX, format: format.into() };
        assert_eq!(expert.bytes(), usize::MAX);
    }
}

/// One page, and a row for each number of its positions.
struct OnePage(Vec<u8>);

impl Pages for OnePage {
    fn positions(&self, row: usize) -> usize {
        row + 1
    }
    fn page(&self, _: usize, _: usize) -> &[u8] {
        &self.0
    }
}

/// The numbers that q8_0 keeps of a head.
fn through_q8_0(head: &[f32]) -> Vec<f32> {
    let of_unit = |x: &[f32]| -> Vec<f32> {
        let largest = x.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
        let (steps, step) =
            (if largest > 0.0 { 127.0 / largest } else { 0.0 }, f16::from_f32(largest / 127.0));
        x.iter().map(|x| (x * steps).round_ties_even() * step.to_f32()).collect()
    };
    head.chunks(32).flat_map(of_unit).collect()
}

#[test]
fn attention_over_q8_0_is_to_the_bit_that_over_the_numbers_it_stands_for() {
    // Heads of whole units, of one and a half, of less than one; a unit of zeros, one with a large number among small.
    for (n_heads, n_kv_heads, head_width) in [(8, 1, 128), (6, 2, 48), (3, 3, 20), (2, 1, 7)] {
        let width = n_kv_heads * head_width;
        let [mut keys, mut values] = [1, 2].map(|seed| noise(seed, PAGE_POSITIONS * width, 1.5));
        keys[..head_width.min(32)].fill(0.0);
        values[width] = 900.0;
        let formats = [KvFormat::Q8_0, KvFormat::F32];
        let pages = formats.map(|format| {
            let shape = KvShape { format, n_kv_heads, head_width };
            // What an earlier sequence left is overwritten, and what is beyond its positions never shows.
            let mut page = vec![0x3c; shape.page_bytes()];
            for (p, (key, value)) in keys.chunks(width).zip(values.chunks(width)).enumerate() {
                let stored = |heads: &[f32]| match format {
                    KvFormat::F32 => heads.chunks(head_width).flat_map(through_q8_0).collect(),
                    _ => heads.to_vec(),
                };
                shape.write(&mut page, p, &stored(key), &stored(value)).unwrap();
            }
            (shape, OnePage(page))
        });
        let q = noise(3, PAGE_POSITIONS * n_heads * head_width, 1.0);
        for simd in Simd::available() {
            let out = pages.each_ref().map(|(shape, page)| {
                let mut out = vec![f32::NAN; q.len()];
                let processor = Processor::new(simd, 2);
                attention(&processor, shape, n_heads, &q, page, &mut AttentionScratch::default(), &mut out);
                bits(&out)
            });
            assert_eq!(out[0], out[1], "{simd} {n_heads} {n_kv_heads} {head_width}");
        }
    }
}

#[test]
fn q8_0_keeps_keys_and_values_in_little_more_than_half_of_f16_and_hides_no_nan() {
    let [f16, q8_0] = [KvFormat::F16, KvFormat::Q8_0]
        .map(|format| KvShape { format, n_kv_heads: 4, head_width: 128 }.page_bytes());
    assert_eq!(q8_0 * 32, f16 * 17, "a byte for each column, and two for each 32");
    let shape = KvShape { format: KvFormat::Q8_0, n_kv_heads: 1, head_width: 32 };
    for bad in [f32::NAN, f32::INFINITY] {
        let mut page = vec![0; shape.page_bytes()];
        let mut value = [1.0; 32];
        value[9] = bad;
        shape.write(&mut page, 0, &[1.0; 32], &value).unwrap();
        let mut out = vec![0.0; 32];
        let (processor, mut scratch) = (Processor::new(Simd::detect(), 1), AttentionScratch::default());
        attention(&processor, &shape, 1, &[1.0; 32], &OnePage(page), &mut scratch, &mut out);
        assert!(out.iter().any(|x| !x.is_finite()), "{bad}");
    }
}
