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
