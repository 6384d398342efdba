//! Numbers that a next layer can be computed from.

/// Whether each value is a finite number. Looks at all: that is sooner done than to stop at the first.
pub(super) fn is_finite(values: &[f32]) -> bool {
    let magnitude = |value: &f32| value.to_bits() & !(1 << 31);
    values.iter().map(magnitude).fold(0, u32::max) < f32::INFINITY.to_bits()
}
