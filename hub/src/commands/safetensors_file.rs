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

/// A file under way. It lies beside its place as `.part` until all of it is written, and is gone if it never is.
pub(super) struct SafetensorsFile {
    path: PathBuf,
    part: PathBuf,
    /// None only when the file is in its place.
    out: Option<BufWriter<File>>,
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
        Ok(Self { path: path.to_owned(), part, out: Some(out), left: end })
    }

    /// The next bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let left = self.left.checked_sub(bytes.len());
        self.left = left.ok_or_else(|| io::Error::other("more bytes than the tensors have"))?;
        self.out.as_mut().map_or(Ok(()), |out| out.write_all(bytes))
    }

    /// Puts the file in its place, whole.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if self.left > 0 {
            return Err(io::Error::other(format!("{} bytes of the tensors are missing", self.left)));
        }
        if let Some(out) = self.out.as_mut() {
            out.flush()?;
            out.get_ref().sync_all()?;
            fs::rename(&self.part, &self.path)?;
            self.out = None;
        }
        Ok(())
    }
}

impl Drop for SafetensorsFile {
    fn drop(&mut self) {
        if self.out.take().is_some() {
            // What ended the writing is what the user hears of.
            let _ = fs::remove_file(&self.part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let tensors = [Planned { name: "x".to_owned(), dtype: Dtype::BF16, shape: vec![2, 3] }];

        let mut file = SafetensorsFile::create(&path, &tensors).unwrap();
        file.write(&[1; 8]).unwrap();
        assert!(file.write(&[1; 8]).is_err(), "more than the tensor has");
        drop(file);
        assert!(SafetensorsFile::create(&path, &tensors).unwrap().finish().is_err(), "nothing was written");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

        let mut file = SafetensorsFile::create(&path, &tensors).unwrap();
        file.write(&[1; 8]).unwrap();
        file.write(&[2; 4]).unwrap();
        file.finish().unwrap();
        let bytes = fs::read(&path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(tensors.tensor("x").unwrap().data(), [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]);
    }
}
