// Every weight format: the one place where one is added. The build script reads the list too, for the shaders.

/// Passes all formats to `$then!`, after `$with`: the variant of `WeightFormat`, the name used in files, flags and
/// messages, and the type that defines it, in a file of its own beside this one.
macro_rules! with_formats {
    ($then:ident $($with:tt)*) => {
        $then! {
            [$($with)*]
            /// IEEE single, little-endian.
            F32 "f32" crate::quant::float::F32;
            /// IEEE half, little-endian.
            F16 "f16" crate::quant::float::F16;
            /// The upper half of a single, little-endian.
            Bf16 "bf16" crate::quant::float::Bf16;
            /// 4 bits a weight and one f16 scale for each group of 128 columns, symmetric: `(nibble - 8) * scale`.
            ///
            /// Two planes. First the nibbles: each row padded to whole groups with nibble 8 (zero), two columns a byte, the
            /// lower nibble first, so that a little-endian u32 holds eight columns in order. Then the scales, (rows, groups)
            /// f16.
            Int4G128 "int4" crate::quant::int4::Int4;
            /// 4 bits a weight, one f16 scale and a zero point for each group of 128 columns: `(nibble - zero) * scale`.
            ///
            /// Two planes. First the nibbles as in `int4`, padded with the zero point. Then a little-endian u32 for each of
            /// (rows, groups): the scale in the lower half, the zero point in the third byte, 0 in the fourth.
            Int4ZpG128 "int4-zp" crate::quant::int4_zp::Int4Zp;
            /// llama.cpp's q8_0: 8 bits and a scale for each 32 columns.
            Q8_0 "q8_0" crate::quant::q8_0::Q8_0;
            /// llama.cpp's q4_0: 4 bits and a scale for each 32 columns.
            Q4_0 "q4_0" crate::quant::q4_0::Q4_0;
            /// llama.cpp's q4_1: 4 bits, a scale and a minimum for each 32 columns.
            Q4_1 "q4_1" crate::quant::q4_1::Q4_1;
            /// llama.cpp's q5_0: 5 bits and a scale for each 32 columns.
            Q5_0 "q5_0" crate::quant::q5_0::Q5_0;
            /// llama.cpp's q5_1: 5 bits, a scale and a minimum for each 32 columns.
            Q5_1 "q5_1" crate::quant::q5_1::Q5_1;
            /// llama.cpp's q2_K: 2 bits in blocks of 256 columns, a 4-bit scale and minimum for each 16.
            Q2K "q2_K" crate::quant::q2_k::Q2K;
            /// llama.cpp's q3_K: 3 bits in blocks of 256 columns, a 6-bit scale for each 16.
            Q3K "q3_K" crate::quant::q3_k::Q3K;
            /// llama.cpp's q4_K: 4 bits in blocks of 256 columns, a 6-bit scale and minimum for each 32.
            Q4K "q4_K" crate::quant::q4_k::Q4K;
            /// llama.cpp's q5_K: 5 bits in blocks of 256 columns, a 6-bit scale and minimum for each 32.
            Q5K "q5_K" crate::quant::q5_k::Q5K;
            /// llama.cpp's q6_K: 6 bits in blocks of 256 columns, an 8-bit scale for each 16.
            Q6K "q6_K" crate::quant::q6_k::Q6K;
            /// llama.cpp's iq4_nl: 4 bits that a table turns into values, and a scale for each 32 columns.
            Iq4Nl "iq4_nl" crate::quant::iq4::Iq4Nl;
            /// llama.cpp's iq4_xs: iq4_nl's table in blocks of 256 columns, a 6-bit scale for each 32.
            Iq4Xs "iq4_xs" crate::quant::iq4::Iq4Xs;
            /// mxfp4 of the OCP's Microscaling Formats, as in GPT-OSS: 4-bit floats, and a power of two for each 32 columns.
            Mxfp4 "mxfp4" crate::quant::mxfp4::Mxfp4;
        }
    };
}
