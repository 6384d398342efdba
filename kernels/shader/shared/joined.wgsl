// What joins gate and up, and biases, which follow an expert's panels. CPU twin: src/simd/expert.rs.
#import exact
#import quotient
#import exp

fn bias(block: u32, start: u32, out: u32) -> f32 {
    return bitcast<f32>(weights[block + start + out]);
}

fn joined(block: u32, out: u32, gate: f32, up: f32) -> f32 {
    if shape.kind == 0u {
        return product_of(quotient_of(gate, sum_of(1.0, exp_of(-gate))), up);
    }
    let g = at_most(sum_of(gate, bias(block, shape.bias, out)), 7.0);
    let u = at_most(at_least(sum_of(up, bias(block, shape.up_bias, out)), -7.0), 7.0);
    let denominator = sum_of(1.0, exp_of(product_of(-1.702, g)));
    return product_of(sum_of(u, 1.0), quotient_of(g, denominator));
}
