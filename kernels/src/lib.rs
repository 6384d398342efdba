//! The arithmetic of moex.
