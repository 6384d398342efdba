//! Writes a safetensors file front to back, without holding its tensors in memory.

use std::{io, path::Path};

use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};

use super::part_file::PartFile;

/// A tensor that will be written.
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

/// A file being written.
pub(super) struct SafetensorsFile {
    file: PartFile,
    left: usize,
}

impl SafetensorsFile {
    /// Creates a file with these tensors; their bytes follow in this order.
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

        let mut file = PartFile::create(path)?;
        file.write(&(header.len() as u64).to_le_bytes())?;
        file.write(&header)?;
        Ok(Self { file, left: end })
    }

    /// Writes the next bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let left = self.left.checked_sub(bytes.len());
        self.left = left.ok_or_else(|| io::Error::other("more bytes than the tensors have"))?;
        self.file.write(bytes)
    }

    /// Moves the complete file into its place.
    pub(super) fn finish(self) -> io::Result<()> {
        if self.left > 0 {
            return Err(io::Error::other(format!("{} bytes of the tensors are missing", self.left)));
        }
        self.file.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
