// What joins gate and up, and biases, which follow an expert's panels. CPU twin: src/simd/expert.rs.
#import exact
#import quotient

// `exp(x)`: `x = n ln 2 + r`, a polynomial in r, and n as exponent.
fn exp_of(value: f32) -> f32 {
    let x = at_most(at_least(value, -87.0), 88.0);
    let rounded = sum_of(product_of(x, 1.4426950408889634), ROUNDER);
    let n = sum_of(rounded, -ROUNDER);
    let r = sum_of(sum_of(x, -product_of(n, 0.6933594)), -product_of(n, -2.1219444e-4));
    var sum = 1.9875691e-4;
    sum = sum_of(product_of(sum, r), 1.3981999e-3);
    sum = sum_of(product_of(sum, r), 8.333452e-3);
    sum = sum_of(product_of(sum, r), 4.1665796e-2);
    sum = sum_of(product_of(sum, r), 1.6666665e-1);
    sum = sum_of(product_of(sum, r), 0.5);
    sum = sum_of(product_of(product_of(sum, r), r), sum_of(r, 1.0));
    return product_of(sum, bitcast<f32>(bitcast<u32>(sum_of(rounded, 127.0)) << 23u));
}

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
