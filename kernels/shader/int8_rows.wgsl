// h as rows of activations for the down projection. A workgroup takes 256 columns of a pair.
#import tile
#import exact
#import round

@group(0) @binding(3) var<storage, read> x: array<u32>;             // (P, shape.x_stride)
@group(0) @binding(4) var<storage, read_write> result: array<u32>;  // (P, shape.result_stride)

const THREADS: u32 = 64u;

@compute @workgroup_size(64)
fn int8_rows(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tile = tiles[run.first_tile + group.y];
    let t = group.x % 4u;
    if t >= tile.n_pairs {
        return;
    }
    let pair = tile.first_pair + t;
    let column = group.x / 4u * 256u + 4u * thread;
    var values = vec4<u32>();
    for (var i = 0u; i < 4u; i++) {
        if column + i < shape.items {
            values[i] = x[pair * shape.x_stride + column + i];
        }
    }
    round_columns(pair * shape.result_stride, shape.items, column, thread, values);
}
