//! Maps GGUF's tensor type numbers to weight formats.

use moex_kernels::WeightFormat;

/// Types that are not supported, with names for errors.
const OTHERS: [(u32, &str); 14] = [
    (9, "q8_1"),
    (15, "q8_K"),
    (16, "iq2_xxs"),
    (17, "iq2_xs"),
    (18, "iq3_xxs"),
    (19, "iq1_s"),
    (21, "iq3_s"),
    (22, "iq2_s"),
    (24, "i8"),
    (26, "i32"),
    (28, "f64"),
    (29, "iq1_m"),
    (34, "tq1_0"),
    (35, "tq2_0"),
];

/// The format of a type number, or the name of an unsupported type.
pub(super) fn format(kind: u32) -> Result<WeightFormat, String> {
    let other = || OTHERS.iter().find(|(number, _)| *number == kind).map(|(_, name)| (*name).to_owned());
    let known = WeightFormat::ALL.into_iter().find(|format| format.gguf_type() == Some(kind));
    known.ok_or_else(|| other().unwrap_or_else(|| kind.to_string()))
}

/// The supported types in words, in the order of their numbers.
pub(super) fn known() -> String {
    let mut formats = WeightFormat::ALL;
    formats.sort_by_key(|format| format.gguf_type());
    let known = formats.iter().filter(|format| format.gguf_type().is_some()).map(|format| format.name());
    known.collect::<Vec<_>>().join(", ")
}
