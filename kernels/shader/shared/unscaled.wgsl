// The rest of a format without scales whose chunk is one octet.

fn advance(chunk: Chunk) -> Chunk {
    return chunk;
}

fn scale(chunk: Chunk) -> f32 {
    return 1.0;
}
