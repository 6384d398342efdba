// The K experts with the largest logits of each row, and their gates. A workgroup takes a row. A step of one row has its tiles at
// once.
#import chosen
#import choose

@group(0) @binding(3) var<storage, read> logits: array<f32>;  // parts of them (T, parts, E)

const THREADS: u32 = 256u;

@compute @workgroup_size(256)
fn route(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x;
    choose(row, thread);
    weigh(thread);
    if thread >= router.n_chosen {
        return;
    }
    let at = routing_at(row);
    routing[at + thread] = experts[thread];
    routing[at + router.n_chosen + thread] = bitcast<u32>(gate(thread));
    let n_rows = step[select(STEP_ROWS, STEP_WANTED, router.of_wanted == 1u)];
    if n_rows == 1u {
        let chosen = ascending[thread];
        places[thread] = thread;
        let gates = vec4<f32>(gate(chosen), 0.0, 0.0, 0.0);
        result[thread] = Tile(experts[chosen] * router.block, 1u, thread, 0u, vec4<u32>(), gates);
    }
}
