// The first half of an expert: h = silu(gate x) * (up x), or what its kind does, for the pairs of one tile a workgroup.
// CPU twin: src/cpu/expert_ffn.rs, its two first projections and silu_mul or clamped_swiglu.
#import enable
#import bindings
#import octet
#import weights
#import reduce


// x: rows (R, D); result: h (P, F), then the products (P, 2F), by which a hub checks the answer.
@compute @workgroup_size(WORKGROUP)
fn gate_up(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
#ifdef SUBGROUPS
    @builtin(subgroup_size) subgroup_size: u32,
#endif
) {
    let tile = tiles[run.first_tile + group.y];
    let first_out = group.x * (WORKGROUP / LANES);
    let f = min(first_out + thread / LANES, shape.out - 1u);

    var gate = vec4<f32>(); // a sum for each pair
    var up = vec4<f32>();
    for (var chunk = thread % LANES; chunk < shape.items; chunk += LANES) {
        var gate_chunk = load_chunk(tile.block + shape.weights, tile.block + shape.scales, f, chunk);
        var up_chunk = load_chunk(tile.block + shape.up, tile.block + shape.up_scales, f, chunk);
        var gate_sum = vec4<f32>();
        var up_sum = vec4<f32>();
        for (var i = 0u; i < CHUNK_OCTETS; i++) {
            let gate_weights = decode(gate_chunk);
            let up_weights = decode(up_chunk);
            gate_chunk = advance(gate_chunk);
            up_chunk = advance(up_chunk);
            let at = 2u * (chunk * CHUNK_OCTETS + i);
            let x0 = load_x(tile.rows.x + at);
            gate_sum.x += product(gate_weights, x0);
            up_sum.x += product(up_weights, x0);
            if tile.n_pairs > 1u {
                let x1 = load_x(tile.rows.y + at);
                gate_sum.y += product(gate_weights, x1);
                up_sum.y += product(up_weights, x1);
            }
            if tile.n_pairs > 2u {
                let x2 = load_x(tile.rows.z + at);
                gate_sum.z += product(gate_weights, x2);
                up_sum.z += product(up_weights, x2);
            }
            if tile.n_pairs > 3u {
                let x3 = load_x(tile.rows.w + at);
                gate_sum.w += product(gate_weights, x3);
                up_sum.w += product(up_weights, x3);
            }
        }
        gate += gate_sum * scale(gate_chunk);
        up += up_sum * scale(up_chunk);
    }

#ifdef SUBGROUPS
    let width = min(subgroup_size, LANES);
    gate = subgroup_sum(gate, subgroup_size);
    up = subgroup_sum(up, subgroup_size);
#else
    let width = 1u;
#endif
    publish(gate, thread, width, 0u);
    publish(up, thread, width, 1u);
    workgroupBarrier();

    let out = first_out + thread;
    if thread < WORKGROUP / LANES && out < shape.out {
        var g = team_sum(thread, width, 0u);
        var u = team_sum(thread, width, 1u);
        write_column(tile, shape.products, 2u * shape.out, out, g);
        write_column(tile, shape.products, 2u * shape.out, shape.out + out, u);
        var slope = 1.0;
        if shape.kind == 1u {
            g = min(g + bias(tile, shape.bias, out), vec4<f32>(7.0));
            u = clamp(u + bias(tile, shape.up_bias, out), vec4<f32>(-7.0), vec4<f32>(7.0)) + 1.0;
            slope = 1.702;
        }
        write_results(tile, out, g / (1.0 + exp(-slope * g)) * u);
    }
}
