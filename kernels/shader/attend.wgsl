// Attention of a row to a range of its sequence's pages, by a running softmax. A workgroup takes up to eight query heads that share a
// key and value head: what it reads, it reads once for all of them. It takes four pages at a time: for scores a thread has one of
// their positions, for sums eight columns of some of them. Loops count to constants, so that all their loads are under way together,
// and memory is used twice: the less a workgroup has, the more run beside each other. What the ranges of a row give, attend_rows.wgsl
// joins. CPU twin: src/cpu/attention.rs.
#import attend
#import cached

@group(0) @binding(3) var<storage, read> q: array<f32>;             // (T, H, C)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;  // (T, H, splits, C + 2): sums, the largest score, their weight
@group(0) @binding(7) var<uniform> attention: Attend;
@group(0) @binding(8) var<storage, read> pages: array<vec4<u32>>;

const THREADS: u32 = 128u;
const AT_ONCE: u32 = 4u;  // pages
const SHARING: u32 = 16u;  // threads of a query's softmax
override GROUP: u32;       // query heads that share a key and value head
override FOURS: u32;       // of query heads in a workgroup: one or two
override EIGHTHS: u32;     // of a head's columns
override COLUMNS: u32 = 8u * EIGHTHS;
override N_COLUMNS: u32 = FOURS * COLUMNS;
override N_SLICES: u32 = THREADS / EIGHTHS;  // threads that have the same columns
override OF_SLICE: u32 = (THREADS + N_SLICES - 1u) / N_SLICES;

var<workgroup> queries: array<vec4<f32>, N_COLUMNS>;  // (FOURS, C): a column of four queries, times the scale
// (FOURS, positions, 4): scores of four queries, then their weights; at last (threads, 8): what threads have of the sums of a query.
var<workgroup> weights: array<f32, 1024>;
var<workgroup> keys: array<u32, AT_ONCE>;             // where those of each page are
var<workgroup> parts: array<f32, THREADS>;            // of a query's largest score, then of its weight
var<workgroup> kept: array<f32, 8>;                   // what four pages leave of the sums before them

fn four_weights(at: u32) -> vec4<f32> {
    return vec4<f32>(weights[4u * at], weights[4u * at + 1u], weights[4u * at + 2u], weights[4u * at + 3u]);
}

fn put_weights(at: u32, four: vec4<f32>) {
    for (var k = 0u; k < 4u; k++) {
        weights[4u * at + k] = four[k];
    }
}

// Products of eight columns with four queries.
fn products(key: Eight, at: u32) -> vec4<f32> {
    return key.a.x * queries[at] + key.a.y * queries[at + 1u] + key.a.z * queries[at + 2u] + key.a.w * queries[at + 3u]
        + key.b.x * queries[at + 4u] + key.b.y * queries[at + 5u] + key.b.z * queries[at + 6u] + key.b.w * queries[at + 7u];
}

// Eight columns of the sums of four queries. No loop runs over them: that would keep them in memory.
alias Sums = array<Eight, 4>;

fn add(to: ptr<function, Sums>, weight: vec4<f32>, value: Eight) {
    (*to)[0].a += weight.x * value.a;
    (*to)[0].b += weight.x * value.b;
    (*to)[1].a += weight.y * value.a;
    (*to)[1].b += weight.y * value.b;
    (*to)[2].a += weight.z * value.a;
    (*to)[2].b += weight.z * value.b;
    (*to)[3].a += weight.w * value.a;
    (*to)[3].b += weight.w * value.b;
}

fn keep(them: ptr<function, Sums>, share: vec4<f32>) {
    (*them)[0].a *= share.x;
    (*them)[0].b *= share.x;
    (*them)[1].a *= share.y;
    (*them)[1].b *= share.y;
    (*them)[2].a *= share.z;
    (*them)[2].b *= share.z;
    (*them)[3].a *= share.w;
    (*them)[3].b *= share.w;
}

// Where the sums of a query head of the row and range go.
fn result_at(group: vec3<u32>, head: u32) -> u32 {
    return ((group.y * attention.n_heads + head) * step[STEP_SPLITS] + group.z) * (COLUMNS + 2u);
}

// Writes the sums of a query to `at`, if it is there. All threads call it together.
fn write_sums(at: u32, is_there: bool, of_query: Eight, thread: u32) {
    workgroupBarrier();
    put_weights(2u * thread, of_query.a);
    put_weights(2u * thread + 1u, of_query.b);
    workgroupBarrier();
    for (var column = thread; is_there && column < COLUMNS; column += THREADS) {
        var all = 0.0;
        for (var slice = 0u; slice < N_SLICES; slice++) {
            all += weights[slice * COLUMNS + column];
        }
        result[at + column] = all;
    }
}

@compute @workgroup_size(128)
fn attend(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.y;
    let n_kv_heads = attention.n_kv_heads;
    let head_vectors = head_words(COLUMNS) / 4u;
    // The query heads.
    let workgroups = (GROUP + 4u * FOURS - 1u) / (4u * FOURS);
    let kv_head = group.x / workgroups;
    let first_of_group = group.x % workgroups * 4u * FOURS;
    let first_head = kv_head * GROUP + first_of_group;
    let n_queries = min(GROUP - first_of_group, 4u * FOURS);
    for (var i = thread; i < N_COLUMNS; i += THREADS) {
        var of_four = vec4<f32>();
        for (var k = 0u; k < 4u; k++) {
            let query = i / COLUMNS * 4u + k;
            if query < n_queries {
                of_four[k] = q[(row * attention.n_heads + first_head + query) * COLUMNS + i % COLUMNS] * attention.scale;
            }
        }
        queries[i] = of_four;
    }
    // The query whose softmax this thread shares.
    let query = thread / SHARING;
    let lane = thread % SHARING;
    var largest = LOWEST;
    var weight = 0.0;
    // The part of the sums that this thread has.
    let eighth = thread % EIGHTHS;
    let slice = thread / EIGHTHS;
    var low: Sums;
    var high: Sums;

    let start = PAGE * group.z * step[STEP_SPAN];
    let end = min(start + PAGE * step[STEP_SPAN], step_position(row) + 1u);
    for (var first = start; first < end; first += THREADS) {
        let n = min(THREADS, end - first);
        workgroupBarrier();
        if thread < AT_ONCE && PAGE * thread < n {
            let page = 2u * step_page(row, first / PAGE + thread);
            keys[thread] = (page * n_kv_heads + kv_head) * head_vectors;
        }
        workgroupBarrier();
        var low_scores = vec4<f32>(LOWEST);
        var high_scores = vec4<f32>(LOWEST);
        if thread < n {
            low_scores = vec4<f32>();
            high_scores = vec4<f32>();
            let of_page = keys[thread / PAGE];
            var low_unit = vec4<f32>();
            var high_unit = vec4<f32>();
            for (var i = 0u; i < EIGHTHS; i++) {
                let key = eight_of(eight_at(of_page, COLUMNS, thread % PAGE, i));
                low_unit += products(key, 8u * i);
                if FOURS == 2u {
                    high_unit += products(key, COLUMNS + 8u * i);
                }
                if i % EIGHTHS_OF_UNIT == EIGHTHS_OF_UNIT - 1u || i + 1u == EIGHTHS {
                    let scale = scale_at(of_page, COLUMNS, thread % PAGE, i / EIGHTHS_OF_UNIT);
                    low_scores += low_unit * scale;
                    high_scores += high_unit * scale;
                    low_unit = vec4<f32>();
                    high_unit = vec4<f32>();
                }
            }
        }
        put_weights(thread, low_scores);
        if FOURS == 2u {
            put_weights(THREADS + thread, high_scores);
        }
        workgroupBarrier();
        let of_query = query / 4u * 4u * THREADS + query % 4u;
        var most = LOWEST;
        if query < n_queries {
            for (var i = lane; i < THREADS; i += SHARING) {
                most = max(most, weights[of_query + 4u * i]);
            }
        }
        parts[thread] = most;
        workgroupBarrier();
        if query < n_queries {
            let before = largest;
            for (var i = 0u; i < SHARING; i++) {
                largest = max(largest, parts[query * SHARING + i]);
            }
            let scale = exp(before - largest);
            weight *= scale;
            for (var i = lane; i < THREADS; i += SHARING) {
                let w = select(0.0, exp(weights[of_query + 4u * i] - largest), i < n);
                weights[of_query + 4u * i] = w;
                weight += w;
            }
            if lane == 0u {
                kept[query] = scale;
            }
        }
        workgroupBarrier();
        keep(&low, vec4<f32>(kept[0], kept[1], kept[2], kept[3]));
        keep(&high, vec4<f32>(kept[4], kept[5], kept[6], kept[7]));
        if slice < N_SLICES {
            for (var k = 0u; k < OF_SLICE; k++) {
                // Beyond the last one: the last, times 0.
                let position = min(slice + k * N_SLICES, n - 1u);
                let of_page = keys[position / PAGE] + n_kv_heads * head_vectors;
                var value = eight_of(eight_at(of_page, COLUMNS, position % PAGE, eighth));
                let scale = scale_at(of_page, COLUMNS, position % PAGE, eighth / EIGHTHS_OF_UNIT);
                let factor = select(0.0, scale, slice + k * N_SLICES < n);
                value.a *= factor;
                value.b *= factor;
                add(&low, four_weights(position), value);
                if FOURS == 2u {
                    add(&high, four_weights(THREADS + position), value);
                }
            }
        }
    }
    write_sums(result_at(group, first_head), true, low[0], thread);
    write_sums(result_at(group, first_head + 1u), n_queries > 1u, low[1], thread);
    write_sums(result_at(group, first_head + 2u), n_queries > 2u, low[2], thread);
    write_sums(result_at(group, first_head + 3u), n_queries > 3u, low[3], thread);
    if FOURS == 2u {
        write_sums(result_at(group, first_head + 4u), n_queries > 4u, high[0], thread);
        write_sums(result_at(group, first_head + 5u), n_queries > 5u, high[1], thread);
        write_sums(result_at(group, first_head + 6u), n_queries > 6u, high[2], thread);
        write_sums(result_at(group, first_head + 7u), n_queries > 7u, high[3], thread);
    }
    parts[thread] = weight;
    workgroupBarrier();
    if lane == 0u && query < n_queries {
        for (var i = 1u; i < SHARING; i++) {
            weight += parts[thread + i];
        }
        let at = result_at(group, first_head + query) + COLUMNS;
        result[at] = largest;
        result[at + 1u] = weight;
    }
}
