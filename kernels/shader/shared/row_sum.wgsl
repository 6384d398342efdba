// The sum of one row's products, of ITEMS units.

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
