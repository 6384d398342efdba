//! How near the kernels come to the machine's limits.
//!
//! `roofline [DECODE_MIB]`: the speed of memory on random blocks of an expert's size; the experts of decode in every
//! format against it; the experts of prefill in integer operations a second, and as a
//! part of what dot products on registers alone give (for the float formats that is no limit). Windows of half a millisecond are timed, one
//! kind after the other, and the best of many taken, so that a neighbour's load changes little.
//! `MOEX_SIMD` chooses the instructions, `MOEX_THREADS` the threads.

use std::{
    env,
    hint::black_box,
    time::{Duration, Instant},
};

use moex_kernels::{
    ExpertFormat, ExpertView, MatrixView, WeightFormat,
    engine::Pair,
    pool::Pool,
    simd::{ExpertCall, ExpertScratch, PackedExpertShape, PageSize, Simd, Slab, experts, spin_products},
};

/// An expert of Qwen3-30B-A3B.
const HIDDEN: usize = 2048;
const INNER: usize = 768;
/// Experts of a token.
const CHOSEN: usize = 8;
/// One of an int4 expert's matrices, as it lies in a file: what a block of the memory measurement is.
const BLOCK_BYTES: usize = 884_736;
/// Tasks that a block is cut into, as kernels cut their matrices.
const PIECES: usize = 12;
/// What is timed at once, the weights of one layer of a token: short enough to fall between other people's work.
const WINDOW_BYTES: usize = 22 * BLOCK_BYTES;
const REPEATS: usize = 5;
/// Tasks and operations of each that the integer peak is measured with.
const SPINS: usize = 32;
const SPIN_OPERATIONS: usize = 8 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let simd = Simd::from_env()?;
    let n_threads = env::var("MOEX_THREADS").map_or(Ok(2), |n| n.parse())?;
    let pool = Pool::new(n_threads);
    let slab_bytes = env::args().nth(1).map_or(Ok(1024), |mib| mib.parse::<usize>())? << 20;
    println!("{simd}, {n_threads} threads, {} MiB of weights a format", slab_bytes >> 20);

    let memory = [PageSize::Small, PageSize::Huge].map(|pages| Slab::new(slab_bytes, pages));
    for (memory, pages) in memory.into_iter().zip([PageSize::Small, PageSize::Huge]) {
        let mut memory = memory?;
        memory.fill(1);
        let best = (0..REPEATS).map(|_| read_blocks(&pool, &memory)).min().unwrap_or_default();
        println!(
            "memory, random blocks of {BLOCK_BYTES} B, {pages:?} pages: {:.1} GB/s",
            gigabytes(WINDOW_BYTES, best)
        );
    }

    println!();
    println!(
        "{:>9} {:>9} {:>9} {:>9} {:>7} {:>9}",
        "decode", "B/expert", "us/layer", "GB/s", "memory", "GOP/s"
    );
    for (gate_up, down) in mixes() {
        decode(simd, &pool, slab_bytes, gate_up, down)?;
    }

    println!();
    println!("{:>9} {:>6} {:>9} {:>9} {:>7}", "prefill", "rows", "us/expert", "GOP/s", "peak");
    for (gate_up, down) in mixes() {
        for n_rows in [4, 32, 128] {
            prefill(simd, &pool, gate_up, down, n_rows)?;
        }
    }
    Ok(())
}

/// Formats of gate and up, and of down.
fn mixes() -> impl Iterator<Item = (WeightFormat, WeightFormat)> {
    let wanted = env::var("MOEX_FORMATS").ok();
    let mixed = (WeightFormat::Q4K, WeightFormat::Q6K);
    WeightFormat::ALL.into_iter().map(|format| (format, format)).chain([mixed]).filter(
        move |(gate_up, down)| {
            wanted.as_ref().is_none_or(|wanted| wanted.split(',').any(|name| name == label(*gate_up, *down)))
        },
    )
}

fn label(gate_up: WeightFormat, down: WeightFormat) -> String {
    if gate_up == down { gate_up.to_string() } else { format!("{gate_up}+{down}") }
}

/// Tokens through random experts of a slab, and the same slab's memory read beside it.
fn decode(
    simd: Simd,
    pool: &Pool,
    slab_bytes: usize,
    gate_up: WeightFormat,
    down: WeightFormat,
) -> Result<(), Box<dyn std::error::Error>> {
    let shape = PackedExpertShape { hidden: HIDDEN, inner: INNER, format: ExpertFormat { gate_up, down } };
    let n_experts = (slab_bytes / shape.bytes()).max(CHOSEN);
    let mut slab = Slab::new(n_experts * shape.bytes(), PageSize::Huge)?;
    let packed = pack_one(&shape)?;
    for expert in slab.chunks_exact_mut(shape.bytes()) {
        expert.copy_from_slice(&packed);
    }
    let rows = noise(1, HIDDEN);
    let pairs = [Pair { row: 0, gate: 0.125 }];
    let mut scratch = ExpertScratch::default();
    let mut out = vec![0.0; CHOSEN * HIDDEN];
    let order = shuffled(n_experts);
    let (mut memory, mut best) = (Duration::MAX, Duration::MAX);
    for _ in 0..REPEATS {
        memory = memory.min(read_blocks(pool, &slab));
        for token in order.chunks_exact(CHOSEN) {
            let start = Instant::now();
            let calls: [ExpertCall<'_>; CHOSEN] = std::array::from_fn(|i| ExpertCall {
                expert: &slab[token[i] * shape.bytes()..][..shape.bytes()],
                pairs: &pairs,
            });
            experts(simd, pool, &shape, &mut scratch, &calls, &rows, &mut out)?;
            black_box(&mut out);
            best = best.min(start.elapsed());
        }
    }
    let read = gigabytes(CHOSEN * shape.bytes(), best);
    println!(
        "{:>9} {:>9} {:>9.1} {:>9.1} {:>6.0}% {:>9.0}",
        label(gate_up, down),
        shape.bytes(),
        best.as_secs_f64() * 1e6,
        read,
        100.0 * read / gigabytes(WINDOW_BYTES, memory),
        operations(CHOSEN, best),
    );
    Ok(())
}

/// Experts that each meet some rows of a prompt.
fn prefill(
    simd: Simd,
    pool: &Pool,
    gate_up: WeightFormat,
    down: WeightFormat,
    n_rows: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    const EXPERTS: usize = 2;
    let shape = PackedExpertShape { hidden: HIDDEN, inner: INNER, format: ExpertFormat { gate_up, down } };
    let mut slab = Slab::new(EXPERTS * shape.bytes(), PageSize::Huge)?;
    let packed = pack_one(&shape)?;
    for expert in slab.chunks_exact_mut(shape.bytes()) {
        expert.copy_from_slice(&packed);
    }
    let rows = noise(1, n_rows * HIDDEN);
    let pairs: Vec<Pair> = (0..n_rows).map(|row| Pair { row: row as u32, gate: 0.125 }).collect();
    let calls: Vec<ExpertCall<'_>> =
        slab.chunks_exact(shape.bytes()).map(|expert| ExpertCall { expert, pairs: &pairs }).collect();
    let mut scratch = ExpertScratch::default();
    let mut out = vec![0.0; EXPERTS * n_rows * HIDDEN];
    let (mut best, mut peak) = (Duration::MAX, Duration::MAX);
    for _ in 0..20 * REPEATS {
        let start = Instant::now();
        pool.run(SPINS, &|_| {
            black_box(spin_products(simd, SPIN_OPERATIONS));
        });
        peak = peak.min(start.elapsed());
        let start = Instant::now();
        experts(simd, pool, &shape, &mut scratch, &calls, &rows, black_box(&mut out))?;
        best = best.min(start.elapsed());
    }
    println!(
        "{:>9} {:>6} {:>9.1} {:>9.0} {:>6.0}%",
        label(gate_up, down),
        n_rows,
        best.as_secs_f64() * 1e6 / EXPERTS as f64,
        operations(EXPERTS * n_rows, best),
        100.0 * operations(EXPERTS * n_rows, best) * peak.as_secs_f64() * 1e9
            / (SPINS * SPIN_OPERATIONS) as f64,
    );
    Ok(())
}

/// Multiplications and additions of rows through experts, in 10^9 a second.
fn operations(n_rows: usize, time: Duration) -> f64 {
    (n_rows * 3 * HIDDEN * INNER * 2) as f64 / time.as_secs_f64() / 1e9
}

fn gigabytes(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e9
}

/// Reads all blocks once in a random order, and gives the best time of a window of them.
fn read_blocks(pool: &Pool, memory: &[u8]) -> Duration {
    let blocks: Vec<&[u8]> = memory.chunks_exact(BLOCK_BYTES).collect();
    let order = shuffled(blocks.len());
    let mut best = Duration::MAX;
    for window in order.chunks_exact(WINDOW_BYTES / BLOCK_BYTES) {
        let start = Instant::now();
        pool.run(PIECES * window.len(), &|task| {
            let (block, piece) = (blocks[window[task / PIECES]], task % PIECES);
            // Many sums of words, so that loads and not additions are waited for.
            let mut sums = [0_u64; 64];
            let (lines, _) =
                block[piece * (BLOCK_BYTES / PIECES)..][..BLOCK_BYTES / PIECES].as_chunks::<512>();
            for line in lines {
                for (sum, word) in sums.iter_mut().zip(line.as_chunks().0) {
                    *sum = sum.wrapping_add(u64::from_le_bytes(*word));
                }
            }
            black_box(sums);
        });
        best = best.min(start.elapsed());
    }
    best
}

fn pack_one(shape: &PackedExpertShape) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let n = HIDDEN * INNER;
    let gate = shape.gate_up.quantize(INNER, HIDDEN, &noise(2, n));
    let up = shape.gate_up.quantize(INNER, HIDDEN, &noise(3, n));
    let down = shape.down.quantize(HIDDEN, INNER, &noise(4, n));
    let view = ExpertView {
        gate: MatrixView::new(shape.gate_up, INNER, HIDDEN, &gate)?,
        up: MatrixView::new(shape.gate_up, INNER, HIDDEN, &up)?,
        down: MatrixView::new(shape.down, HIDDEN, INNER, &down)?,
    };
    let mut packed = vec![0; shape.bytes()];
    shape.pack(&Pool::new(1), &view, &mut packed);
    Ok(packed)
}

/// splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn noise(mut seed: u64, n: usize) -> Vec<f32> {
    (0..n).map(|_| (next(&mut seed) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn shuffled(n: usize) -> Vec<usize> {
    let (mut order, mut seed): (Vec<usize>, u64) = ((0..n).collect(), 5);
    for i in (1..n).rev() {
        order.swap(i, next(&mut seed) as usize % (i + 1));
    }
    order
}
