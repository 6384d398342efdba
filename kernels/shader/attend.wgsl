// Attention of rows to ranges of their sequence's pages: neighbouring rows of a sequence, and the query heads that share a key and value
// head, read each page once. A workgroup takes such a tile of queries, and one range, or all of them in turn. What it gives of ranges,
// attend_rows.wgsl joins. CPU twin: src/cpu/attention.rs.
#import attend
#import cached

@group(0) @binding(3) var<storage, read> q: array<vec4<f32>>;       // (T, H, C)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;  // (T, H, slots, C + 2): sums, the largest score, their weight
@group(0) @binding(7) var<uniform> attention: Attend;
@group(0) @binding(8) var<storage, read> pages: array<vec4<u32>>;

const THREADS: u32 = 128u;
const MOST: u32 = 8u;       // queries of a thread
const FOURS: u32 = 8u;      // of positions in a page
override GROUP: u32;        // query heads that share a key and value head
override HEADS: u32;        // of them in a tile
override QUERIES: u32;      // of a tile, 8 or 16
override QUADS: u32;        // C / 4, up to 64
override WIDTH: u32 = QUADS + 1u;  // of a row of the page: without the last, 32 threads would read one bank of memory
override TEAMS: u32 = THREADS / QUADS;                // of threads that have the sums of the same queries
override OWN: u32 = (QUERIES + TEAMS - 1u) / TEAMS;   // queries of a team
override N_QUADS: u32 = QUERIES * QUADS;
override N_WORDS: u32 = PAGE * WIDTH;
override N_EIGHTHS: u32 = PAGE * QUADS / 2u;  // of columns, of all positions of a page
override N_LOADS: u32 = (N_EIGHTHS + THREADS - 1u) / THREADS;  // up to 8
override N_FOURS: u32 = QUERIES * FOURS;
const SCORES: u32 = PAGE + 1u;  // of a query: without the last, threads would read one bank of memory
override N_SCORES: u32 = QUERIES * SCORES;
const UNIT_QUADS: u32 = KV_UNIT / 4u;
override N_UNITS: u32 = QUADS / UNIT_QUADS;
override N_SCALES: u32 = select(1u, N_UNITS * PAGE / 4u, IS_Q8_0);

var<workgroup> queries: array<vec4<f32>, N_QUADS>;
var<workgroup> page: array<vec2<u32>, N_WORDS>;     // keys, then values: four columns each, f16, before their scales
var<workgroup> scales: array<vec4<f32>, N_SCALES>;  // (N_UNITS, PAGE) of them
var<workgroup> scores: array<f32, N_SCORES>;        // (QUERIES, SCORES)
var<workgroup> weights: array<vec4<f32>, N_FOURS>;  // (QUERIES, PAGE)
var<workgroup> largest_of: array<f32, N_FOURS>;     // score of four positions
var<workgroup> weight_of: array<f32, N_FOURS>;
var<workgroup> of_range: array<Weighed, QUERIES>;
var<workgroup> of_row: array<Weighed, QUERIES>;
var<workgroup> shares: array<Shares, QUERIES>;      // of what was before a page or range, and of it

fn four(words: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

// Two quads of some positions of a page's head, of `n` that are of this sequence.
alias Words = array<vec4<u32>, 8>;

fn load_page(head: u32, n: u32, thread: u32) -> Words {
    var words: Words;
    for (var i = 0u; i < N_LOADS; i++) {
        let at = min(i * THREADS + thread, N_EIGHTHS - 1u);
        let position = at / (QUADS / 2u);
        words[i] = select(vec4<u32>(), eight_at(head, 4u * QUADS, position, at % (QUADS / 2u)), position < n);
    }
    return words;
}

// Stores what was loaded, and loads scales.
fn store_page(words: Words, head: u32, n: u32, thread: u32) {
    for (var i = 0u; i < N_LOADS; i++) {
        let at = i * THREADS + thread;
        if N_EIGHTHS % THREADS == 0u || at < N_EIGHTHS {
            let to = at / (QUADS / 2u) * WIDTH + 2u * (at % (QUADS / 2u));
            page[to] = words[i].xy;
            page[to + 1u] = words[i].zw;
        }
    }
    if IS_Q8_0 {
        for (var i = thread; i < N_SCALES; i += THREADS) {
            let position = 4u * i % PAGE;
            let unit = 4u * i / PAGE;
            var of_four = vec4<f32>();
            for (var k = 0u; k < 4u; k++) {
                of_four[k] = select(0.0, scale_at(head, 4u * QUADS, position + k, unit), position + k < n);
            }
            scales[i] = of_four;
        }
    }
}

// Fills the scores of the page's keys: of two positions and of every eighth query each thread.
fn score_page(thread: u32) {
    let position = thread % 16u;
    let first = thread / 16u;
    var low_score: array<f32, 2>;
    var high_score: array<f32, 2>;
    for (var quarter = 0u; quarter < 4u; quarter++) {
        var low: array<vec4<f32>, 2>;
        var high: array<vec4<f32>, 2>;
        for (var eighth = quarter; eighth < QUADS / 2u; eighth += 4u) {
            var low_eighth: array<vec4<f32>, 2>;
            var high_eighth: array<vec4<f32>, 2>;
            if !IS_Q8_0 {
                low_eighth = low;
                high_eighth = high;
            }
            for (var column = 2u * eighth; column < 2u * eighth + 2u; column++) {
                let a = four(page[position * WIDTH + column]);
                let b = four(page[(position + 16u) * WIDTH + column]);
                for (var k = 0u; k < QUERIES / 8u; k++) {
                    let query = queries[(first + 8u * k) * QUADS + column];
                    low_eighth[k] = fma(a, query, low_eighth[k]);
                    high_eighth[k] = fma(b, query, high_eighth[k]);
                }
            }
            let of_unit = eighth / EIGHTHS_OF_UNIT * (PAGE / 4u) + position / 4u;
            for (var k = 0u; k < QUERIES / 8u; k++) {
                if IS_Q8_0 {
                    low[k] = fma(low_eighth[k], vec4<f32>(scales[of_unit][position % 4u]), low[k]);
                    high[k] = fma(high_eighth[k], vec4<f32>(scales[of_unit + 4u][position % 4u]), high[k]);
                } else {
                    low[k] = low_eighth[k];
                    high[k] = high_eighth[k];
                }
            }
        }
        for (var k = 0u; k < QUERIES / 8u; k++) {
            low_score[k] += sum_of_quarter(low[k]);
            high_score[k] += sum_of_quarter(high[k]);
        }
    }
    for (var k = 0u; k < QUERIES / 8u; k++) {
        let of_query = (first + 8u * k) * SCORES + position;
        scores[of_query] = low_score[k];
        scores[of_query + 16u] = high_score[k];
    }
}

fn largest_of_page(query: u32) -> f32 {
    var most = LOWEST;
    for (var i = 0u; i < FOURS; i++) {
        most = max(most, largest_of[query * FOURS + i]);
    }
    return most;
}

// Four columns of the sums of a thread's queries.
alias Sums = array<vec4<f32>, MOST>;

// Those of the page's values.
fn sums_of_page(quad: u32, first_query: u32) -> Sums {
    var sums: Sums;
    for (var quarter = 0u; quarter < 4u; quarter++) {
        var of_quarter: Sums;
        for (var p = 2u * quarter; p < 2u * quarter + 2u; p++) {
            let at = 4u * p * WIDTH + quad;
            let a = four(page[at]);
            let b = four(page[at + WIDTH]);
            let c = four(page[at + 2u * WIDTH]);
            let d = four(page[at + 3u * WIDTH]);
            for (var i = 0u; i < OWN; i++) {
                var w = weights[min(first_query + i, QUERIES - 1u) * FOURS + p];
                if IS_Q8_0 {
                    w *= scales[quad / UNIT_QUADS * (PAGE / 4u) + p];
                }
                of_quarter[i] = fma(vec4<f32>(w.y), b, fma(vec4<f32>(w.x), a, of_quarter[i]));
                of_quarter[i] = fma(vec4<f32>(w.w), d, fma(vec4<f32>(w.z), c, of_quarter[i]));
            }
        }
        for (var i = 0u; i < OWN; i++) {
            sums[i] += of_quarter[i];
        }
    }
    return sums;
}

@compute @workgroup_size(128)
fn attend(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let n_parts = (GROUP + HEADS - 1u) / HEADS;
    let kv_head = group.x / n_parts;
    let first_head = group.x % n_parts * HEADS;  // of the group
    let tile = step_tile(group.y);
    for (var i = thread; i < QUERIES * QUADS; i += THREADS) {
        let query = i / QUADS;
        let head = first_head + query % HEADS;
        var value = vec4<f32>();
        if query / HEADS < tile.n_rows && head < GROUP {
            let row = tile.first_row + query / HEADS;
            value = q[(row * attention.n_heads + kv_head * GROUP + head) * QUADS + i % QUADS] * attention.scale;
        }
        queries[i] = value;
    }
    if thread < QUERIES {
        of_range[thread] = Weighed(LOWEST, 0.0);
        of_row[thread] = Weighed(LOWEST, 0.0);
    }
    let quad = thread % QUADS;
    let first_query = thread / QUADS * OWN;
    var sums: Sums;  // of a range
    var sums_of_row: Sums;

    let last = step_position(tile.first_row + tile.n_rows - 1u);
    let n_ranges = step[STEP_RANGES];
    let end = min((group.z + 1u) * n_ranges * tile.span, last / PAGE + 1u);
    let head_vectors = head_words(4u * QUADS) / 4u;
    for (var number = group.z * n_ranges * tile.span; number < end; number++) {
        let keys = (2u * step_page(tile.first_row, number) * attention.n_kv_heads + kv_head) * head_vectors;
        let n = min(PAGE, last + 1u - PAGE * number);
        let values = keys + attention.n_kv_heads * head_vectors;
        let words_of_keys = load_page(keys, n, thread);
        // On their way while keys have scores.
        let words_of_values = load_page(values, n, thread);
        store_page(words_of_keys, keys, n, thread);
        workgroupBarrier();
        score_page(thread);
        workgroupBarrier();
        for (var i = thread; i < N_FOURS; i += THREADS) {
            let n_before = step_position(tile.first_row + min(i / FOURS / HEADS, tile.n_rows - 1u)) + 1u;
            var most = LOWEST;
            for (var k = 0u; k < 4u; k++) {
                let position = i % FOURS * 4u + k;
                if PAGE * number + position < n_before {
                    most = max(most, scores[i / FOURS * SCORES + position]);
                }
            }
            largest_of[i] = most;
        }
        store_page(words_of_values, values, n, thread);
        workgroupBarrier();
        for (var i = thread; i < N_FOURS; i += THREADS) {
            let n_before = step_position(tile.first_row + min(i / FOURS / HEADS, tile.n_rows - 1u)) + 1u;
            let most = largest_of_page(i / FOURS);
            var of_four = vec4<f32>();
            var sum = 0.0;
            for (var k = 0u; k < 4u; k++) {
                let position = i % FOURS * 4u + k;
                let score = scores[i / FOURS * SCORES + position];
                of_four[k] = select(0.0, exp(score - most), PAGE * number + position < n_before);
                sum += of_four[k];
            }
            weights[i] = of_four;
            weight_of[i] = sum;
        }
        workgroupBarrier();
        if thread < QUERIES {
            var sum = 0.0;
            for (var i = 0u; i < FOURS; i++) {
                sum += weight_of[thread * FOURS + i];
            }
            let weighed = Weighed(largest_of_page(thread), sum);
            let of_both = shares_of(of_range[thread].largest, weighed.largest);
            of_range[thread] = joined_weights(of_range[thread], weighed, of_both);
            shares[thread] = of_both;
        }
        let of_page = sums_of_page(quad, first_query);
        workgroupBarrier();
        for (var i = 0u; i < OWN; i++) {
            sums[i] = joined_four(sums[i], of_page[i], shares[min(first_query + i, QUERIES - 1u)]);
        }
        if (number + 1u) % tile.span == 0u || number + 1u == end {
            workgroupBarrier();
            if thread < QUERIES {
                let of_both = shares_of(of_row[thread].largest, of_range[thread].largest);
                of_row[thread] = joined_weights(of_row[thread], of_range[thread], of_both);
                of_range[thread] = Weighed(LOWEST, 0.0);
                shares[thread] = of_both;
            }
            workgroupBarrier();
            for (var i = 0u; i < OWN; i++) {
                let of_both = shares[min(first_query + i, QUERIES - 1u)];
                sums_of_row[i] = joined_four(sums_of_row[i], sums[i], of_both);
                sums[i] = vec4<f32>();
            }
        }
    }
    workgroupBarrier();
    for (var i = 0u; i < OWN; i++) {
        let query = first_query + i;
        let head = first_head + query % HEADS;
        if query >= QUERIES || query / HEADS >= tile.n_rows || head >= GROUP {
            continue;
        }
        let of_rows = (tile.first_row + query / HEADS) * attention.n_heads + kv_head * GROUP + head;
        let at = (of_rows * step[STEP_SLOTS] + group.z) * (4u * QUADS + 2u);
        for (var column = 0u; column < 4u; column++) {
            result[at + 4u * quad + column] = sums_of_row[i][column];
        }
        if quad == 0u {
            result[at + 4u * QUADS] = of_row[query].largest;
            result[at + 4u * QUADS + 1u] = of_row[query].weight;
        }
    }
}
