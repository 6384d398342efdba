// The down projections of all experts of a step's one row, and their gated sum, as norm_rows.wgsl adds a row's pairs. A workgroup
// takes a panel of every expert, and rounds what their gates and ups gave for itself.
#import tile
#import product
#import row_sum
#import round_rows

@group(0) @binding(3) var<storage, read> h: array<vec4<u32>>;       // (K, F / 4), experts ascending
@group(0) @binding(4) var<storage, read_write> result: array<f32>;  // (D)

override N_CHOSEN: u32;  // K
override AT_ONCE: u32;   // experts whose products are kept at once, a divisor of K
override QUADS: u32;     // F / 4
override ITEMS: u32;     // units of a row
override LINES: u32;     // of 128 bytes in a panel
// Known when the kernel is compiled, so that all of a thread's loads are under way at once.
override N_UNITS: u32 = AT_ONCE * ITEMS;
override N_PRODUCTS: u32 = CAPACITY * ROWS;
override N_GATED: u32 = N_CHOSEN * ROWS;
override N_LINES: u32 = N_CHOSEN * LINES;

var<workgroup> products: array<f32, N_PRODUCTS>;
var<workgroup> blocks: array<u32, N_CHOSEN>;
var<workgroup> gates: array<f32, N_CHOSEN>;
var<workgroup> gated: array<f32, N_GATED>;

fn quad_at(q: u32) -> vec4<u32> {
    let expert = q / (ITEMS * UNIT_QUADS);
    let quad = q % (ITEMS * UNIT_QUADS);
    if quad >= QUADS {
        return vec4<u32>();
    }
    return h[expert * QUADS + quad];
}

@compute @workgroup_size(THREADS)
fn row_down(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    if thread < N_CHOSEN {
        blocks[thread] = 4u * tiles[thread].block;
        gates[thread] = tiles[thread].gates.x;
    }
    workgroupBarrier();
    // The panels are on their way to the cache while h is rounded.
    let panel = shape.weights + group.x * shape.weight_stride;
    var touched = 0u;
    for (var i = 0u; i < (N_LINES + THREADS - 1u) / THREADS; i++) {
        let line = min(i * THREADS + thread, N_LINES - 1u);
        touched |= weights[blocks[line / LINES] + panel + 32u * (line % LINES)];
    }
    round_rows(thread);

    let row = thread % ROWS;
    let lane = thread / ROWS + (touched & run.zero);
    for (var first = 0u; first < N_CHOSEN; first += AT_ONCE) {
        for (var i = 0u; i < (N_UNITS + LANES - 1u) / LANES; i++) {
            let unit = i * LANES + lane;
            if N_UNITS % LANES == 0u || unit < N_UNITS {
                let expert = first + unit / ITEMS;
                let words = vec4<u32>(expert * (ITEMS / UNITS) * BLOCK_WORDS);
                let place = Place(blocks[expert] + panel, row, row, words, 1u);
                unit_products(place, unit % ITEMS, slot_of(unit));
            }
        }
        if TERMS != 0u {
            for (var block = lane; block < N_UNITS / UNITS; block += LANES) {
                let expert = first + block / (ITEMS / UNITS);
                let words = vec4<u32>(expert * (ITEMS / UNITS) * BLOCK_WORDS);
                let place = Place(blocks[expert] + panel, row, row, words, 1u);
                lower_block(place, block % (ITEMS / UNITS), block);
            }
        }
        workgroupBarrier();
        for (var i = thread; i < AT_ONCE * ROWS; i += THREADS) {
            let sum = sum_of_units(i % ROWS, i / ROWS * ITEMS);
            let y = product_of(gates[first + i / ROWS], sum);
            // Below 2^-100 results are 0: no device meets a number that is not normal.
            gated[first * ROWS + i] = select(y, 0.0, (bitcast<u32>(y) & 0x7fffffffu) < 0x0d800000u);
        }
        workgroupBarrier();
    }
    let out = ROWS * group.x + thread;
    if thread < ROWS && out < shape.out {
        var sum = 0.0;
        for (var expert = 0u; expert < N_CHOSEN; expert++) {
            sum = sum_of(sum, gated[expert * ROWS + thread]);
        }
        result[out] = sum;
    }
}
