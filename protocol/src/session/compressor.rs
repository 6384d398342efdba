//! Decides, message by message, whether an end compresses what it sends.
//!
//! Compressing costs both ends time and saves the link some: it pays where payloads shrink and the link is slow. How much
//! payloads shrink is known by trying one in [`SAMPLE_EVERY`]. If they do, the hub measures how fast the link is
//! ([`super::link_rate`]).

use crate::compression::{Compression, CompressionMode};

/// Nanoseconds that compressing and expanding one byte take both ends together: 1 to 4 for compressing as measured
/// (`cargo xtask bench compression`), and 2 for expanding.
const COST_NANOS_PER_BYTE: f64 = 6.0;
/// How many times its cost compression must save before it is switched on.
const MARGIN: f64 = 1.5;
/// The part of its size that a message shrinks to at best: on a link on which not even that pays, none is tried.
const BEST_CASE: f64 = 0.5;
/// The part of their size that messages must shrink to for the link to be measured.
const WORTH_MEASURING: f64 = 0.97;
/// One message in so many is compressed to see how much it shrinks.
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
    /// Whether this end measures the link if payloads shrink, so that it has to try some before.
    measures: bool,
    /// Bytes sent for a byte given, the mean of what was tried; `None` before that.
    shrinks_to: Option<f64>,
    /// Messages until the next one is tried.
    until_sample: u32,
}

impl Compressor {
    /// The hub's: it measures the link if payloads shrink. Off until agreed on.
    pub(super) fn measuring() -> Self {
        Self { measures: true, ..Self::following() }
    }

    /// The worker's: it is told how fast the link is. Off until agreed on.
    pub(super) fn following() -> Self {
        let mode = CompressionMode::Off;
        Self { mode, bytes_per_second: None, measures: false, shrinks_to: None, until_sample: 0 }
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
            CompressionMode::Auto if n_bytes < MIN_BYTES || !self.may_pay() => Compression::Off,
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

    /// Whether payloads shrink so much that it is worth knowing how fast the link is.
    pub(super) fn is_worth_measuring(&self) -> bool {
        let shrinks = self.shrinks_to.is_some_and(|shrinks_to| shrinks_to < WORTH_MEASURING);
        self.mode == CompressionMode::Auto && self.measures && shrinks
    }

    /// Whether it is worth trying how much a message shrinks.
    fn may_pay(&self) -> bool {
        match self.bytes_per_second {
            Some(_) => self.pays_at(BEST_CASE),
            None => self.measures,
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
        let mut compressor = Compressor::following();
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
    fn the_hub_tries_some_messages_before_it_measures_the_link() {
        let hub = || Compressor { measures: true, ..auto(None) };
        let (mut shrinking, mut random) = (hub(), hub());
        assert!(!shrinking.is_worth_measuring(), "nothing was tried yet");
        assert_eq!(send(&mut shrinking, 10 * SAMPLE_EVERY as usize, 80), 10);
        assert_eq!(send(&mut random, 10 * SAMPLE_EVERY as usize, 100), 10);
        assert!(shrinking.is_worth_measuring() && !random.is_worth_measuring());
        assert!(!shrinking.is_on(), "the link may be fast");
        shrinking.agree(CompressionMode::Off, None);
        assert!(!shrinking.is_worth_measuring());
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
