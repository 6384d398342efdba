// Sums over the threads of a team: LANES neighbours that share one row of weights.
//
// Where there are subgroups they sum what they can reach; what is left, one partial sum for each `width` threads, meets in
// workgroup memory. Subgroups of any power of two from 4 to 128 work.
const WORKGROUP: u32 = 64u;
override LANES: u32; // a power of two up to WORKGROUP

// Two sums of four pairs for each thread: 2 KiB.
var<workgroup> partial_sums: array<vec4<f32>, 128>;

fn publish(sum: vec4<f32>, thread: u32, width: u32, which: u32) {
    if thread % width == 0u {
        partial_sums[which * WORKGROUP + thread / width] = sum;
    }
}

fn team_sum(team: u32, width: u32, which: u32) -> vec4<f32> {
    let n = LANES / width;
    let first = which * WORKGROUP + team * n;
    var sum = vec4<f32>();
    for (var i = 0u; i < n; i++) {
        sum += partial_sums[first + i];
    }
    return sum;
}

#ifdef SUBGROUPS
// The sum over each `min(subgroup_size, LANES)` neighbours, in all of them. A step wider than the subgroup shuffles
// nonsense in, which `select` drops: every step runs in every thread, whatever the size.
fn subgroup_sum(value: vec4<f32>, subgroup_size: u32) -> vec4<f32> {
    var sum = value;
    if LANES > 1u {
        sum += subgroupShuffleXor(sum, 1u);
    }
    if LANES > 2u {
        sum += subgroupShuffleXor(sum, 2u);
    }
    if LANES > 4u {
        let other = subgroupShuffleXor(sum, 4u);
        sum = select(sum, sum + other, subgroup_size > 4u);
    }
    if LANES > 8u {
        let other = subgroupShuffleXor(sum, 8u);
        sum = select(sum, sum + other, subgroup_size > 8u);
    }
    if LANES > 16u {
        let other = subgroupShuffleXor(sum, 16u);
        sum = select(sum, sum + other, subgroup_size > 16u);
    }
    if LANES > 32u {
        let other = subgroupShuffleXor(sum, 32u);
        sum = select(sum, sum + other, subgroup_size > 32u);
    }
    return sum;
}
#endif
