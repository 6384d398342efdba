//! Reads everything before the tensors' bytes, and locates those.

use std::{collections::HashMap, ops::Range};

use moex_kernels::WeightFormat;

use super::{
    DEFAULT_ALIGNMENT, GgufError, MAGIC, MAX_ALIGNMENT, MAX_DIMENSIONS, MAX_KEYS, MAX_NAME_BYTES,
    MAX_TENSORS, cursor::Cursor, kind, value::Value,
};

/// A file's metadata and tensor table.
#[derive(Clone, Debug)]
pub struct Gguf<'a> {
    metadata: HashMap<&'a str, Value<'a>>,
    tensors: Vec<TensorInfo<'a>>,
}

/// A tensor in a file. Its bytes are checked to be within the file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Its format; rows are whole blocks.
    pub format: WeightFormat,
    /// Rows before columns: the reverse of how the file lists them.
    pub shape: Vec<usize>,
    /// Location in the file.
    pub bytes: Range<usize>,
}

impl<'a> Gguf<'a> {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// If the GGUF is invalid, including tensors past its end; names the first problem.
    pub fn parse(file: &'a [u8]) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(file);
        if file.get(..4) != Some(&MAGIC) {
            return Err(GgufError::Magic);
        }
        cursor.take(4, "the magic")?;
        match cursor.u32("the version")? {
            2 | 3 => {}
            // Version 2 or 3 in the other byte order.
            0x0200_0000 | 0x0300_0000 => return Err(GgufError::BigEndian),
            other => return Err(GgufError::Version(other)),
        }
        let n_tensors = cursor.count("the tensors are", MAX_TENSORS)?;
        let n_keys = cursor.count("the keys are", MAX_KEYS)?;

        let mut metadata = HashMap::new();
        for _ in 0..n_keys {
            let key = cursor.string_within("a key", MAX_NAME_BYTES)?;
            if metadata.insert(key, Value::read(&mut cursor, key)?).is_some() {
                return Err(GgufError::Duplicate(key.to_owned()));
            }
        }
        let alignment = alignment(&metadata)?;

        let mut tensors = Vec::new();
        let mut offsets = Vec::new();
        for _ in 0..n_tensors {
            let (tensor, offset) = read_tensor(&mut cursor)?;
            tensors.push(tensor);
            offsets.push(offset);
        }
        let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(GgufError::Duplicate(twice[0].to_owned()));
        }

        let data = (cursor.position() as u64).next_multiple_of(alignment);
        for (tensor, offset) in tensors.iter_mut().zip(offsets) {
            place(tensor, data, offset, alignment, file.len())?;
        }
        Ok(Self { metadata, tensors })
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.metadata.get(key).copied()
    }

    /// The text of a key; none if the key is missing.
    ///
    /// # Errors
    /// If it is no text.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        self.typed(key, "a text", Value::as_str)
    }

    /// The integer of a key; none if the key is missing.
    ///
    /// # Errors
    /// If it is no integer from 0 to `u32::MAX`.
    pub fn integer(&self, key: &str) -> Result<Option<u32>, GgufError> {
        let integer = |value: Value<'_>| value.as_u64().and_then(|value| value.try_into().ok());
        self.typed(key, "an integer from 0 to 4,294,967,295", integer)
    }

    /// The number of a key; none if the key is missing.
    ///
    /// # Errors
    /// If it is no number.
    pub fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "a number", Value::as_f64)
    }

    /// The tensors, in the order of the file's table.
    pub fn tensors(&self) -> &[TensorInfo<'a>] {
        &self.tensors
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let wrong = || GgufError::WrongValue { key: key.to_owned(), expected };
        self.get(key).map(|value| read(value).ok_or_else(wrong)).transpose()
    }
}

fn alignment(metadata: &HashMap<&str, Value<'_>>) -> Result<u64, GgufError> {
    let Some(value) = metadata.get("general.alignment") else { return Ok(DEFAULT_ALIGNMENT) };
    let alignment = value.as_u64().unwrap_or(0);
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        return Err(GgufError::Alignment(alignment));
    }
    Ok(alignment)
}

/// A tensor from the table, with `bytes` starting at 0, and its offset in the data.
fn read_tensor<'a>(cursor: &mut Cursor<'a>) -> Result<(TensorInfo<'a>, u64), GgufError> {
    let name = cursor.string_within("a tensor's name", MAX_NAME_BYTES)?;
    let tensor = || name.to_owned();
    let n = cursor.u32(name)?;
    if !(1..=MAX_DIMENSIONS).contains(&n) {
        return Err(GgufError::Dimensions { tensor: tensor(), n });
    }
    let mut dimensions = (0..n).map(|_| cursor.u64(name)).collect::<Result<Vec<_>, _>>()?;
    let format =
        kind::format(cursor.u32(name)?).map_err(|kind| GgufError::Type { tensor: tensor(), kind })?;
    let offset = cursor.u64(name)?;

    let cols = dimensions[0];
    if !cols.is_multiple_of(format.block_cols() as u64) {
        return Err(GgufError::Ragged { tensor: tensor(), cols, format });
    }
    let rows = dimensions[1..].iter().try_fold(1, |rows: u64, n| rows.checked_mul(*n));
    // Readers multiply dimensions in any order, so they may not overflow beside a 0 either.
    let is_product = dimensions.iter().try_fold(1, |all: u64, n| all.checked_mul((*n).max(1))).is_some();
    let sizes = rows.filter(|_| is_product).zip(usize::try_from(cols).ok()).and_then(|(rows, cols)| {
        let n_bytes = format.matrix_bytes(usize::try_from(rows).ok()?, cols);
        // `usize::MAX` represents an overflow.
        (n_bytes < usize::MAX).then_some(n_bytes)
    });
    let Some(n_bytes) = sizes else { return Err(GgufError::Overflow { tensor: tensor(), dimensions }) };
    dimensions.reverse();
    let shape = dimensions.iter().map(|n| usize::try_from(*n).unwrap_or(usize::MAX)).collect();
    Ok((TensorInfo { name, format, shape, bytes: 0..n_bytes }, offset))
}

/// Moves a tensor's range to its location in the file.
fn place(
    tensor: &mut TensorInfo<'_>,
    data: u64,
    offset: u64,
    alignment: u64,
    file_bytes: usize,
) -> Result<(), GgufError> {
    let name = || tensor.name.to_owned();
    if !offset.is_multiple_of(alignment) {
        return Err(GgufError::Misaligned { tensor: name(), offset, alignment });
    }
    let start = data.saturating_add(offset);
    let end = start.saturating_add(tensor.bytes.len() as u64);
    if end > file_bytes as u64 {
        return Err(GgufError::Truncated { what: name(), end, len: file_bytes as u64 });
    }
    tensor.bytes = start as usize..end as usize;
    Ok(())
}
