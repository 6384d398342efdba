// The scale of a row's RMSNorm. Every kernel that takes a norm adds squares in this order, so that a row has the same bits in any
// step: of every 256th quad of columns one after another, then sixteen of those sums, then these. The file of an entry point declares
// THREADS and `summed`: four columns of the row with what is added to it, which are 0 beyond the last.
// CPU twin: src/cpu/rms_norm.rs, which adds in another order.
override QUADS: u32;  // D / 4, known when the kernel is compiled, so that all of a thread's loads are under way at once

const SQUARES: u32 = 256u;

var<workgroup> squares: array<f32, SQUARES>;
var<workgroup> sixteenths: array<f32, 16>;

// All threads call it together.
fn norm_scale_of(eps: f32, thread: u32) -> f32 {
    for (var k = 0u; k < (SQUARES + THREADS - 1u) / THREADS; k++) {
        let first = k * THREADS + thread;
        if SQUARES % THREADS == 0u || first < SQUARES {
            var sum = 0.0;
            for (var i = 0u; i < (QUADS + SQUARES - 1u) / SQUARES; i++) {
                let four = summed(i * SQUARES + first);
                sum = fma(four.w, four.w, fma(four.z, four.z, fma(four.y, four.y, fma(four.x, four.x, sum))));
            }
            squares[first] = sum;
        }
    }
    workgroupBarrier();
    if thread < 16u {
        var sum = 0.0;
        for (var i = 0u; i < 16u; i++) {
            sum += squares[16u * thread + i];
        }
        sixteenths[thread] = sum;
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < 16u; i++) {
        sum += sixteenths[i];
    }
    return 1.0 / sqrt(fma(sum, 1.0 / f32(4u * QUADS), eps));
}

// Four columns of a normed row: the bits of their `values` times `scale` and `gains`. Tiny ones are 0, as wherever a matrix of floats
// reads them.
fn normed_bits(gains: vec4<f32>, values: vec4<f32>, scale: f32) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(gains * (values * scale));
    return select(bits, vec4<u32>(), (bits & vec4<u32>(0x7fffffffu)) < vec4<u32>(TINY));
}
