// The K experts with the largest logits of a row, and the terms of their gates: a softmax. The file of an entry point declares
// `logits`, the parts of logits (T, N_PARTS, N_EXPERTS). CPU twin: src/cpu/router.rs, route.

override N_EXPERTS: u32;  // E
override N_PARTS: u32;    // of each logit, which are added: known, so that all are under way at once
override SHARES: u32;     // threads that share the comparisons of an expert
override SHARE: u32 = (N_EXPERTS + SHARES - 1u) / SHARES;
override N_RANKS: u32 = N_EXPERTS * SHARES;
const MOST_CHOSEN: u32 = 64u;
const N_SUMS: u32 = 256u;

var<workgroup> logit_of: array<f32, N_EXPERTS>;
var<workgroup> ranks: array<u32, N_RANKS>;          // how many logits of a share are larger
var<workgroup> experts: array<u32, MOST_CHOSEN>;    // the largest logit first
var<workgroup> ascending: array<u32, MOST_CHOSEN>;  // which of them is the first by its number, and so on
var<workgroup> exps: array<f32, MOST_CHOSEN>;
var<workgroup> sums_of_exps: array<f32, N_SUMS>;

// Fills `experts` and `ascending`. All threads call it together.
fn choose(row: u32, thread: u32) {
    for (var e = thread; e < N_EXPERTS; e += THREADS) {
        var sum = 0.0;
        for (var part = 0u; part < N_PARTS; part++) {
            sum += logits[(row * N_PARTS + part) * N_EXPERTS + e];
        }
        logit_of[e] = sum;
    }
    // Where logits are not numbers, ranks are missing.
    if thread < MOST_CHOSEN {
        experts[thread] = 0u;
        ascending[thread] = 0u;
    }
    workgroupBarrier();
    for (var i = thread; i < N_RANKS; i += THREADS) {
        let e = i % N_EXPERTS;
        let first = i / N_EXPERTS * SHARE;
        let logit = logit_of[e];
        var rank = 0u;
        for (var j = 0u; j < SHARE; j++) {
            let other = first + j;
            if N_EXPERTS % SHARES == 0u || other < N_EXPERTS {
                let theirs = logit_of[other];
                rank += select(0u, 1u, theirs > logit || (theirs == logit && other < e));
            }
        }
        ranks[i] = rank;
    }
    workgroupBarrier();
    for (var e = thread; e < N_EXPERTS; e += THREADS) {
        var rank = 0u;
        for (var share = 0u; share < SHARES; share++) {
            rank += ranks[share * N_EXPERTS + e];
        }
        if rank < router.n_chosen {
            experts[rank] = e;
        }
    }
    workgroupBarrier();
    if thread < router.n_chosen {
        var place = 0u;
        for (var i = 0u; i < router.n_chosen; i++) {
            place += select(0u, 1u, experts[i] < experts[thread]);
        }
        ascending[place] = thread;
    }
    workgroupBarrier();
}

// Fills what `gate` reads, for the experts of `choose`. All threads call it together.
fn weigh(thread: u32) {
    let largest = logit_of[experts[0]];
    if thread < router.n_chosen {
        exps[thread] = exp(logit_of[experts[thread]] - largest);
    }
    if router.renormalise == 0u {
        for (var i = thread; i < N_SUMS; i += THREADS) {
            var sum = 0.0;
            for (var e = i; e < N_EXPERTS; e += N_SUMS) {
                sum += exp(logit_of[e] - largest);
            }
            sums_of_exps[i] = sum;
        }
        for (var half = N_SUMS / 2u; half > 0u; half /= 2u) {
            workgroupBarrier();
            for (var i = thread; i < half; i += THREADS) {
                sums_of_exps[i] += sums_of_exps[i + half];
            }
        }
    }
    workgroupBarrier();
}

// The gate of the expert with the i-th largest logit.
fn gate(i: u32) -> f32 {
    var sum = sums_of_exps[0];
    if router.renormalise == 1u {
        sum = 0.0;
        for (var k = 0u; k < router.n_chosen; k++) {
            sum += exps[k];
        }
    }
    return exps[i] / sum;
}
