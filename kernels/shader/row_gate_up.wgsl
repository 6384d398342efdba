// The gates and ups of the experts that a step's one row goes to, and what joins them. A workgroup takes a panel of both of one
// expert: it chooses the experts by the router's logits for itself, and takes one of them by its number. What others read of the
// choice, the workgroups of the first panel write.
#import step
#import tiles
#import router
#import choose
#import product
#import row_sum
#import kept_row

@group(0) @binding(4) var<storage, read_write> result: array<f32>;   // h (K, F), experts ascending
@group(0) @binding(5) var<storage, read_write> tiles: array<Tile>;   // (K)
@group(0) @binding(6) var<storage, read_write> places: array<u32>;   // (1, K)
@group(0) @binding(8) var<storage, read_write> routing: array<u32>;  // as shared/chosen.wgsl says
@group(0) @binding(9) var<storage, read> logits: array<f32>;         // parts of them (1, parts, E)
@group(0) @binding(10) var<uniform> router: Router;

override ITEMS: u32;  // units of a row
override N_UNITS: u32 = ITEMS;
override N_PRODUCTS: u32 = CAPACITY * ROWS;

var<workgroup> products: array<f32, N_PRODUCTS>;

@compute @workgroup_size(THREADS)
fn row_gate_up(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    keep_row(0u, thread);
    choose(0u, thread);
    let pair = group.y;
    let block = experts[ascending[pair]] * router.block;
    let row = thread % ROWS;
    let lane = thread / ROWS;
    let panel = 4u * block + shape.weights + (2u * group.x + row / 16u) * shape.weight_stride;
    let place = Place(panel, row % 16u, row, vec4<u32>(), 1u);
    row_products(place, lane);
    if group.x == 0u {
        weigh(thread);
        if thread == 0u {
            let gates = vec4<f32>(gate(ascending[pair]), 0.0, 0.0, 0.0);
            tiles[pair] = Tile(block, 1u, pair, 0u, vec4<u32>(), gates);
            places[pair] = pair;
        }
        if pair == 0u && thread < router.n_chosen {
            let at = routing_at(0u);
            routing[at + thread] = experts[thread];
            routing[at + router.n_chosen + thread] = bitcast<u32>(gate(thread));
        }
    }
    let sums = gate_and_up(row, lane, thread);
    let out = 16u * group.x + thread;
    if thread < 16u && out < shape.out {
        result[pair * shape.out + out] = joined(4u * block, out, sums.x, sums.y);
    }
}
