// Dequantisation: a chunk of a row of weights from storage to registers to octets. Each format gives
//   CHUNK_OCTETS                          octets in a chunk
//   load_chunk(values, scales, row, i)    the row's chunk i, of the matrix at `values` and `scales`
//   decode(chunk)                         its next octet, not yet scaled
//   advance(chunk)                        the chunk behind that octet
//   scale(chunk)                          what its octets' products are multiplied by
//   ROW_UNIT                              the bytes that shape.weight_stride counts
#import WEIGHTS
