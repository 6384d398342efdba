// Eight columns, the least that every weight format decodes at once.

struct Octet {
    a: vec4<f32>,
    b: vec4<f32>,
}

fn product(w: Octet, x: Octet) -> f32 {
    return dot(w.a, x.a) + dot(w.b, x.b);
}

fn load_x(at: u32) -> Octet {
    return Octet(x[at], x[at + 1u]);
}
