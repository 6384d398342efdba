//! How far a batch has come on a device, for measurements: this crate reads no clock.

/// What has just happened to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its rows and tables were handed to the device.
    Written,
    /// Its commands were recorded.
    Recorded,
    /// Its commands were submitted.
    Submitted,
    /// Its results are there to be read.
    Ready,
    /// Its results were read.
    Read,
}
