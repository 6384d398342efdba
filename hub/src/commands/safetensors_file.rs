//! Writes a safetensors file front to back, without holding its tensors.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};

/// A tensor to come.
pub(super) struct Planned {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
}

impl Planned {
    pub(super) fn n_values(&self) -> usize {
        self.shape.iter().product()
    }

    pub(super) fn n_bytes(&self) -> usize {
        self.n_values() * self.dtype.bitsize() / 8
    }
}

/// A file under way. It lies beside its place as `.part` until all of it is written.
pub(super) struct SafetensorsFile {
    path: PathBuf,
    part: PathBuf,
    out: BufWriter<File>,
    left: usize,
}

impl SafetensorsFile {
    /// Begins a file of these tensors; their bytes follow in this order.
    pub(super) fn create(path: &Path, tensors: &[Planned]) -> io::Result<Self> {
        let mut end = 0;
        let infos = tensors.iter().map(|tensor| {
            let start = end;
            end += tensor.n_bytes();
            let info =
                TensorInfo { dtype: tensor.dtype, shape: tensor.shape.clone(), data_offsets: (start, end) };
            (tensor.name.clone(), info)
        });
        let metadata = Metadata::new(None, infos.collect()).map_err(io::Error::other)?;
        let mut header = serde_json::to_vec(&metadata)?;
        header.resize(header.len().next_multiple_of(8), b' ');

        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let mut out = BufWriter::new(File::create(&part)?);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        Ok(Self { path: path.to_owned(), part, out, left: end })
    }

    /// The next bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let left = self.left.checked_sub(bytes.len());
        self.left = left.ok_or_else(|| io::Error::other("more bytes than the tensors have"))?;
        self.out.write_all(bytes)
    }

    /// Puts the file in its place, whole.
    pub(super) fn finish(self) -> io::Result<()> {
        if self.left > 0 {
            return Err(io::Error::other(format!("{} bytes of the tensors are missing", self.left)));
        }
        self.out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&self.part, &self.path)
    }
}
