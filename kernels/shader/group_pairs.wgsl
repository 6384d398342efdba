// The tiles of a step of several rows: pairs of the same expert together, experts and rows ascending. One workgroup does all.
// CPU twin: Layout::tables in src/engine/gpu/layout.rs.
#import chosen

const THREADS: u32 = 256u;

var<workgroup> first_pair: array<u32, MOST_EXPERTS>;
var<workgroup> first_tile: array<u32, MOST_EXPERTS>;
var<workgroup> n_tiles: u32;

@compute @workgroup_size(256)
fn group_pairs(@builtin(local_invocation_index) thread: u32) {
    let k = router.n_chosen;
    let n_rows = step[select(STEP_ROWS, STEP_WANTED, router.of_wanted == 1u)];
    for (var e = thread; e < router.n_experts; e += THREADS) {
        var n = 0u;
        for (var row = 0u; row < n_rows; row++) {
            for (var i = 0u; i < k; i++) {
                n += select(0u, 1u, routing[routing_at(row) + i] == e);
            }
        }
        first_pair[e] = n;
    }
    workgroupBarrier();
    if thread == 0u {
        var pairs = 0u;
        var tiles = 0u;
        for (var e = 0u; e < router.n_experts; e++) {
            let n = first_pair[e];
            first_pair[e] = pairs;
            first_tile[e] = tiles;
            pairs += n;
            tiles += (n + 3u) / 4u;
        }
        n_tiles = tiles;
    }
    workgroupBarrier();
    for (var e = thread; e < router.n_experts; e += THREADS) {
        var pair = first_pair[e];
        var tile = Tile();
        for (var row = 0u; row < n_rows; row++) {
            let at = routing_at(row);
            for (var i = 0u; i < k; i++) {
                if routing[at + i] != e {
                    continue;
                }
                let n_before = pair - first_pair[e];
                let slot = n_before % 4u;
                if slot == 0u {
                    tile = Tile(e * router.block, 0u, pair, 0u, vec4<u32>(), vec4<f32>());
                }
                tile.n_pairs = slot + 1u;
                tile.rows[slot] = row * router.x_stride;
                tile.gates[slot] = bitcast<f32>(routing[at + k + i]);
                result[first_tile[e] + n_before / 4u] = tile;
                var place = 0u;
                for (var j = 0u; j < k; j++) {
                    place += select(0u, 1u, routing[at + j] < e);
                }
                places[row * k + place] = pair;
                pair++;
            }
        }
    }
    // Workgroups beyond these find no pairs.
    for (var tile = n_tiles + thread; tile < router.max_tiles; tile += THREADS) {
        result[tile] = Tile();
    }
}
