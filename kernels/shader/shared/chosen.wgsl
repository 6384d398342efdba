// What a layer's router chose, and how its pairs become tiles.
#import step
#import tiles

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

@group(0) @binding(4) var<storage, read_write> result: array<Tile>;
@group(0) @binding(5) var<storage, read_write> places: array<u32>;   // (T, K): a row's pairs, by ascending expert
@group(0) @binding(6) var<storage, read_write> routing: array<u32>;  // for each router (T, 2, K): experts, the largest gate first, and gates
@group(0) @binding(7) var<uniform> router: Router;

const MOST_EXPERTS: u32 = 1024u;

fn routing_at(row: u32) -> u32 {
    return 2u * router.n_chosen * (router.layer * step[STEP_ROWS] + row);
}
