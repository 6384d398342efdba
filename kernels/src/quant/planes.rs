//! Where bits of codes and of integer scales lie: planes of neighbours in neighbouring bytes.

/// Some bits of every column, or of every group: `8 / bits` runs of `width` columns share `width` bytes, the first run in
/// the lowest bits; then the next such runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plane {
    /// Where it starts.
    pub(crate) at: usize,
    /// 1, 2, 4 or 8.
    pub(crate) bits: usize,
    /// Neighbouring columns in neighbouring bytes: 1, or another power of two from 4 on.
    pub(crate) width: usize,
}

/// The lowest bit of each byte.
pub(super) const LOW_BITS: u32 = 0x0101_0101;

impl Plane {
    #[inline(always)]
    pub(super) fn quad(&self, block: &[u8], column: usize) -> u32 {
        let mask = 0xff >> (8 - self.bits);
        if self.width == 1 {
            // 4, 8 or 16 bits in a row, spread over four bytes.
            let at = self.at + column * self.bits / 8;
            let high = if self.bits == 4 { block[at + 1] } else { 0 };
            let bits = u32::from(u16::from_le_bytes([block[at], high])) >> (column * self.bits % 8);
            let bit = |i: usize| (bits >> (i * self.bits) & mask) << (8 * i);
            return bit(0) | bit(1) | bit(2) | bit(3);
        }
        // Shifts: where this is no constant, as in a tab, four divisions take longer than all the rest.
        let (width_bits, n_bits) = (self.width.trailing_zeros(), 3 - self.bits.trailing_zeros());
        let (run, place) = (column >> width_bits, column & (self.width - 1));
        let at = self.at + (run >> n_bits << width_bits) + place;
        let word = u32::from_le_bytes(*block[at..].first_chunk().expect("whole blocks"));
        let shift = (run & ((1 << n_bits) - 1)) * self.bits;
        (word >> shift) & (mask * LOW_BITS)
    }
}

/// Reads each number's bits from all planes.
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
pub(super) fn read_planes(planes: &[Plane], bytes: &[u8], numbers: &mut [u8]) {
    let mut place = 0;
    for plane in planes {
        let (n, mask) = (8 / plane.bits, 0xff >> (8 - plane.bits));
        // The first plane replaces what was there before.
        let keep = if place == 0 { 0 } else { 0xff };
        let bytes = &bytes[plane.at..];
        if plane.width == 1 {
            for (numbers, byte) in numbers.chunks_mut(n).zip(bytes) {
                for (i, number) in numbers.iter_mut().enumerate() {
                    *number = *number & keep | (byte >> (i * plane.bits) & mask) << place;
                }
            }
        } else {
            for (run, numbers) in numbers.chunks_exact_mut(plane.width).enumerate() {
                let shift = run % n * plane.bits;
                for (number, byte) in numbers.iter_mut().zip(&bytes[run / n * plane.width..]) {
                    *number = *number & keep | (byte >> shift & mask) << place;
                }
            }
        }
        place += plane.bits;
    }
}

/// Writes each number's bits to all planes, into bytes whose bits there are 0.
pub(super) fn write_planes(planes: &[Plane], numbers: &[u8], bytes: &mut [u8]) {
    let mut place = 0;
    for plane in planes {
        let (n, mask) = (8 / plane.bits, 0xff >> (8 - plane.bits));
        let bytes = &mut bytes[plane.at..];
        if plane.width == 1 {
            for (numbers, byte) in numbers.chunks(n).zip(bytes) {
                for (i, number) in numbers.iter().enumerate() {
                    *byte |= (number >> place & mask) << (i * plane.bits);
                }
            }
        } else {
            for (run, numbers) in numbers.chunks(plane.width).enumerate() {
                let shift = run % n * plane.bits;
                for (number, byte) in numbers.iter().zip(&mut bytes[run / n * plane.width..]) {
                    *byte |= (number >> place & mask) << shift;
                }
            }
        }
        place += plane.bits;
    }
}
