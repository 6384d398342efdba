// Blocks whose codes stand for what the format's TABLE says: sixteen bytes in order.

// What the four codes of a word stand for.
fn looked_up(word: u32) -> vec4<f32> {
    let codes = (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u);
    // No variable index into a vector: what is not a constant there may be spilled.
    let second = (codes & vec4<u32>(4u)) != vec4<u32>(0u);
    let low = select(vec4<u32>(TABLE.x), vec4<u32>(TABLE.y), second);
    let high = select(vec4<u32>(TABLE.z), vec4<u32>(TABLE.w), second);
    let four = select(low, high, (codes & vec4<u32>(8u)) != vec4<u32>(0u));
    return vec4<f32>((four >> (8u * (codes & vec4<u32>(3u)))) & vec4<u32>(255u));
}

fn decode(chunk: Chunk) -> Octet {
    return Octet(
        looked_up(chunk.a.x) * chunk.factor + chunk.shift,
        looked_up(chunk.a.y) * chunk.factor + chunk.shift,
    );
}
