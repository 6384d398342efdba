//! A file that is whole or not there.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// A file under way. It lies beside its place as `.part` until all of it is written, and is gone if it never is.
pub(super) struct PartFile {
    path: PathBuf,
    part: PathBuf,
    /// None only when the file is in its place.
    out: Option<BufWriter<File>>,
}

impl PartFile {
    /// Begins a file that will lie at `path`.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let out = BufWriter::with_capacity(1 << 20, File::create(&part)?);
        Ok(Self { path: path.to_owned(), part, out: Some(out) })
    }

    /// The next bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.as_mut().map_or(Ok(()), |out| out.write_all(bytes))
    }

    /// Puts the file in its place.
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
            // What ended the writing is what the user hears of.
            let _ = fs::remove_file(&self.part);
        }
    }
}
