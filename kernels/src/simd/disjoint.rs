//! A buffer that several threads write at once, each to its own part.

use std::{marker::PhantomData, ops::Range};

/// A mutable slice in parts; its user must know that they do not overlap.
#[derive(Clone, Copy)]
pub(super) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    buffer: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` whose parts go to several threads; `part` asks that they be disjoint.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(super) fn new(buffer: &'a mut [T]) -> Self {
        Self { start: buffer.as_mut_ptr(), len: buffer.len(), buffer: PhantomData }
    }

    /// # Safety
    /// While the part is in use, no other part that overlaps it may be.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part of the buffer");
        // SAFETY: within the buffer, which is borrowed mutably for 'a, and by the contract used nowhere else.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
