// What a layer's router chose, and how its pairs become tiles.
#import step
#import tiles
#import router

@group(0) @binding(4) var<storage, read_write> result: array<Tile>;
@group(0) @binding(5) var<storage, read_write> places: array<u32>;   // (T, K): a row's pairs, by ascending expert
@group(0) @binding(6) var<storage, read_write> routing: array<u32>;  // for each router (T, 2, K): experts, the largest gate first, and gates
@group(0) @binding(7) var<uniform> router: Router;

const MOST_EXPERTS: u32 = 1024u;
