// Gate, up and what joins them, where every tile has one pair. A workgroup takes a panel of both of one pair's expert.
#import tile
#import product
#import row_sum
#import kept_row
#import packed

@group(0) @binding(4) var<storage, read_write> result: array<f32>;  // h (P, F), then the products (P, 2F)

override ITEMS: u32;  // units of a row
override N_UNITS: u32 = ITEMS;
override N_PRODUCTS: u32 = CAPACITY * ROWS;

var<workgroup> products: array<f32, N_PRODUCTS>;

@compute @workgroup_size(THREADS)
fn pair_gate_up(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tile = run.first_tile + group.y;
    if tiles[tile].n_pairs == 0u {
        return;
    }
    keep_row(tiles[tile].rows.x, thread);
    let block = 4u * tiles[tile].block;
    let row = thread % ROWS;
    let lane = thread / ROWS;
    let panel = block + shape.weights + (2u * group.x + row / 16u) * shape.weight_stride;
    workgroupBarrier();
    row_products(Place(panel, row % 16u, row, vec4<u32>(), 1u), lane);
    let sums = gate_and_up(row, lane, thread);
    let out = 16u * group.x + thread;
    if thread < 16u && out < shape.out {
        let at = tiles[tile].first_pair * shape.out;
        result[at + out] = joined(block, out, sums.x, sums.y);
        if tiles[tile].packed == 0u {
            let first = shape.products + 2u * at;
            result[first + out] = sums.x;
            result[first + shape.out + out] = sums.y;
        }
    }
    if thread < 16u && tiles[tile].packed != 0u {
        // Eight threads of gate, eight of up; F is even.
        let of_up = thread / 8u;
        let row = 2u * (thread % 8u);
        if 16u * group.x + row < shape.out {
            let at = (2u * tiles[tile].first_pair + of_up) * shape.out + 16u * group.x + row;
            packed[tiles[tile].packed + at / 2u] = two_halves(products[16u * of_up + row], products[16u * of_up + row + 1u]);
        }
    }
}
