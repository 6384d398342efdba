// What a router's kernels are told. The struct is src/engine/gpu/pass/structs.rs's, checked against it at build time.

struct Router {
    n_experts: u32,     // E
    n_chosen: u32,      // K
    layer: u32,         // the number of routers before it
    of_wanted: u32,     // whether its rows are those whose logits are wanted
    renormalise: u32,   // whether a row's gates sum to 1
    block: u32,         // from one expert to the next, in 16 bytes
    x_stride: u32,      // from one row of x to the next, in words
    max_tiles: u32,
}

fn routing_at(row: u32) -> u32 {
    return 2u * router.n_chosen * (router.layer * step[STEP_ROWS] + row);
}
