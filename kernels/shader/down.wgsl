// The second half of an expert: y = gate * (down h), for the pairs of one tile a workgroup. The router's gate is applied
// here, once. CPU twin: src/cpu/expert_ffn.rs, its last projection.
#import enable
#import bindings
#import octet
#import weights
#import reduce


// x: h (P, F); result: y (P, D).
@compute @workgroup_size(WORKGROUP)
fn down(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
#ifdef SUBGROUPS
    @builtin(subgroup_size) subgroup_size: u32,
#endif
) {
    let tile = tiles[run.first_tile + group.y];
    let first_out = group.x * (WORKGROUP / LANES);
    let d = min(first_out + thread / LANES, shape.out - 1u);
    // h has a row for each pair, those of a tile one after another.
    let h_row = tile.first_pair * shape.x_stride;

    var sum = vec4<f32>(); // for each pair
    for (var chunk = thread % LANES; chunk < shape.items; chunk += LANES) {
        var weights_chunk = load_chunk(tile.block + shape.weights, tile.block + shape.scales, d, chunk);
        var chunk_sum = vec4<f32>();
        for (var i = 0u; i < CHUNK_OCTETS; i++) {
            let w = decode(weights_chunk);
            weights_chunk = advance(weights_chunk);
            let at = h_row + 2u * (chunk * CHUNK_OCTETS + i);
            chunk_sum.x += product(w, load_x(at));
            if tile.n_pairs > 1u {
                chunk_sum.y += product(w, load_x(at + shape.x_stride));
            }
            if tile.n_pairs > 2u {
                chunk_sum.z += product(w, load_x(at + 2u * shape.x_stride));
            }
            if tile.n_pairs > 3u {
                chunk_sum.w += product(w, load_x(at + 3u * shape.x_stride));
            }
        }
        sum += chunk_sum * scale(weights_chunk);
    }

#ifdef SUBGROUPS
    let width = min(subgroup_size, LANES);
    sum = subgroup_sum(sum, subgroup_size);
#else
    let width = 1u;
#endif
    publish(sum, thread, width, 0u);
    workgroupBarrier();

    let out = first_out + thread;
    if thread < WORKGROUP / LANES && out < shape.out {
        var y = team_sum(thread, width, 0u);
        if shape.kind == 1u {
            y += bias(tile, shape.bias, out);
        }
        write_results(tile, out, y * tile.gates);
    }
}
