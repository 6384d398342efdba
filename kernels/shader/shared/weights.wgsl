// Dequantisation: a chunk of a row of weights from storage to registers to octets. Each format gives
//   CHUNK_OCTETS                          octets in a chunk
//   load_chunk(values, scales, row, i)    the row's chunk i, of the matrix at `values` and `scales`
//   decode(chunk)                         its next octet, not yet scaled
//   advance(chunk)                        the chunk behind that octet
//   scale(chunk)                          what its octets' products are multiplied by
// and ROW, what a row occupies.
override ROW: u32;

#ifdef INT4
#import weights_int4
#endif
#ifdef INT4_ZP
#import weights_int4_zp
#endif
#ifdef F16
#ifdef SHADER_F16
#import weights_f16_native
#else
#import weights_f16
#endif
#endif
#ifdef BF16
#import weights_bf16
#endif
#ifdef F32
#import weights_f32
#endif
#ifdef Q8_0
#import weights_q8_0
#endif
#ifdef Q4_0
#import weights_q4_0
#endif
#ifdef Q4_1
#import weights_q4_1
#endif
#ifdef Q5_0
#import weights_q5_0
#endif
#ifdef Q5_1
#import weights_q5_1
#endif
#ifdef Q4_K
#import weights_q4_k
#endif
#ifdef Q5_K
#import weights_q5_k
#endif
#ifdef Q6_K
#import weights_q6_k
#endif
