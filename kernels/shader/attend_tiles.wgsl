// Attention in steps of many rows: neighbouring rows of a sequence, and the query heads that share a key and value head, read each
// page once. A workgroup takes such a tile of queries and a range of pages, by a running softmax. What the ranges of a row give,
// attend_rows.wgsl joins. CPU twin: src/cpu/attention.rs.
#import attend
#import cached

@group(0) @binding(3) var<storage, read> q: array<vec4<f32>>;       // (T, H, C)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;  // (T, H, splits, C + 2): sums, the largest score, their weight
@group(0) @binding(7) var<uniform> attention: Attend;
@group(0) @binding(8) var<storage, read> pages: array<vec4<u32>>;

const THREADS: u32 = 128u;
const MOST: u32 = 8u;       // queries of a thread
override GROUP: u32;        // query heads that share a key and value head
override QUERIES: u32;      // of a tile, 16 or 32
override QUADS: u32;        // C / 4: 8, 16, 32 or 64
override WIDTH: u32 = QUADS + 1u;  // of a row of the page: without the last, 32 threads would read one bank of memory
override OWN: u32 = QUERIES * QUADS / THREADS;  // queries whose sums a thread has
override N_QUADS: u32 = QUERIES * QUADS;
override N_WORDS: u32 = PAGE * WIDTH;
override N_WEIGHTS: u32 = QUERIES * PAGE / 4u;
const SCORES: u32 = PAGE + 1u;  // of a query: without the last, threads would read one bank of memory
override N_SCORES: u32 = QUERIES * SCORES;
const UNIT_QUADS: u32 = KV_UNIT / 4u;
override N_UNITS: u32 = QUADS / UNIT_QUADS;
// Quads of columns that share what they are multiplied with. A condition in the loop over them would keep it from being unrolled.
override ALIKE: u32 = select(QUADS, UNIT_QUADS, IS_Q8_0);
override N_SCALES: u32 = select(1u, N_UNITS * PAGE / 4u, IS_Q8_0);

var<workgroup> queries: array<vec4<f32>, N_QUADS>;
var<workgroup> page: array<vec2<u32>, N_WORDS>;  // keys, then values: four columns each, f16, before their scales
var<workgroup> scales: array<vec4<f32>, N_SCALES>;  // (N_UNITS, PAGE) of them
var<workgroup> scores: array<f32, N_SCORES>;  // (QUERIES, SCORES)
var<workgroup> weights: array<vec4<f32>, N_WEIGHTS>;  // (QUERIES, PAGE)
var<workgroup> parts: array<f32, THREADS>;
var<workgroup> largest: array<f32, QUERIES>;
var<workgroup> weight: array<f32, QUERIES>;
var<workgroup> kept: array<f32, QUERIES>;  // what a page leaves of the sums before it

fn four(words: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

// Copies the first `n` keys or values of a page's head; the others are not of this sequence.
fn copy_page(head: u32, n: u32, thread: u32) {
    for (var i = thread; i < PAGE * QUADS / 2u; i += THREADS) {
        let row = i / (QUADS / 2u);
        let eighth = i % (QUADS / 2u);
        let words = select(vec4<u32>(), eight_at(head, 4u * QUADS, row, eighth), row < n);
        let to = row * WIDTH + 2u * eighth;
        page[to] = words.xy;
        page[to + 1u] = words.zw;
    }
    if IS_Q8_0 {
        for (var i = thread; i < N_SCALES; i += THREADS) {
            let row = 4u * i % PAGE;
            let unit = 4u * i / PAGE;
            var of_rows = vec4<f32>();
            for (var k = 0u; k < 4u; k++) {
                of_rows[k] = select(0.0, scale_at(head, 4u * QUADS, row + k, unit), row + k < n);
            }
            scales[i] = of_rows;
        }
    }
}

@compute @workgroup_size(128)
fn attend_tiles(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let kv_head = group.x;
    let tile = step_tile(group.y);
    let n_queries = tile.y * GROUP;
    for (var i = thread; i < QUERIES * QUADS; i += THREADS) {
        let query = i / QUADS;
        var value = vec4<f32>();
        if query < n_queries {
            let head = (tile.x + query / GROUP) * attention.n_heads + kv_head * GROUP + query % GROUP;
            value = q[head * QUADS + i % QUADS] * attention.scale;
        }
        queries[i] = value;
    }
    if thread < QUERIES {
        largest[thread] = LOWEST;
        weight[thread] = 0.0;
    }
    var sums: array<vec4<f32>, MOST>;
    let quad = thread % QUADS;
    let first_query = thread / QUADS * OWN;
    // Scores of two positions and of every eighth query.
    let position = thread % 16u;
    let first_score = thread / 16u;
    // Threads that share a query's softmax.
    let sharing = THREADS / QUERIES;
    let own_query = thread / sharing;
    let share = PAGE / sharing;

    let last = step_position(tile.x + tile.y - 1u);
    let span = step[STEP_SPAN];
    let end = min((group.z + 1u) * span, last / PAGE + 1u);
    let head_vectors = head_words(4u * QUADS) / 4u;
    for (var number = group.z * span; number < end; number++) {
        let keys = (2u * step_page(tile.x, number) * attention.n_kv_heads + kv_head) * head_vectors;
        let n = min(PAGE, last + 1u - PAGE * number);
        workgroupBarrier();
        copy_page(keys, n, thread);
        workgroupBarrier();
        var low = vec4<f32>();
        var high = vec4<f32>();
        var low_scaled = vec4<f32>();
        var high_scaled = vec4<f32>();
        for (var start = 0u; start < QUADS; start += ALIKE) {
            for (var column = start; column < start + ALIKE; column++) {
                let a = four(page[position * WIDTH + column]);
                let b = four(page[(position + 16u) * WIDTH + column]);
                for (var k = 0u; k < QUERIES / 8u; k++) {
                    let query = queries[(first_score + 8u * k) * QUADS + column];
                    low[k] += dot(a, query);
                    high[k] += dot(b, query);
                }
            }
            if IS_Q8_0 {
                let of_unit = start / UNIT_QUADS * (PAGE / 4u) + position / 4u;
                low_scaled += low * scales[of_unit][position % 4u];
                high_scaled += high * scales[of_unit + 4u][position % 4u];
                low = vec4<f32>();
                high = vec4<f32>();
            }
        }
        if IS_Q8_0 {
            low = low_scaled;
            high = high_scaled;
        }
        for (var k = 0u; k < QUERIES / 8u; k++) {
            let of_query = (first_score + 8u * k) * SCORES;
            scores[of_query + position] = low[k];
            scores[of_query + position + 16u] = high[k];
        }
        workgroupBarrier();
        let n_before = step_position(tile.x + min(own_query / GROUP, tile.y - 1u)) + 1u;
        let first = thread % sharing * share;
        var most = LOWEST;
        for (var i = first; i < first + share; i++) {
            if PAGE * number + i < n_before {
                most = max(most, scores[own_query * SCORES + i]);
            }
        }
        parts[thread] = most;
        copy_page(keys + attention.n_kv_heads * head_vectors, n, thread);
        workgroupBarrier();
        let before = largest[own_query];
        var now = before;
        for (var i = 0u; i < sharing; i++) {
            now = max(now, parts[own_query * sharing + i]);
        }
        var sum = 0.0;
        for (var i = first; i < first + share; i += 4u) {
            var of_four = vec4<f32>();
            for (var k = 0u; k < 4u; k++) {
                let score = scores[own_query * SCORES + i + k];
                of_four[k] = select(0.0, exp(score - now), PAGE * number + i + k < n_before);
                sum += of_four[k];
            }
            weights[(own_query * PAGE + i) / 4u] = of_four;
        }
        workgroupBarrier();
        parts[thread] = sum;
        workgroupBarrier();
        if thread % sharing == 0u {
            for (var i = 1u; i < sharing; i++) {
                sum += parts[thread + i];
            }
            let scale = exp(before - now);
            kept[own_query] = scale;
            weight[own_query] = weight[own_query] * scale + sum;
            largest[own_query] = now;
        }
        workgroupBarrier();
        for (var i = 0u; i < OWN; i++) {
            sums[i] *= kept[first_query + i];
        }
        for (var p = 0u; p < PAGE / 4u; p++) {
            let at = 4u * p * WIDTH + quad;
            let a = four(page[at]);
            let b = four(page[at + WIDTH]);
            let c = four(page[at + 2u * WIDTH]);
            let d = four(page[at + 3u * WIDTH]);
            for (var i = 0u; i < OWN; i++) {
                var w = weights[(first_query + i) * (PAGE / 4u) + p];
                if IS_Q8_0 {
                    w *= scales[quad / UNIT_QUADS * (PAGE / 4u) + p];
                }
                sums[i] += w.x * a + w.y * b + w.z * c + w.w * d;
            }
        }
    }
    workgroupBarrier();
    for (var i = 0u; i < OWN; i++) {
        let query = first_query + i;
        if query >= n_queries {
            continue;
        }
        let head = (tile.x + query / GROUP) * attention.n_heads + kv_head * GROUP + query % GROUP;
        let at = (head * step[STEP_SPLITS] + group.z) * (4u * QUADS + 2u);
        for (var column = 0u; column < 4u; column++) {
            result[at + 4u * quad + column] = sums[i][column];
        }
        if quad == 0u {
            result[at + 4u * QUADS] = largest[query];
            result[at + 4u * QUADS + 1u] = weight[query];
        }
    }
}
