//! Memory for weights, in huge pages where the system has them.

use std::{
    io,
    ops::{Deref, DerefMut},
};

/// Bytes, zero at first, that start at a page.
///
/// In huge pages, reading blocks chosen at random out of many gigabytes is about a fifth faster. That pays from a few
/// MiB on, so one slab holds many experts.
#[derive(Debug)]
pub struct Slab {
    #[cfg(unix)]
    map: memmap2::MmapMut,
    #[cfg(not(unix))]
    map: Vec<u8>,
    len: usize,
}

/// Whether a [`Slab`] asks for huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// As the system gives them.
    Small,
    /// Advised, where the system takes advice.
    Huge,
}

impl Slab {
    /// `len` bytes.
    ///
    /// # Errors
    /// If the system does not give them.
    pub fn new(len: usize, pages: PageSize) -> io::Result<Self> {
        #[cfg(unix)]
        let map = memmap2::MmapMut::map_anon(len.max(1))?;
        #[cfg(target_os = "linux")]
        if pages == PageSize::Huge {
            // The system may refuse: the memory is as good, only slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = pages;
        #[cfg(not(unix))]
        let map = vec![0; len.max(1)];
        Ok(Self { map, len })
    }
}

impl Deref for Slab {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[..self.len]
    }
}

impl DerefMut for Slab {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.len]
    }
}
