// A router's logits: a matrix of floats, in panels of sixteen experts, times rows of f32. A workgroup takes a panel, 64 rows, and one
// of equal parts of the columns, a thread four of the rows; shared/choose.wgsl adds what the parts give. Columns of a part are added in
// the order of row_router.wgsl's sixteen lanes. CPU twin: src/quant/dot.rs; sums run in another order than its.
#import tile
#import floats

@group(0) @binding(3) var<storage, read> x: array<f32>;             // (T, shape.x_stride)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;  // (T, parts, E)

override PART: u32;  // quads of columns of a part
override LANE: u32;  // of them, how many are added before they are added to the others

const THREADS: u32 = 256u;
const ROWS: u32 = 16u;   // of a panel
const TEAMS: u32 = 16u;  // of threads that have the same rows of x
const TILE: u32 = 64u;   // rows of x
const QUADS: u32 = 8u;   // of columns that are staged at once
const WIDTH: u32 = QUADS + 1u;  // without the last, threads would read one bank of memory

var<workgroup> experts: array<vec4<f32>, 144>;  // (ROWS, WIDTH)
var<workgroup> values: array<vec4<f32>, 576>;   // (TILE, WIDTH)

@compute @workgroup_size(256)
fn router_logits(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) n_groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tile = run.first_tile + group.y;
    let first_row = tiles[tile].first_pair;
    let n_rows = tiles[tile].n_pairs;
    let panel = group.x * shape.weight_stride;
    let row = thread % ROWS;
    let team = thread / ROWS;
    let end = min(4u * (group.z + 1u) * PART, shape.items);
    var sums: vec4<f32>;
    var of_lane: vec4<f32>;
    for (var first_quad = 0u; first_quad < PART; first_quad += QUADS) {
        let start = 4u * (group.z * PART + first_quad);
        for (var i = thread; i < QUADS * ROWS; i += THREADS) {
            let first = start + 4u * (i / ROWS);
            var of_expert = vec4<f32>();
            for (var k = 0u; k < 4u; k++) {
                if first + k < end {
                    of_expert[k] = weight(panel, (first + k) * ROWS + i % ROWS);
                }
            }
            experts[i % ROWS * WIDTH + i / ROWS] = of_expert;
        }
        for (var i = thread; i < QUADS * TILE; i += THREADS) {
            let first = start + 4u * (i % QUADS);
            let of_row = i / QUADS;
            var four = vec4<f32>();
            for (var k = 0u; k < 4u; k++) {
                if first + k < end && of_row < n_rows {
                    four[k] = x[(first_row + of_row) * shape.x_stride + first + k];
                }
            }
            values[of_row * WIDTH + i % QUADS] = four;
        }
        workgroupBarrier();
        for (var quad = 0u; quad < QUADS; quad++) {
            let of_expert = experts[row * WIDTH + quad];
            for (var i = 0u; i < 4u; i++) {
                let four = values[(team + TEAMS * i) * WIDTH + quad];
                for (var k = 0u; k < 4u; k++) {
                    of_lane[i] = fma(of_expert[k], four[k], of_lane[i]);
                }
            }
            if (first_quad + quad + 1u) % LANE == 0u {
                sums += of_lane;
                of_lane = vec4<f32>();
            }
        }
        workgroupBarrier();
    }
    sums += of_lane;
    let expert = ROWS * group.x + row;
    for (var i = 0u; i < 4u; i++) {
        let of_row = team + TEAMS * i;
        if of_row < n_rows && expert < shape.out {
            result[((first_row + of_row) * n_groups.z + group.z) * shape.out + expert] = sums[i];
        }
    }
}
