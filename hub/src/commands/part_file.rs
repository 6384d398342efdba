//! Writes a file that appears in its place only when it is complete.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// A file being written. It is named `.part` until complete, and removed if it is never completed.
pub(super) struct PartFile {
    path: PathBuf,
    part: PathBuf,
    /// None once the file is in its place.
    out: Option<BufWriter<File>>,
}

impl PartFile {
    /// Creates a file that will end up at `path`.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let out = BufWriter::with_capacity(1 << 20, File::create(&part)?);
        Ok(Self { path: path.to_owned(), part, out: Some(out) })
    }

    /// Writes the next bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.as_mut().map_or(Ok(()), |out| out.write_all(bytes))
    }

    /// Moves the file into its place.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if let Some(out) = self.out.as_mut() {
            out.flush()?;
            out.get_ref().sync_all()?;
            fs::rename(&self.part, &self.path)?;
            self.out = None;
        }
        Ok(())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if self.out.take().is_some() {
            // The user sees the error that ended the writing, not one from the removal.
            let _ = fs::remove_file(&self.part);
        }
    }
}
