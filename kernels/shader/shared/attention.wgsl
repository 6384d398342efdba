// Attention of a query head to positions of its sequence's pages, by a running softmax. A workgroup takes four pages of 32
// positions at a time, so that many keys and values are under way at once. The file of an entry point declares `pages` and
// `attention`. CPU twin: src/cpu/attention.rs.
#import attend
#import cached

const THREADS: u32 = 128u;
const AT_ONCE: u32 = 4u;  // pages: a position for each thread

var<workgroup> query: array<vec4<f32>, 64>;  // times the scale
var<workgroup> keys: array<u32, AT_ONCE>;  // where each page's are
const WIDTH: u32 = THREADS + 8u;  // without the last, threads would read one bank of memory
var<workgroup> quarters: array<f32, 4u * WIDTH>;  // (4, WIDTH): of each position's score; at last four columns of each thread's sums
var<workgroup> largest_of: array<f32, THREADS>;
var<workgroup> weights_of: array<f32, THREADS>;

fn quarters_of(at: u32) -> vec4<f32> {
    return vec4<f32>(quarters[at], quarters[WIDTH + at], quarters[2u * WIDTH + at], quarters[3u * WIDTH + at]);
}

fn put_quarters(at: u32, four: vec4<f32>) {
    for (var k = 0u; k < 4u; k++) {
        quarters[k * WIDTH + at] = four[k];
    }
}

// What a thread has of some positions: an eighth of every n_slices-th value.
struct Attended {
    largest: f32,  // score
    weight: f32,
    sum: Eight,
}

// Adds the positions from `start` to `end` to those of `before`. All threads call it together.
fn attend_to(row: u32, kv_head: u32, start: u32, end: u32, before: Attended, thread: u32) -> Attended {
    let n_kv_heads = attention.n_kv_heads;
    let columns = attention.columns;
    let eighths = columns / 8u;  // of a key or value
    let head_vectors = head_words(columns) / 4u;
    let n_slices = THREADS / eighths;
    let slice = thread / eighths;
    let eighth = thread % eighths;
    var largest = before.largest;
    var weight = before.weight;
    var sum = before.sum;
    for (var first = start; first < end; first += THREADS) {
        let n = min(THREADS, end - first);
        if thread < AT_ONCE && PAGE * thread < n {
            let page = step_page(row, first / PAGE + thread);
            keys[thread] = (2u * page * n_kv_heads + kv_head) * head_vectors;
        }
        workgroupBarrier();
        for (var page = 0u; page < AT_ONCE; page++) {
            let in_page = thread / 4u;
            let position = PAGE * page + in_page;
            var part = 0.0;
            if position < n {
                for (var i = thread % 4u; i < eighths; i += 4u) {
                    let key = eight_of(eight_at(keys[page], columns, in_page, i));
                    let product = dot(key.a, query[2u * i]) + dot(key.b, query[2u * i + 1u]);
                    part += product * scale_at(keys[page], columns, in_page, i / EIGHTHS_OF_UNIT);
                }
            }
            quarters[thread % 4u * WIDTH + position] = part;
        }
        workgroupBarrier();
        let score = select(LOWEST, dot(quarters_of(thread), vec4<f32>(1.0)), thread < n);
        largest_of[thread] = score;
        workgroupBarrier();
        for (var half = THREADS / 2u; half > 0u; half /= 2u) {
            if thread < half {
                largest_of[thread] = max(largest_of[thread], largest_of[thread + half]);
            }
            workgroupBarrier();
        }
        let now = max(largest, largest_of[0]);
        weights_of[thread] = select(0.0, exp(score - now), thread < n);
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
                    let w = select(0.0, weights_of[there], position < n);
                    let of_page = keys[there / PAGE] + n_kv_heads * head_vectors;
                    let value = eight_of(eight_at(of_page, columns, there % PAGE, eighth));
                    let scaled = w * scale_at(of_page, columns, there % PAGE, eighth / EIGHTHS_OF_UNIT);
                    weight += w;
                    sum.a += scaled * value.a;
                    sum.b += scaled * value.b;
                }
            }
        }
        workgroupBarrier();
    }
    return Attended(largest, weight, sum);
}

// Writes four of each eight columns.
fn write_half(at: u32, thread: u32) {
    let eighths = attention.columns / 8u;
    for (var i = thread; i < 4u * eighths; i += THREADS) {
        var all = 0.0;
        for (var slice = 0u; slice < THREADS / eighths; slice++) {
            all += quarters[i % 4u * WIDTH + slice * eighths + i / 4u];
        }
        result[at + i / 4u * 8u + i % 4u] = all;
    }
}

// Writes what a workgroup has of a range to `at`. All threads call it together.
fn write_range(at: u32, attended: Attended, thread: u32) {
    let columns = attention.columns;
    let eighths = columns / 8u;
    let n_slices = THREADS / eighths;
    weights_of[thread] = attended.weight;
    put_quarters(thread, attended.sum.a);
    workgroupBarrier();
    write_half(at, thread);
    workgroupBarrier();
    put_quarters(thread, attended.sum.b);
    workgroupBarrier();
    write_half(at + 4u, thread);
    if thread == 0u {
        var all = 0.0;
        for (var i = 0u; i < n_slices; i++) {
            all += weights_of[i * eighths];
        }
        result[at + columns] = attended.largest;
        result[at + columns + 1u] = all;
    }
}
