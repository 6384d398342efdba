//! Every bound of the wire and of the sessions, by name. Nothing here is computed or checked: a limit is checked
//! where its bytes are read, has its own error variant there, and a hostile-bytes test in `tests/limits.rs`.

/// Bytes of one message, as received and again as expanded: what compressed frames unpack to is counted.
pub const MAX_MESSAGE_BYTES: usize = 32 * 1024 * 1024;

/// Bytes of a message from a worker that has not joined, as received and as expanded: nobody has vouched for it yet.
pub const MAX_JOIN_MESSAGE_BYTES: usize = 64 * 1024;

/// Bytes of JSON in one HEARTBEAT, WEIGHT_SYNC or ERROR, expanded.
pub const MAX_CONTROL_BYTES: usize = 1024 * 1024;

/// Frames in one message, skipped ones included: a rows-once dispatch to 1023 experts fits.
pub const MAX_FRAMES_PER_MESSAGE: usize = 1024;

/// Digests in one frame: one for each expert of a dispatch.
pub const MAX_DIGESTS: usize = MAX_FRAMES_PER_MESSAGE;

/// Rows in one frame, and rows of one dispatch, so that a u16 can index them.
pub const MAX_ROWS: u32 = 65_535;

/// (row, expert) pairs in one dispatch.
pub const MAX_PAIRS: u32 = 262_144;

/// Width of an activation row, D.
pub const MAX_HIDDEN: u16 = 32_768;

/// Inner width of an expert, F, in a frame of products.
pub const MAX_INNER: u16 = 32_768;

/// Input slots a worker may announce; it must announce at least 1.
pub const MAX_SLOTS: u8 = 64;

/// Bytes of one text field of a join (token, build, adapter, backend, a feature's or a limit's name, self-test detail).
pub const MAX_JOIN_TEXT_BYTES: usize = 1024;

/// Bytes of the name that a worker's owner gives it.
pub const MAX_NAME_BYTES: usize = 64;

/// Features, and separately limits, in one join.
pub const MAX_JOIN_ENTRIES: usize = 256;

/// Blocks in one WEIGHT_SYNC frame; a longer list is sent as several frames of the same epoch.
pub const MAX_BLOCKS_PER_FRAME: usize = 1024;

/// Blocks a worker may hold resident: 128 layers of 512 experts.
pub const MAX_RESIDENT_BLOCKS: usize = 65_536;

/// Bytes of the text of an ERROR; encoding cuts longer ones at a character.
pub const MAX_ERROR_TEXT_BYTES: usize = 1024;

/// Messages a session holds for its driver to send.
pub const MAX_OUTBOX_MESSAGES: usize = 1024;

/// Bytes a session holds for its driver to send.
pub const MAX_OUTBOX_BYTES: usize = 2 * MAX_MESSAGE_BYTES;

/// Events a session holds for its driver to take: a full message's worth twice over.
pub const MAX_EVENTS: usize = 2 * MAX_FRAMES_PER_MESSAGE;

/// Attempts that one worker may owe an answer to at a time.
pub const MAX_OUTSTANDING_ATTEMPTS: usize = 256;

/// Attempts, owed or settled, that a hub session remembers to tell a late answer from a made-up one.
pub const MAX_REMEMBERED_ATTEMPTS: usize = 1024;

/// Attempts a worker may have started and not finished.
pub const MAX_STARTED_ATTEMPTS: usize = 64;
