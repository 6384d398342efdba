// Down projections, where every tile has one pair. A workgroup takes a panel of one pair's expert, and rounds what gate and up gave
// for itself.
#import tile
#import product
#import row_sum
#import round_rows
#import packed

@group(0) @binding(3) var<storage, read> h: array<vec4<u32>>;       // (P, F / 4)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;  // y (P, D)

override QUADS: u32;  // F / 4
override ITEMS: u32;  // units of a row
override N_UNITS: u32 = ITEMS;
override N_PRODUCTS: u32 = CAPACITY * ROWS;

var<workgroup> products: array<f32, N_PRODUCTS>;
var<private> first_quad: u32;

fn quad_at(q: u32) -> vec4<u32> {
    if q >= QUADS {
        return vec4<u32>();
    }
    return h[first_quad + q];
}

@compute @workgroup_size(THREADS)
fn pair_down(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tile = run.first_tile + group.y;
    if tiles[tile].n_pairs == 0u {
        return;
    }
    let pair = tiles[tile].first_pair;
    first_quad = pair * QUADS;
    let block = 4u * tiles[tile].block;
    round_rows(thread);
    let row = thread % ROWS;
    let panel = block + shape.weights + group.x * shape.weight_stride;
    row_products(Place(panel, row, row, vec4<u32>(), 1u), thread / ROWS);
    workgroupBarrier();
    let out = ROWS * group.x + thread;
    if thread < ROWS && out < shape.out {
        var sum = sum_of_units(thread, 0u);
        if shape.kind == 1u {
            sum = sum_of(sum, bias(block, shape.bias, out));
        }
        let y = product_of(tiles[tile].gates.x, sum);
        // Below 2^-100 results are 0: no device meets a number that is not normal.
        let value = select(y, 0.0, (bitcast<u32>(y) & 0x7fffffffu) < 0x0d800000u);
        if tiles[tile].packed == 0u {
            result[pair * shape.out + out] = value;
        }
        products[thread] = value;  // whose column it alone has read
    }
    workgroupBarrier();
    let first = ROWS * group.x + 2u * thread;
    if tiles[tile].packed != 0u && thread < ROWS / 2u && first < shape.out {
        packed[(pair * shape.out + first) / 2u] = two_halves(products[2u * thread], products[2u * thread + 1u]);
    }
}
