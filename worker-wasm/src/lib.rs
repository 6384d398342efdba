//! The worker: holds experts and answers for them.
