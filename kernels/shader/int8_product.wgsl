// Panels of sixteen rows of weights times int8 activations, for the pairs of one tile a workgroup: one of gate and one of up and
// what joins them, or one or two of down. Threads take units of columns apart, and their products are added in the order of the
// columns. With one thread for each row it waits for nobody, which is what a GPU made of software needs.
#import tile
#import product

@group(0) @binding(3) var<storage, read> x: array<u32>;
@group(0) @binding(4) var<storage, read_write> result: array<f32>;

#ifdef WEB
var<workgroup> products: array<f32, CAPACITY * ROWS>;
#else
override ONE_PAIR: u32 = 0u;  // whether every tile has one pair
override ITEMS: u32 = 0u;     // of a row, if the kernel is for rows of one length: then loads of all its units are under way together
override N_PRODUCTS: u32 = CAPACITY * ROWS;

var<workgroup> products: array<f32, N_PRODUCTS>;
#endif

fn lower(place: Place, unit: Unit, slot: u32, terms: u32) {
    var lowered = 0.0;
    if unit.number + 1u == UNITS {
        lowered = lowering(unit.parameters, place.row, unit.d, terms);
    }
    put(place, slot, lowered);
}

// Four sums of every fourth column, for one pair and the second next.
fn float_products(place: Place, lane: u32) {
    for (var t = lane / 4u; t < place.n_pairs; t += LANES / 4u) {
        let at = place.rows[t];
        var sum = 0.0;
        for (var column = lane % 4u; column < shape.items; column += 4u) {
            let i = column * 16u + place.row;
            var w = 0.0;
            if FLOATS == 32u {
                w = bitcast<f32>(weights[place.panel + i]);
            } else if FLOATS == 16u {
                w = half_at(place.panel, i);
            } else {
                w = bitcast<f32>((weights[place.panel + i / 2u] >> (16u * (i % 2u))) << 16u);
            }
            sum = sum_of(sum, product_of(w, bitcast<f32>(x[at + column])));
        }
        put(place, 4u * t + lane % 4u, sum);
    }
}

// The sums of a row for every pair, by the only thread of that row.
fn whole_row(place: Place) {
    var sums = vec4<f32>();
    for (var item = 0u; item < shape.items; item++) {
        unit_products(place, item, 0u);
        for (var t = 0u; t < place.n_pairs; t++) {
            sums[t] = sum_in_order(sums[t], t * ROWS + place.column, place.n_pairs * ROWS, ADDENDS);
        }
    }
    for (var t = 0u; t < place.n_pairs; t++) {
        products[t * ROWS + place.column] = sums[t];
    }
}

// The sum of a row for pair `lane`, by all threads of that row. `n_pairs` is the same for all threads of a workgroup, as its
// barriers need; of a `place`, browsers do not see that.
fn shared_row(place: Place, lane: u32, n_pairs: u32) {
    var sum = 0.0;
    if FLOATS != 0u {
        float_products(place, lane);
        workgroupBarrier();
        if lane < n_pairs {
            let first = 4u * lane * ROWS + place.column;
            sum = sum_of(
                sum_of(products[first], products[first + ROWS]),
                sum_of(products[first + 2u * ROWS], products[first + 3u * ROWS]),
            );
        }
        workgroupBarrier();
    } else {
        let at_once = CAPACITY / (ADDENDS * n_pairs);
#ifdef WEB
        for (var first = 0u; first < shape.items; first += at_once) {
            let n = min(at_once, shape.items - first);
            for (var i = lane; i < n; i += LANES) {
                unit_products(place, first + i, i * ADDENDS * n_pairs);
            }
#else
        let items = select(shape.items, ITEMS, ITEMS != 0u);
        for (var first = 0u; first < items; first += at_once) {
            let n = min(at_once, items - first);
            for (var round = 0u; round < (n + LANES - 1u) / LANES; round++) {
                let i = round * LANES + lane;
                if i < n || (ITEMS != 0u && ITEMS % LANES == 0u && at_once % LANES == 0u) {
                    unit_products(place, first + i, i * ADDENDS * n_pairs);
                }
            }
#endif
            workgroupBarrier();
            if lane < n_pairs {
                sum = sum_in_order(sum, lane * ROWS + place.column, n_pairs * ROWS, n * ADDENDS);
            }
            workgroupBarrier();
        }
    }
    if lane < n_pairs {
        products[lane * ROWS + place.column] = sum;
    }
}

@compute @workgroup_size(THREADS)
fn int8_product(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tile = run.first_tile + group.y;
#ifdef WEB
    let n_pairs = tiles[tile].n_pairs;
#else
    let n_pairs = select(tiles[tile].n_pairs, 1u, ONE_PAIR == 1u);
#endif
    if n_pairs == 0u {
        return;
    }
    let block = 4u * tiles[tile].block;
    let row = thread % ROWS;
    let lane = thread / ROWS;
    let n_panels = (shape.out + 15u) / 16u * (2u - shape.is_down);
    let panel = min(ROWS / 16u * group.x + row / 16u, n_panels - 1u);
    var rows = tiles[tile].rows;
    if shape.is_down == 1u {
        rows = (tiles[tile].first_pair + vec4<u32>(0u, 1u, 2u, 3u)) * shape.x_stride;
    }
    let place = Place(block + shape.weights + panel * shape.weight_stride, row % 16u, row, rows, n_pairs);
    if FLOATS == 0u && LANES == 1u {
        whole_row(place);
    } else {
        shared_row(place, lane, n_pairs);
    }
    workgroupBarrier();
    for (var t = lane; t < n_pairs; t += LANES) {
        var sum = products[t * ROWS + row];
        let at = (tiles[tile].first_pair + t) * shape.out;
        if shape.is_down == 0u {
            let out = 16u * group.x + row;
            if row < 16u && out < shape.out {
                var up = products[t * ROWS + row + 16u];
                if FLOATS == 0u {
                    sum = half_of(sum);
                    up = half_of(up);
                }
                let first = shape.products + 2u * at;
                result[at + out] = joined(block, out, sum, up);
                result[first + out] = sum;
                result[first + shape.out + out] = up;
            }
            continue;
        }
        let out = ROWS * group.x + row;
        if out < shape.out {
            if shape.kind == 1u {
                sum = sum_of(sum, bias(block, shape.bias, out));
            }
            let y = product_of(tiles[tile].gates[t], sum);
            // Below 2^-100 results are 0: no device meets a number that is not normal.
            result[at + out] = select(y, 0.0, (bitcast<u32>(y) & 0x7fffffffu) < 0x0d800000u);
        }
    }
}
