// Logits in order: as (token, a number that orders the logit).

const NOTHING: vec2<u32> = vec2<u32>(0xffffffffu, 0u);

// Larger for larger logits; 0 for what is not a number above minus infinity.
fn order_of(logit: f32) -> u32 {
    let bits = bitcast<u32>(logit);
    if (bits & 0x7fffffffu) > 0x7f800000u || bits == 0xff800000u {
        return 0u;
    }
    return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}

// The logit of that order, in bits.
fn logit_of(order: u32) -> u32 {
    if order == 0u {
        return 0xff800000u;
    }
    return select(~order, order & 0x7fffffffu, (order & 0x80000000u) != 0u);
}

// Whether `a` has the larger logit, or of equals the lower token.
fn is_before(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y > b.y || (a.y == b.y && a.x < b.x);
}
