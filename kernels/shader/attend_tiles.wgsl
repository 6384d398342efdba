// Attention in steps of many rows: neighbouring rows of a sequence, and the query heads that share a key and value head, read each
// page once. A workgroup takes such a tile of queries and a range of pages, by a running softmax. What the ranges of a row give,
// attend_rows.wgsl joins. CPU twin: src/cpu/attention.rs.
#import attend

@group(0) @binding(3) var<storage, read> q: array<vec4<f32>>;       // (T, H, C)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;  // (T, H, splits, C + 2): sums, the largest score, their weight
@group(0) @binding(7) var<uniform> attention: Attend;
@group(0) @binding(8) var<storage, read> pages: array<vec4<u32>>;   // (pages, keys and values, G, 32, C / 8), f16

const THREADS: u32 = 128u;
const MOST: u32 = 8u;       // queries of a thread
override GROUP: u32;        // query heads that share a key and value head
override QUERIES: u32;      // of a tile, 16 or 32
override QUADS: u32;        // C / 4: 8, 16, 32 or 64
override WIDTH: u32 = QUADS + 1u;  // of a row of the page: without the last, 32 threads would read one bank of memory
override OWN: u32 = QUERIES * QUADS / THREADS;  // queries whose sums a thread has

var<workgroup> queries: array<vec4<f32>, QUERIES * QUADS>;
var<workgroup> page: array<vec2<u32>, PAGE * WIDTH>;  // keys, then values: four columns each, f16
var<workgroup> scores: array<f32, QUERIES * PAGE>;
var<workgroup> parts: array<f32, THREADS>;
var<workgroup> largest: array<f32, QUERIES>;
var<workgroup> weight: array<f32, QUERIES>;
var<workgroup> kept: array<f32, QUERIES>;  // what a page leaves of the sums before it

fn four(words: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

// Copies a page of keys or values, which starts at `at`.
fn copy_page(at: u32, thread: u32) {
    for (var i = thread; i < PAGE * QUADS / 2u; i += THREADS) {
        let words = pages[at + i];
        let to = i / (QUADS / 2u) * WIDTH + i % (QUADS / 2u) * 2u;
        page[to] = words.xy;
        page[to + 1u] = words.zw;
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
    let position = thread % PAGE;
    let first_score = thread / PAGE;
    // Four threads have the scores of a query between them, two where there are more queries than that.
    let sharing = THREADS / QUERIES;
    let own_query = thread / sharing;
    let share = PAGE / sharing;

    let last = step_position(tile.x + tile.y - 1u);
    let span = step[STEP_SPAN];
    let end = min((group.z + 1u) * span, last / PAGE + 1u);
    for (var number = group.z * span; number < end; number++) {
        let keys = (2u * step_page(tile.x, number) * attention.n_kv_heads + kv_head) * PAGE * (QUADS / 2u);
        workgroupBarrier();
        copy_page(keys, thread);
        workgroupBarrier();
        for (var i = 0u; i < QUERIES / 16u; i++) {
            // Four queries at once: each key is read once for all of them.
            let a = first_score + 16u * i;
            var score = vec4<f32>();
            for (var column = 0u; column < QUADS; column++) {
                let key = four(page[position * WIDTH + column]);
                score += vec4<f32>(
                    dot(key, queries[a * QUADS + column]),
                    dot(key, queries[(a + 4u) * QUADS + column]),
                    dot(key, queries[(a + 8u) * QUADS + column]),
                    dot(key, queries[(a + 12u) * QUADS + column]),
                );
            }
            for (var k = 0u; k < 4u; k++) {
                scores[(a + 4u * k) * PAGE + position] = score[k];
            }
        }
        workgroupBarrier();
        let n_before = step_position(tile.x + min(own_query / GROUP, tile.y - 1u)) + 1u;
        let first = thread % sharing * share;
        var most = LOWEST;
        for (var i = first; i < first + share; i++) {
            if PAGE * number + i < n_before {
                most = max(most, scores[own_query * PAGE + i]);
            }
        }
        parts[thread] = most;
        copy_page(keys + attention.n_kv_heads * PAGE * (QUADS / 2u), thread);
        workgroupBarrier();
        let before = largest[own_query];
        var now = before;
        for (var i = 0u; i < sharing; i++) {
            now = max(now, parts[own_query * sharing + i]);
        }
        var sum = 0.0;
        for (var i = first; i < first + share; i++) {
            let at = own_query * PAGE + i;
            let w = select(0.0, exp(scores[at] - now), PAGE * number + i < n_before);
            scores[at] = w;
            sum += w;
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
        // What lies beyond the last row's position is not of this sequence.
        for (var p = 0u; p < min(PAGE, last + 1u - PAGE * number); p++) {
            let value = four(page[p * WIDTH + quad]);
            for (var i = 0u; i < OWN; i++) {
                sums[i] += scores[(first_query + i) * PAGE + p] * value;
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
