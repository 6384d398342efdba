// Attention of one query head of a row to a range of its sequence's pages, by a running softmax. A workgroup takes 32
// positions at a time. What the ranges of a row give, attend_rows.wgsl joins. CPU twin: src/cpu/attention.rs.
#import step

struct Attend {
    n_heads: u32,     // H
    n_kv_heads: u32,  // G
    columns: u32,     // C
    scale: f32,       // of each product
}

@group(0) @binding(3) var<storage, read> q: array<vec4<f32>>;           // (T, H, C)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;      // (T, H, splits, C + 2): sums, the largest score, their weight
@group(0) @binding(7) var<uniform> attention: Attend;
@group(0) @binding(8) var<storage, read> pages: array<vec4<u32>>;       // (pages, keys and values, G, 32, C / 8), f16

const THREADS: u32 = 128u;
const PAGE: u32 = 32u;
const LOWEST: f32 = -3.4028235e38;

var<workgroup> query: array<vec4<f32>, 64>;
var<workgroup> quarters: array<f32, THREADS>;
var<workgroup> sums: array<vec2<f32>, THREADS>;

fn dot_eight(word: vec4<u32>, at: u32) -> f32 {
    let a = vec4<f32>(unpack2x16float(word.x), unpack2x16float(word.y));
    let b = vec4<f32>(unpack2x16float(word.z), unpack2x16float(word.w));
    return dot(a, query[at]) + dot(b, query[at + 1u]);
}

@compute @workgroup_size(128)
fn attend(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let head = group.x;
    let row = group.y;
    let columns = attention.columns;
    let n_heads = attention.n_heads;
    let n_kv_heads = attention.n_kv_heads;
    let kv_head = head / (n_heads / n_kv_heads);
    for (var i = thread; i < columns / 4u; i += THREADS) {
        query[i] = q[(row * n_heads + head) * (columns / 4u) + i] * attention.scale;
    }
    workgroupBarrier();

    let n_positions = step_position(row) + 1u;
    let span = step[STEP_SPAN];
    let end = min((group.z + 1u) * span, (n_positions + PAGE - 1u) / PAGE);
    let eighths = columns / 8u;      // of a key or value, 16 bytes each
    let words = columns / 2u;        // pairs of columns: a thread has one, of every n_slices-th position
    let n_slices = THREADS / words;
    let slice = thread / words;
    let word = thread % words;
    var largest = LOWEST;
    var weight = 0.0;
    var sum = vec2<f32>();
    for (var page = group.z * span; page < end; page++) {
        let at = 2u * step_page(row, page) * n_kv_heads + kv_head;
        let keys = at * PAGE * eighths;
        let values = (at + n_kv_heads) * PAGE * eighths;
        let n = min(PAGE, n_positions - page * PAGE);
        let position = thread / 4u;
        var part = 0.0;
        if position < n {
            for (var i = thread % 4u; i < eighths; i += 4u) {
                part += dot_eight(pages[keys + position * eighths + i], 2u * i);
            }
        }
        quarters[thread] = part;
        workgroupBarrier();
        if thread < PAGE {
            let first = 4u * thread;
            let score = quarters[first] + quarters[first + 1u] + quarters[first + 2u] + quarters[first + 3u];
            sums[thread].x = select(LOWEST, score, thread < n);
        }
        workgroupBarrier();
        var now = largest;
        for (var i = 0u; i < n; i++) {
            now = max(now, sums[i].x);
        }
        let kept = exp(largest - now);
        sum *= kept;
        weight *= kept;
        largest = now;
        for (var i = 0u; i < n; i++) {
            let w = exp(sums[i].x - now);
            weight += w;
            if slice < n_slices && i % n_slices == slice {
                let four = pages[values + i * eighths + word / 4u];
                sum += w * unpack2x16float(four[word % 4u]);
            }
        }
        workgroupBarrier();
    }
    sums[thread] = sum;
    workgroupBarrier();
    let at = ((row * n_heads + head) * step[STEP_SPLITS] + group.z) * (columns + 2u);
    if thread < words {
        var all = vec2<f32>();
        for (var i = 0u; i < n_slices; i++) {
            all += sums[i * words + thread];
        }
        result[at + 2u * thread] = all.x;
        result[at + 2u * thread + 1u] = all.y;
    }
    if thread == 0u {
        result[at + columns] = largest;
        result[at + columns + 1u] = weight;
    }
}
