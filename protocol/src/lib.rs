//! The wire of moex and its rules.
