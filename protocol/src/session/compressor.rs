//! Decides, message by message, whether an end compresses what it sends.
//!
//! Compressing costs both ends time and saves the link some: it pays where the link is slow and the payloads shrink. How
//! fast the link is the hub measures ([`super::link_rate`]); how much payloads shrink is known by trying one in
//! [`SAMPLE_EVERY`].

use crate::compression::{Compression, CompressionMode};

/// Nanoseconds that compressing and expanding one byte take both ends together, as a browser tab needs them; natively it is
/// half of that (`cargo xtask bench compression`).
const COST_NANOS_PER_BYTE: f64 = 6.0;
/// How many times its cost compression must save before it is switched on.
const MARGIN: f64 = 1.5;
/// The smallest part of its size that a message is ever taken to shrink to, before any was tried.
const BEST_CASE: f64 = 0.5;
/// One message in so many is compressed to see how much it shrinks, where that could pay.
const SAMPLE_EVERY: u32 = 64;
/// What a new sample counts for in the mean.
const SAMPLE_WEIGHT: f64 = 0.25;
/// A message that is smaller says nothing about the others, and is not worth the trouble.
const MIN_BYTES: usize = 512;

/// One direction of one connection.
#[derive(Clone, Debug)]
pub(super) struct Compressor {
    mode: CompressionMode,
    /// Of this direction; `None` until it is known.
    bytes_per_second: Option<u64>,
    /// Bytes sent for a byte given, the mean of what was tried; `None` before that.
    shrinks_to: Option<f64>,
    /// Messages until the next one is tried.
    until_sample: u32,
}

impl Compressor {
    /// One for a direction of which nothing is known.
    pub(super) fn new(mode: CompressionMode) -> Self {
        Self { mode, bytes_per_second: None, shrinks_to: None, until_sample: 0 }
    }

    /// What was agreed, and how fast the link is as far as that is known.
    pub(super) fn agree(&mut self, mode: CompressionMode, bytes_per_second: Option<u64>) {
        (self.mode, self.bytes_per_second) = (mode, bytes_per_second);
    }

    /// How to encode the next message, of `n_bytes` uncompressed.
    pub(super) fn choose(&mut self, n_bytes: usize) -> Compression {
        match self.mode {
            CompressionMode::Off => Compression::Off,
            CompressionMode::On => Compression::Lz4,
            CompressionMode::Auto if n_bytes < MIN_BYTES || !self.pays_at(BEST_CASE) => Compression::Off,
            CompressionMode::Auto if self.is_on() => Compression::Lz4,
            CompressionMode::Auto => match self.until_sample.checked_sub(1) {
                Some(left) => {
                    self.until_sample = left;
                    Compression::Off
                }
                None => {
                    self.until_sample = SAMPLE_EVERY - 1;
                    Compression::Lz4
                }
            },
        }
    }

    /// How to encode a control frame: those are few, and say nothing of how tensors shrink.
    pub(super) fn choose_control(&self) -> Compression {
        if self.mode == CompressionMode::On { Compression::Lz4 } else { Compression::Off }
    }

    /// The agreed mode.
    pub(super) fn mode(&self) -> CompressionMode {
        self.mode
    }

    /// A message of `n_bytes` uncompressed became one of `n_sent`.
    pub(super) fn encoded(&mut self, compression: Compression, n_bytes: usize, n_sent: usize) {
        if compression == Compression::Lz4 && n_bytes >= MIN_BYTES {
            let sample = n_sent as f64 / n_bytes as f64;
            let mean = self.shrinks_to.map_or(sample, |mean| mean + SAMPLE_WEIGHT * (sample - mean));
            self.shrinks_to = Some(mean);
        }
    }

    /// Whether large messages are compressed at present.
    pub(super) fn is_on(&self) -> bool {
        match self.mode {
            CompressionMode::Off => false,
            CompressionMode::On => true,
            CompressionMode::Auto => self.shrinks_to.is_some_and(|shrinks_to| self.pays_at(shrinks_to)),
        }
    }

    /// Whether the link takes longer for what compression would save than compression takes. An unknown link does not.
    fn pays_at(&self, shrinks_to: f64) -> bool {
        self.bytes_per_second.is_some_and(|rate| {
            let saved_nanos_per_byte = (1.0 - shrinks_to) * 1e9 / rate.max(1) as f64;
            saved_nanos_per_byte > MARGIN * COST_NANOS_PER_BYTE
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: usize = 4096;
    /// A gigabit a second, and what a slow uplink has.
    const LAN: u64 = 125_000_000;
    const SLOW: u64 = 500_000;

    /// Sends `n` messages that shrink to so many hundredths; how many of them were compressed.
    fn send(compressor: &mut Compressor, n: usize, shrink_to_percent: usize) -> usize {
        let mut compressed = 0;
        for _ in 0..n {
            let compression = compressor.choose(MESSAGE);
            if compression == Compression::Lz4 {
                compressed += 1;
                compressor.encoded(compression, MESSAGE, MESSAGE * shrink_to_percent / 100);
            }
        }
        compressed
    }

    fn auto(bytes_per_second: Option<u64>) -> Compressor {
        let mut compressor = Compressor::new(CompressionMode::Off);
        compressor.agree(CompressionMode::Auto, bytes_per_second);
        compressor
    }

    #[test]
    fn off_is_off_and_on_is_on_whatever_the_link() {
        for rate in [None, Some(LAN), Some(SLOW)] {
            let mut compressor = auto(rate);
            compressor.agree(CompressionMode::Off, rate);
            assert_eq!(send(&mut compressor, 100, 10), 0);
            compressor.agree(CompressionMode::On, rate);
            assert_eq!(send(&mut compressor, 100, 100), 100);
        }
    }

    #[test]
    fn on_a_fast_or_unknown_link_not_even_a_sample_is_taken() {
        for rate in [None, Some(LAN)] {
            let mut compressor = auto(rate);
            assert_eq!(send(&mut compressor, 1000, 10), 0);
            assert!(!compressor.is_on());
        }
    }

    #[test]
    fn on_a_slow_link_payloads_that_shrink_are_compressed_and_others_only_tried() {
        let mut compressor = auto(Some(SLOW));
        assert_eq!(send(&mut compressor, 100, 80), 100);
        assert!(compressor.is_on());
        let mut compressor = auto(Some(SLOW));
        assert_eq!(send(&mut compressor, 10 * SAMPLE_EVERY as usize, 100), 10);
        assert!(!compressor.is_on());
    }

    #[test]
    fn it_follows_the_payloads_and_the_link() {
        let mut compressor = auto(Some(SLOW));
        send(&mut compressor, 10, 80);
        assert!(compressor.is_on());
        send(&mut compressor, 100, 101);
        assert!(!compressor.is_on(), "payloads that no longer shrink");
        send(&mut compressor, 20 * SAMPLE_EVERY as usize, 50);
        assert!(compressor.is_on(), "and shrink again");
        compressor.agree(CompressionMode::Auto, Some(LAN));
        assert!(!compressor.is_on(), "a link that has become fast");
    }

    #[test]
    fn what_pays_is_a_question_of_link_and_shrinking() {
        let pays = |rate, shrinks_to| auto(Some(rate)).pays_at(shrinks_to);
        // The paper's 1.2 to 1.5, on a slow Wi-Fi and on a LAN.
        assert!(pays(5_000_000, 1.0 / 1.2) && pays(5_000_000, 1.0 / 1.5));
        assert!(!pays(LAN, 1.0 / 1.2) && !pays(LAN, 1.0 / 1.5));
        assert!(!pays(SLOW, 1.0) && !pays(0, 1.0) && pays(0, 0.99));
    }

    #[test]
    fn small_messages_are_left_alone() {
        let mut compressor = auto(Some(SLOW));
        assert!((0..100).all(|_| compressor.choose(MIN_BYTES - 1) == Compression::Off));
    }
}
