//! Tabs of a real Chromium as workers.
