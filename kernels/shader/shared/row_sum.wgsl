// One row's products, of ITEMS units, and their sum.

// Those from `first` on, in the order of the columns. What lowers a block is 0 but for the block's last unit: it is added there alone.
fn sum_of_units(first: u32) -> f32 {
    if TERMS == 0u || HALVES == 2u || UNITS < 8u {
        return sum_in_order(0.0, first, ROWS, ITEMS * ADDENDS);
    }
    var sum = 0.0;
    for (var unit = 0u; unit < ITEMS; unit += UNITS) {
        sum = sum_in_order(sum, first + unit * ADDENDS * ROWS, ADDENDS * ROWS, UNITS);
        sum = sum_of(sum, products[first + ((unit + UNITS) * ADDENDS - 1u) * ROWS]);
    }
    return sum;
}

// Only where the sum reads it: `lower_block` puts what lowers a block.
fn lower(place: Place, unit: Unit, slot: u32, terms: u32) {
    if (HALVES == 2u || UNITS < 8u) && unit.number + 1u < UNITS {
        put(place, slot, 0.0);
    }
}

// Puts what lowers block `block` of the place's row; its units are the products' from `first` blocks on. Other threads than those of
// its last unit do so, since reading it takes as long as the unit.
fn lower_block(place: Place, block: u32, first: u32) {
    let parameters = place.panel + block * WEIGHT_WORDS + CODE_WORDS;
    let terms = place.rows.x + block * BLOCK_WORDS + UNITS;
    let lowered = lowering(parameters, place.row, block_scale(parameters, place.row), terms);
    put(place, (first + 1u) * UNITS * ADDENDS - 1u, lowered);
}

// The products of all units of the place's row, in turn with the other lanes.
fn row_products(place: Place, lane: u32) {
    for (var i = 0u; i < (ITEMS + LANES - 1u) / LANES; i++) {
        let unit = i * LANES + lane;
        if ITEMS % LANES == 0u || unit < ITEMS {
            unit_products(place, unit, unit * ADDENDS);
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
        sum = sum_of_units(row);
    }
    workgroupBarrier();
    if lane == 0u {
        products[row] = half_of(sum);
    }
    workgroupBarrier();
    return vec2<f32>(products[thread % 16u], products[thread % 16u + 16u]);
}
