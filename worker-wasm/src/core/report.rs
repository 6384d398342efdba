//! A worker's reports to its hub about the blocks that it loads.

use std::time::Duration;

use moex_protocol::Block;

/// The content of the next block report.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) epoch: u64,
    pub(super) resident: Vec<Block>,
    pub(super) failed: Vec<(Block, String)>,
    pub(super) bytes_done: u64,
    pub(super) bytes_total: u64,
    pub(super) bytes_downloaded: u64,
    pub(super) due: Option<Duration>,
}

impl Report {
    /// Starts another epoch: its bytes are counted from zero. Blocks of the last epoch that are not reported yet are
    /// reported with it.
    pub(super) fn start(&mut self, epoch: u64) {
        self.epoch = epoch;
        (self.bytes_done, self.bytes_total, self.bytes_downloaded) = (0, 0, 0);
    }
}
