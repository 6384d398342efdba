//! How near the kernels come to the machine's limits: `cargo xtask bench memory` and `cargo xtask bench cpu`.
//!
//! `roofline memory [MIB]`: the speed of memory on random blocks of an expert matrix's size, with small and huge pages.
//! `roofline cpu [MIB]`: the experts of decode in every format against it; the experts of prefill in integer operations a
//! second, and as a part of what dot products on registers alone give (for the float formats that is no limit).
//!
//! Windows of half a millisecond are timed, one kind after the other, and the best of many taken, so that a neighbour's
//! load changes little. `MOEX_SIMD` chooses the instructions, `MOEX_THREADS` the threads, `MOEX_FORMATS` the formats.

use std::{
    env,
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use moex_kernels::{
    ExpertFormat, ExpertShape, WeightFormat,
    engine::Pair,
    pool::Pool,
    simd::{
        ExpertCall, ExpertScratch, PackedExpertShape, PageSize, Simd, Slab, experts, read, spin_products,
    },
};

/// An expert of Qwen3-30B-A3B.
const HIDDEN: usize = 2048;
const INNER: usize = 768;
/// Experts of a token.
const CHOSEN: usize = 8;
/// One of an int4 expert's matrices, as it lies in a file: what a block of the memory measurement is beside the kernels.
const BLOCK_BYTES: usize = 884_736;
/// Blocks that memory is measured on: a matrix of an expert in int4, q8_0 and bf16.
const BLOCKS_BYTES: [usize; 3] = [BLOCK_BYTES, 1_671_168, 3_145_728];
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
    let n_threads = match env::var("MOEX_THREADS") {
        Ok(n) => n.parse()?,
        Err(_) => thread::available_parallelism()?.get(),
    };
    let pool = Pool::new(n_threads);
    let mut args = env::args().skip(1);
    let what = args.next().unwrap_or_default();
    let slab_bytes = args.next().map_or(Ok(1024), |mib| mib.parse::<usize>())? << 20;
    println!("{simd}, {} threads, {} MiB of weights", pool.n_threads(), slab_bytes >> 20);
    match what.as_str() {
        "memory" => memory(simd, &pool, slab_bytes),
        "cpu" => cpu(simd, &pool, slab_bytes),
        _ => Err("roofline memory [MIB], or roofline cpu [MIB]".into()),
    }
}

/// The speed of memory on random blocks.
fn memory(simd: Simd, pool: &Pool, slab_bytes: usize) -> Result<(), Box<dyn std::error::Error>> {
    for pages in [PageSize::Small, PageSize::Huge] {
        let mut memory = Slab::new(slab_bytes, pages)?;
        memory.fill(1);
        for block_bytes in BLOCKS_BYTES {
            let best =
                (0..REPEATS).map(|_| read_blocks(simd, pool, &memory, block_bytes)).max_by(f64::total_cmp);
            let best = best.unwrap_or_default();
            println!("random blocks of {block_bytes:>7} B, {pages:?} pages: {best:.1} GB/s");
        }
    }
    Ok(())
}

/// The kernels in every format.
fn cpu(simd: Simd, pool: &Pool, slab_bytes: usize) -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "{:>9} {:>9} {:>9} {:>9} {:>7} {:>9}",
        "decode", "B/expert", "us/layer", "GB/s", "memory", "GOP/s"
    );
    for (gate_up, down) in mixes() {
        decode(simd, pool, slab_bytes, gate_up, down)?;
    }
    println!();
    println!("{:>9} {:>6} {:>9} {:>9} {:>7}", "prefill", "rows", "us/expert", "GOP/s", "peak");
    for (gate_up, down) in mixes() {
        for n_rows in [4, 32, 128] {
            prefill(simd, pool, gate_up, down, n_rows)?;
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
    let shape = PackedExpertShape { hidden: HIDDEN, inner: INNER, format: ExpertFormat::new(gate_up, down) };
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
    let (mut memory, mut best) = (0.0_f64, Duration::MAX);
    for _ in 0..REPEATS {
        memory = memory.max(read_blocks(simd, pool, &slab, BLOCK_BYTES));
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
        100.0 * read / memory,
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
    let shape = PackedExpertShape { hidden: HIDDEN, inner: INNER, format: ExpertFormat::new(gate_up, down) };
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

/// Reads all blocks once in a random order, and gives the GB/s of the best window of them.
fn read_blocks(simd: Simd, pool: &Pool, memory: &[u8], block_bytes: usize) -> f64 {
    let blocks: Vec<&[u8]> = memory.chunks_exact(block_bytes).collect();
    let order = shuffled(blocks.len());
    let n_blocks = WINDOW_BYTES.div_ceil(block_bytes);
    let piece_bytes = block_bytes / PIECES;
    let mut best = Duration::MAX;
    for window in order.chunks_exact(n_blocks) {
        let start = Instant::now();
        pool.run(PIECES * window.len(), &|task| {
            let (block, piece) = (blocks[window[task / PIECES]], task % PIECES);
            read(simd, &block[piece * piece_bytes..][..piece_bytes]);
        });
        best = best.min(start.elapsed());
    }
    gigabytes(n_blocks * block_bytes, best)
}

fn pack_one(shape: &PackedExpertShape) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let unpacked = ExpertShape { hidden: shape.hidden, inner: shape.inner, format: shape.format };
    let weights = |seed| noise(seed, HIDDEN * INNER);
    let block = unpacked.pack(&weights(2), &weights(3), &weights(4));
    let mut packed = vec![0; shape.bytes()];
    shape.pack(&Pool::new(1), &unpacked.view(&block)?, &mut packed);
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
