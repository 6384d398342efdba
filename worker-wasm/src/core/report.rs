//! What a worker has to tell its hub of the blocks that it loads.

use std::time::Duration;

use moex_protocol::Block;

/// What the next block report will say.
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
    /// Another epoch: its bytes are counted from zero. What is to be reported of the last one is reported with it.
    pub(super) fn start(&mut self, epoch: u64) {
        self.epoch = epoch;
        (self.bytes_done, self.bytes_total, self.bytes_downloaded) = (0, 0, 0);
    }
}
