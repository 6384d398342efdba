// Attention of one query head of a row to a range of its sequence's pages, by a running softmax. A workgroup takes four pages of
// 32 positions at a time, so that many keys and values are under way at once. What the ranges of a row give, attend_rows.wgsl
// joins. CPU twin: src/cpu/attention.rs.
#import step
#import attention

const THREADS: u32 = 128u;
const AT_ONCE: u32 = 4u;  // pages: a position for each thread

var<workgroup> query: array<vec4<f32>, 64>;
var<workgroup> keys: array<u32, AT_ONCE>;  // where each page's are
var<workgroup> quarters: array<vec4<f32>, THREADS>;  // of each position's score
var<workgroup> largest_of: array<f32, THREADS>;
var<workgroup> weights: array<f32, THREADS>;
var<workgroup> sums: array<vec4<f32>, 256>;

struct Eight {
    a: vec4<f32>,
    b: vec4<f32>,
}

fn eight_at(at: u32) -> Eight {
    let word = pages[at];
    return Eight(
        vec4<f32>(unpack2x16float(word.x), unpack2x16float(word.y)),
        vec4<f32>(unpack2x16float(word.z), unpack2x16float(word.w)),
    );
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

    let n_positions = step_position(row) + 1u;
    let span = step[STEP_SPAN];
    let end = min(PAGE * (group.z + 1u) * span, n_positions);
    let eighths = columns / 8u;        // of a key or value, 16 bytes each
    let to_values = n_kv_heads * PAGE * eighths;
    let n_slices = THREADS / eighths;  // a thread has an eighth of every n_slices-th value
    let slice = thread / eighths;
    let eighth = thread % eighths;
    var largest = LOWEST;
    var weight = 0.0;
    var sum = Eight();
    for (var first = PAGE * group.z * span; first < end; first += THREADS) {
        let n = min(THREADS, end - first);
        if thread < AT_ONCE && PAGE * thread < n {
            let page = step_page(row, first / PAGE + thread);
            keys[thread] = (2u * page * n_kv_heads + kv_head) * PAGE * eighths;
        }
        workgroupBarrier();
        for (var page = 0u; page < AT_ONCE; page++) {
            let in_page = thread / 4u;
            let position = PAGE * page + in_page;
            var part = 0.0;
            if position < n {
                for (var i = thread % 4u; i < eighths; i += 4u) {
                    let key = eight_at(keys[page] + in_page * eighths + i);
                    part += dot(key.a, query[2u * i]) + dot(key.b, query[2u * i + 1u]);
                }
            }
            quarters[position][thread % 4u] = part;
        }
        workgroupBarrier();
        let score = select(LOWEST, dot(quarters[thread], vec4<f32>(1.0)), thread < n);
        largest_of[thread] = score;
        workgroupBarrier();
        for (var half = THREADS / 2u; half > 0u; half /= 2u) {
            if thread < half {
                largest_of[thread] = max(largest_of[thread], largest_of[thread + half]);
            }
            workgroupBarrier();
        }
        let now = max(largest, largest_of[0]);
        weights[thread] = select(0.0, exp(score - now), thread < n);
        workgroupBarrier();
        let kept = exp(largest - now);
        largest = now;
        weight *= kept;
        sum.a *= kept;
        sum.b *= kept;
        if slice < n_slices {
            for (var i = slice; i < n; i += 4u * n_slices) {
                for (var k = 0u; k < 4u; k++) {
                    // Beyond the last one: the last, with weight 0.
                    let position = i + k * n_slices;
                    let there = min(position, n - 1u);
                    let w = select(0.0, weights[there], position < n);
                    let at = keys[there / PAGE] + to_values + there % PAGE * eighths + eighth;
                    let value = eight_at(at);
                    weight += w;
                    sum.a += w * value.a;
                    sum.b += w * value.b;
                }
            }
        }
        workgroupBarrier();
    }
    sums[2u * thread] = sum.a;
    sums[2u * thread + 1u] = sum.b;
    weights[thread] = weight;
    workgroupBarrier();
    let at = ((row * n_heads + head) * step[STEP_SPLITS] + group.z) * (columns + 2u);
    for (var column = thread; column < columns; column += THREADS) {
        var all = 0.0;
        for (var i = 0u; i < n_slices; i++) {
            all += sums[2u * i * eighths + column / 4u][column % 4u];
        }
        result[at + column] = all;
    }
    if thread == 0u {
        var all = 0.0;
        for (var i = 0u; i < n_slices; i++) {
            all += weights[i * eighths];
        }
        result[at + columns] = largest;
        result[at + columns + 1u] = all;
    }
}
