//! The tensor types of GGUF by their numbers, and which of them are weight formats here.

use moex_kernels::WeightFormat;

/// The types that are read and written.
const FORMATS: [(u32, WeightFormat); 11] = [
    (0, WeightFormat::F32),
    (1, WeightFormat::F16),
    (2, WeightFormat::Q4_0),
    (3, WeightFormat::Q4_1),
    (6, WeightFormat::Q5_0),
    (7, WeightFormat::Q5_1),
    (8, WeightFormat::Q8_0),
    (12, WeightFormat::Q4K),
    (13, WeightFormat::Q5K),
    (14, WeightFormat::Q6K),
    (30, WeightFormat::Bf16),
];

/// Other types that files have, for those who ask why theirs is not read.
const OTHERS: [(u32, &str); 19] = [
    (9, "q8_1"),
    (10, "q2_K"),
    (11, "q3_K"),
    (15, "q8_K"),
    (16, "iq2_xxs"),
    (17, "iq2_xs"),
    (18, "iq3_xxs"),
    (19, "iq1_s"),
    (20, "iq4_nl"),
    (21, "iq3_s"),
    (22, "iq2_s"),
    (23, "iq4_xs"),
    (24, "i8"),
    (26, "i32"),
    (28, "f64"),
    (29, "iq1_m"),
    (34, "tq1_0"),
    (35, "tq2_0"),
    (39, "mxfp4"),
];

/// The format of a type's number, or what to call a type that is not read.
pub(super) fn format(kind: u32) -> Result<WeightFormat, String> {
    let other = || OTHERS.iter().find(|(number, _)| *number == kind).map(|(_, name)| (*name).to_owned());
    match FORMATS.iter().find(|(number, _)| *number == kind) {
        Some((_, format)) => Ok(*format),
        None => Err(other().unwrap_or_else(|| kind.to_string())),
    }
}

/// The number of a format's type, none for the formats that GGUF has not.
pub(super) fn number(format: WeightFormat) -> Option<u32> {
    FORMATS.iter().find(|(_, known)| *known == format).map(|(number, _)| *number)
}

/// The types that are read, in words.
pub(super) fn known() -> String {
    FORMATS.map(|(_, format)| format.name()).join(", ")
}
