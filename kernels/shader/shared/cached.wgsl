// Keys and values as attention reads them: eight columns of a position, and their scale. The file of an entry point declares `pages`
// as array<vec4<u32>>.
#import pages

const EIGHTHS_OF_UNIT: u32 = KV_UNIT / 8u;

struct Eight {
    a: vec4<f32>,
    b: vec4<f32>,
}

fn eight_of(word: vec4<u32>) -> Eight {
    return Eight(
        vec4<f32>(unpack2x16float(word.x), unpack2x16float(word.y)),
        vec4<f32>(unpack2x16float(word.z), unpack2x16float(word.w)),
    );
}

// Columns 8i to 8i + 7 of a position of the head of a page that starts at vector `head`: f16, before their scale.
fn eight_at(head: u32, columns: u32, position: u32, i: u32) -> vec4<u32> {
    if !IS_Q8_0 {
        return pages[head + position * (columns / 8u) + i];
    }
    let sixteen = pages[head + position * (columns / 16u) + i / 2u];
    let codes = select(sixteen.xy, sixteen.zw, (i & 1u) == 1u);
    return vec4<u32>(halves_of(codes.x), halves_of(codes.y));
}

// Four codes as f16.
fn halves_of(codes: u32) -> vec2<u32> {
    let integers = vec4<f32>(unpack4xI8(codes));
    return vec2<u32>(pack2x16float(integers.xy), pack2x16float(integers.zw));
}

// The scale of a unit's columns.
fn scale_at(head: u32, columns: u32, position: u32, unit: u32) -> f32 {
    if !IS_Q8_0 {
        return 1.0;
    }
    let word = position * scale_words(columns) + unit / 2u;
    return unpack2x16float(pages[head + 2u * columns + word / 4u][word % 4u])[unit % 2u];
}
