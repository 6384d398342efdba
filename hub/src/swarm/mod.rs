//! Which worker holds what, who is asked, and what counts as an answer. No I/O, no clock.
