// A router's logits of a step's one row, and before that what is added to the row and its RMSNorm. A workgroup takes a panel of
// sixteen experts and one of equal parts of the columns, and finds the norm for itself. 256 columns of what others read of the row, a
// workgroup writes each. choose.wgsl adds what the parts give.
#import run
#import exact
#import round
#import norm
#import norm_scale
#import floats

@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;             // (1, D)
@group(0) @binding(4) var<storage, read_write> result: array<u32>;        // (1, norm.result_stride)
@group(0) @binding(5) var<storage, read> y: array<vec4<f32>>;             // (1, D)
@group(0) @binding(6) var<storage, read> gains: array<vec4<f32>>;         // (D), of the norm
@group(0) @binding(8) var<storage, read_write> normed: array<vec4<u32>>;  // (1, norm.stride)
@group(0) @binding(9) var<storage, read_write> sum: array<vec4<f32>>;     // (1, D), x + y
@group(0) @binding(10) var<storage, read_write> logits: array<f32>;       // (1, parts, E)

override N_EXPERTS: u32;    // E
override PANEL_WORDS: u32;  // from one panel of weights to the next
override PART: u32;         // quads of columns of a part
override LANE: u32;         // of a lane, as in router_logits.wgsl
override HAS_ADDEND: u32;

const THREADS: u32 = 256u;
const ROWS: u32 = 16u;      // of a panel
const LANES: u32 = 16u;     // threads of a row
const WRITTEN: u32 = 64u;   // quads of the columns that a workgroup writes
const NOWHERE: u32 = 0xffff0000u;

var<workgroup> of_part: array<vec4<u32>, PART>;  // normed columns
var<workgroup> partial: array<f32, THREADS>;

fn summed(quad: u32) -> vec4<f32> {
    if QUADS % SQUARES != 0u && quad >= QUADS {
        return vec4<f32>();
    }
    if HAS_ADDEND == 0u {
        return x[quad];
    }
    return x[quad] + y[quad];
}

@compute @workgroup_size(256)
fn row_router(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) n_groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = thread % ROWS;
    let panel = group.x * PANEL_WORDS;
    // The thread's first quad in the part.
    var own = thread / ROWS * LANE;
    // The lane's weights are on their way to the cache while the norm is found.
    let quad_words = select(32u, 64u, FLOAT_BITS == 32u);
    let first_word = quad_words * (group.z * PART + own) + quad_words * LANE / ROWS * row;
    let touched = weights[panel + min(first_word, PANEL_WORDS - 1u)];
    let scale = norm_scale_of(norm.eps, thread);
    for (var i = thread; i < PART; i += THREADS) {
        let quad = group.z * PART + i;
        if quad < QUADS {
            of_part[i] = normed_bits(gains[quad], summed(quad), scale);
        }
    }
    workgroupBarrier();
    own += touched & run.zero;
    var product = 0.0;
    for (var i = 0u; i < LANE; i++) {
        let quad = group.z * PART + own + i;
        if (PART % (LANES * LANE) == 0u || own + i < PART) && (QUADS % PART == 0u || quad < QUADS) {
            let values = bitcast<vec4<f32>>(of_part[own + i]);
            for (var k = 0u; k < 4u; k++) {
                product = fma(weight(panel, (4u * quad + k) * ROWS + row), values[k], product);
            }
        }
    }
    partial[thread] = product;
    workgroupBarrier();
    let expert = ROWS * group.x + thread;
    if thread < ROWS && expert < N_EXPERTS {
        var logit = 0.0;
        for (var lane = 0u; lane < LANES; lane++) {
            logit += partial[lane * ROWS + row];
        }
        logits[group.z * N_EXPERTS + expert] = logit;
    }

    let number = group.z * n_groups.x + group.x;
    for (var first = WRITTEN * number; first < QUADS; first += WRITTEN * n_groups.x * n_groups.z) {
        let quad = first + thread;
        let is_own = thread < WRITTEN;
        var bits = vec4<u32>();
        if is_own && quad < QUADS {
            let values = summed(quad);
            bits = normed_bits(gains[quad], values, scale);
            normed[quad] = bits;
            if HAS_ADDEND == 1u {
                sum[quad] = values;
            }
        }
        if norm.is_rounded == 1u {
            round_columns(0u, 4u * QUADS, select(NOWHERE, 4u * quad, is_own), thread, bits);
        }
    }
}
