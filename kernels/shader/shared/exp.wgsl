// The exponential. CPU twin: src/simd/exp.rs.
#import exact

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
