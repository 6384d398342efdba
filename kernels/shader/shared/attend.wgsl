// What the kernels of attention share: what they are told, and the order in which they add, which depends on nothing but the row, so that
// it has the same bits in any step. A score has four quarters, one of every fourth eight columns, and a quarter has four sums, one of
// every fourth column. Scores of a page have weights by the page's largest, which are added by fours; values are added by quarters of
// the page. Pages join one after another to a range of the row's pages, and ranges to the row. Products are added by fma: a compiler
// that joins them by its own choice may do so in one kernel and not in another.
// The struct is src/engine/gpu/pass/structs.rs's, checked against it at build time. CPU twin: src/cpu/attention.rs.
#import step
#import pages

struct Attend {
    n_heads: u32,     // H
    n_kv_heads: u32,  // G
    columns: u32,     // C
    scale: f32,       // of each product
}

const LOWEST: f32 = -3.4028235e38;

fn sum_of_quarter(four: vec4<f32>) -> f32 {
    return (four.x + four.y) + (four.z + four.w);
}

// Of some positions: the largest score, and the weights' sum.
struct Weighed {
    largest: f32,
    weight: f32,
}

// What those of two lots of positions are multiplied with when they join.
struct Shares {
    before: f32,
    after: f32,
}

fn shares_of(before: f32, after: f32) -> Shares {
    let smaller = exp(min(before, after) - max(before, after));
    return Shares(select(smaller, 1.0, before >= after), select(smaller, 1.0, after >= before));
}

fn joined_weights(before: Weighed, after: Weighed, shares: Shares) -> Weighed {
    let weight = fma(shares.after, after.weight, before.weight * shares.before);
    return Weighed(max(before.largest, after.largest), weight);
}

fn joined_sum(before: f32, after: f32, shares: Shares) -> f32 {
    return fma(shares.after, after, before * shares.before);
}

fn joined_four(before: vec4<f32>, after: vec4<f32>, shares: Shares) -> vec4<f32> {
    return fma(vec4<f32>(shares.after), after, before * shares.before);
}
