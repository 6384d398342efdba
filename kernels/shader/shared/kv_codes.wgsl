// Rounds keys and values to q8_0. CPU twin: src/simd/kv.rs.
#import pages
#import steps

struct Codes {
    codes: u32,   // of four columns
    scale: f32,   // of their unit
    scales: u32,  // in the first thread of every other unit: its scale and the next one's, as pages have them
}

const UNIT_QUADS: u32 = KV_UNIT / 4u;

var<workgroup> largest_quads: array<u32, 128>;  // of each thread

// What takes the columns of a unit to codes and back, from the unit's first thread on.
fn unit_steps(first: u32) -> vec2<f32> {
    var largest = 0u;
    for (var i = first; i < first + UNIT_QUADS; i++) {
        largest = max(largest, largest_quads[i]);
    }
    return steps(largest, 127.0);
}

// Neighbouring threads have four neighbouring columns each of a head, which begins at a multiple of 64 threads; those beyond it have
// zeros. All threads call it together.
fn codes_of(four: vec4<f32>, thread: u32) -> Codes {
    let magnitudes = bitcast<vec4<u32>>(four) & vec4<u32>(0x7fffffffu);
    largest_quads[thread] = max(max(magnitudes.x, magnitudes.y), max(magnitudes.z, magnitudes.w));
    workgroupBarrier();
    let unit = unit_steps(thread / UNIT_QUADS * UNIT_QUADS);
    var codes = 0u;
    for (var i = 0u; i < 4u; i++) {
        codes |= (nearest(product_of(four[i], unit.y), 127.0) & 255u) << (8u * i);
    }
    var scales = half_bits(unit.x);
    if thread % (2u * UNIT_QUADS) == 0u {
        scales |= half_bits(unit_steps(thread + UNIT_QUADS).x) << 16u;
    }
    return Codes(codes, half_value(scales & 0xffffu), scales);
}
