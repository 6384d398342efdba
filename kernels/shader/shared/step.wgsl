// What a step of the hub's forward pass is told: src/engine/gpu/pass/request.rs writes it.

@group(0) @binding(1) var<storage, read> step: array<u32>;

const STEP_ROWS: u32 = 0u;       // T
const STEP_WANTED: u32 = 1u;     // W, rows whose logits are wanted
const STEP_RANGES: u32 = 2u;     // of a row's pages that a workgroup of attention takes and joins
const STEP_SLOTS: u32 = 3u;      // places of a row's head for what workgroups give
const STEP_ROPES: u32 = 4u;      // where the rotations of each table start, up to eight of them
const STEP_TILES: u32 = 12u;     // where tiles of attention start
const STEP_BEST: u32 = 13u;      // how many of a row's best logits are wanted
const STEP_DRAWS: u32 = 14u;     // where draws start
const STEP_PLACES: u32 = 15u;    // for each row its position, where its sequence's pages start, and the w-th wanted row

fn step_position(row: u32) -> u32 {
    return step[STEP_PLACES + 3u * row];
}

fn step_page(row: u32, page: u32) -> u32 {
    return step[step[STEP_PLACES + 3u * row + 1u] + page];
}

fn step_wanted(w: u32) -> u32 {
    return step[STEP_PLACES + 3u * w + 2u];
}

// Neighbouring rows of one sequence, whose pages are divided into ranges alike.
struct RowTile {
    first_row: u32,
    n_rows: u32,
    span: u32,  // pages of a range
}

fn step_tile(tile: u32) -> RowTile {
    let at = step[STEP_TILES] + 3u * tile;
    return RowTile(step[at], step[at + 1u], step[at + 2u]);
}

// Of the w-th wanted row: the inverse of the temperature, 0 where nothing is drawn, and a random number.
fn step_scale(w: u32) -> f32 {
    return bitcast<f32>(step[step[STEP_DRAWS] + 2u * w]);
}

fn step_random(w: u32) -> u32 {
    return step[step[STEP_DRAWS] + 2u * w + 1u];
}
