// One row's products, of ITEMS units, and their sum.

// Where blocks have many units, what lowers them follows the products of all N_UNITS units, one for each block: half the memory, so that
// more workgroups run beside each other. Else it follows the products of each unit, and is 0 but for a block's last.
override IS_APART: u32;

fn slot_of(unit: u32) -> u32 {
    return unit * select(ADDENDS, 1u, IS_APART == 1u);
}

// The sum of a column's products from unit `first_unit` on, in the order of the row's columns.
fn sum_of_units(column: u32, first_unit: u32) -> f32 {
    let first = slot_of(first_unit) * ROWS + column;
    if IS_APART == 0u {
        return sum_in_order(0.0, first, ROWS, ITEMS * ADDENDS);
    }
    var sum = 0.0;
    for (var unit = 0u; unit < ITEMS; unit += UNITS) {
        sum = sum_in_order(sum, first + unit * ROWS, ROWS, UNITS);
        sum = sum_of(sum, products[(N_UNITS + (first_unit + unit) / UNITS) * ROWS + column]);
    }
    return sum;
}

// Only where the sum reads it: `lower_block` puts what lowers a block.
fn lower(place: Place, unit: Unit, slot: u32, terms: u32) {
    if IS_APART == 0u && unit.number + 1u < UNITS {
        put(place, slot, 0.0);
    }
}

// Puts what lowers block `block` of the place's row; its units are the products' from `first` blocks on. Other threads than those of
// its last unit do so, since reading it takes as long as the unit.
fn lower_block(place: Place, block: u32, first: u32) {
    let parameters = place.panel + block * WEIGHT_WORDS + CODE_WORDS;
    let terms = place.rows.x + block * BLOCK_WORDS + UNITS;
    let lowered = lowering(parameters, place.row, block_scale(parameters, place.row), terms);
    put(place, select((first + 1u) * UNITS * ADDENDS - 1u, N_UNITS + first, IS_APART == 1u), lowered);
}

// The products of all units of the place's row, in turn with the other lanes.
fn row_products(place: Place, lane: u32) {
    for (var i = 0u; i < (ITEMS + LANES - 1u) / LANES; i++) {
        let unit = i * LANES + lane;
        if ITEMS % LANES == 0u || unit < ITEMS {
            unit_products(place, unit, slot_of(unit));
        }
    }
    if TERMS != 0u {
        for (var block = lane; block < ITEMS / UNITS; block += LANES) {
            lower_block(place, block, block);
        }
    }
}

// After the products of a panel of gate and one of up: the sums of both, rounded to f16, for each of the first sixteen threads.
fn gate_and_up(row: u32, lane: u32, thread: u32) -> vec2<f32> {
    workgroupBarrier();
    var sum = 0.0;
    if lane == 0u {
        sum = sum_of_units(row, 0u);
    }
    workgroupBarrier();
    if lane == 0u {
        products[row] = half_of(sum);
    }
    workgroupBarrier();
    return vec2<f32>(products[thread % 16u], products[thread % 16u + 16u]);
}
