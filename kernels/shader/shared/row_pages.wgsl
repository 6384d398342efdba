// Attention of one query head of a row to some pages at a time, the row's own among them, whose key and value are not read from the
// cache. The file of an entry point declares `pages` and `attention`, and fills `query`, `own` and `own_scales`.
#import heads
#import attend
#import cached

const THREADS: u32 = 128u;
const AT_ONCE: u32 = 2u;  // pages
const POSITIONS: u32 = AT_ONCE * PAGE;
const QUARTERS: u32 = 4u * AT_ONCE;
override EIGHTHS: u32;    // of a head's columns: known, so that all of a thread's loads are under way at once
override N_SUMS: u32 = QUARTERS * 8u * EIGHTHS;
override N_OWN: u32 = (8u * EIGHTHS + THREADS - 1u) / THREADS;  // columns of a thread
override N_TEAMS: u32 = THREADS / EIGHTHS;  // of threads that have the values of the same positions

var<workgroup> query: array<vec4<f32>, 64>;     // times the scale
var<workgroup> own: array<vec2<u32>, THREADS>;  // the row's key, from the middle on its value, in f16, before their scales
var<workgroup> own_scales: array<f32, 16>;      // of each unit
var<workgroup> keys: array<u32, AT_ONCE>;       // where each page's are
var<workgroup> quarters: array<f32, 256>;       // (4, POSITIONS): of each position's score
var<workgroup> scores: array<f32, POSITIONS>;
var<workgroup> weights_of: array<f32, POSITIONS>;
var<workgroup> fours: array<f32, 16>;           // sums of four positions' weights
var<workgroup> largest: array<f32, AT_ONCE>;    // score of a page
var<workgroup> sums_of: array<f32, N_SUMS>;     // (QUARTERS, C): of the values of a quarter of a page

fn own_eighth(i: u32) -> vec4<u32> {
    return vec4<u32>(own[2u * i], own[2u * i + 1u]);
}

// A quarter's sums, and the products of eight columns of a key, from 8 `i` on.
fn with_eighth(sum: vec4<f32>, word: vec4<u32>, i: u32, scale: f32) -> vec4<f32> {
    let key = eight_of(word);
    if IS_Q8_0 {
        let of_eighth = fma(key.b, query[2u * i + 1u], fma(key.a, query[2u * i], vec4<f32>()));
        return fma(of_eighth, vec4<f32>(scale), sum);
    }
    return fma(key.b, query[2u * i + 1u], fma(key.a, query[2u * i], sum));
}

fn with_value(sum: Eight, word: vec4<u32>, weight: f32) -> Eight {
    let value = eight_of(word);
    return Eight(fma(vec4<f32>(weight), value.a, sum.a), fma(vec4<f32>(weight), value.b, sum.b));
}

// Fills `largest`, `fours` and `sums_of` of up to AT_ONCE pages from number `first` on, up to `end`, and to `position`, the row's own.
// All threads call it together.
fn attend_to_pages(first: u32, end: u32, position: u32, kv_head: u32, thread: u32) {
    let head_vectors = head_words(8u * EIGHTHS) / 4u;
    if thread < AT_ONCE && first + thread < end {
        keys[thread] = (2u * step_page(0u, first + thread) * attention.n_kv_heads + kv_head) * head_vectors;
    }
    workgroupBarrier();
    // A quarter of a position's score, in each page. What is read beyond the row is not used: with conditions, loads would wait.
    let quarter = thread % 4u;
    let in_page = thread / 4u;
    for (var page = 0u; page < AT_ONCE; page++) {
        let of_page = keys[min(page, end - first - 1u)];
        var sum = vec4<f32>();
        for (var i = quarter; i < EIGHTHS; i += 4u) {
            let word = eight_at(of_page, 8u * EIGHTHS, in_page, i);
            sum = with_eighth(sum, word, i, scale_at(of_page, 8u * EIGHTHS, in_page, i / EIGHTHS_OF_UNIT));
        }
        if PAGE * (first + page) + in_page == position {
            sum = vec4<f32>();
            for (var i = quarter; i < EIGHTHS; i += 4u) {
                sum = with_eighth(sum, own_eighth(i), i, own_scales[i / EIGHTHS_OF_UNIT]);
            }
        }
        quarters[quarter * POSITIONS + PAGE * page + in_page] = sum_of_quarter(sum);
    }
    workgroupBarrier();
    let here = PAGE * first + thread;
    let is_there = here <= position && here < PAGE * end;
    var score = LOWEST;
    if thread < POSITIONS {
        if is_there {
            score = 0.0;
            for (var i = 0u; i < 4u; i++) {
                score += quarters[i * POSITIONS + thread];
            }
        }
        scores[thread] = score;
    }
    workgroupBarrier();
    if thread < POSITIONS {
        let page = thread / PAGE;
        var most = LOWEST;
        for (var i = 0u; i < PAGE; i++) {
            most = max(most, scores[PAGE * page + i]);
        }
        weights_of[thread] = select(0.0, exp(score - most), is_there);
        if thread % PAGE == 0u {
            largest[page] = most;
        }
    }
    workgroupBarrier();
    if thread < POSITIONS / 4u {
        var sum = 0.0;
        for (var k = 0u; k < 4u; k++) {
            sum += weights_of[4u * thread + k];
        }
        fours[thread] = sum;
    }
    let eighth = thread % EIGHTHS;
    let unit = eighth / EIGHTHS_OF_UNIT;
    for (var part = thread / EIGHTHS; part < QUARTERS && first + part / 4u < end; part += N_TEAMS) {
        let start = PAGE * first + PAGE / 4u * part;
        var sum: Eight;
        if start < position {
            for (var i = 0u; i < PAGE / 4u; i++) {
                // Beyond those before the row: the last of these, with weight 0.
                let at = min(start + i, position - 1u) - PAGE * first;
                let of_page = keys[at / PAGE] + attention.n_kv_heads * head_vectors;
                let word = eight_at(of_page, 8u * EIGHTHS, at % PAGE, eighth);
                let weight = select(0.0, weights_of[at], start + i < position);
                sum = with_value(sum, word, weight * scale_at(of_page, 8u * EIGHTHS, at % PAGE, unit));
            }
        }
        if start <= position && position < start + PAGE / 4u {
            let scale = own_scales[MOST_COLUMNS / KV_UNIT + unit];
            sum = with_value(sum, own_eighth(32u + eighth), weights_of[position - PAGE * first] * scale);
        }
        for (var i = 0u; i < 4u; i++) {
            sums_of[8u * (part * EIGHTHS + eighth) + i] = sum.a[i];
            sums_of[8u * (part * EIGHTHS + eighth) + 4u + i] = sum.b[i];
        }
    }
    workgroupBarrier();
}

fn weighed_page(page: u32) -> Weighed {
    var sum = 0.0;
    for (var i = 0u; i < PAGE / 4u; i++) {
        sum += fours[PAGE / 4u * page + i];
    }
    return Weighed(largest[page], sum);
}

// Column `column` of the values' sum.
fn sum_of_page(page: u32, column: u32) -> f32 {
    var sum = 0.0;
    for (var quarter = 0u; quarter < 4u; quarter++) {
        sum += sums_of[8u * EIGHTHS * (4u * page + quarter) + column];
    }
    return sum;
}
