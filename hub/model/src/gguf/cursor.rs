//! A position in a file's bytes that never exceeds their end.

use super::{GgufError, MAX_STRING_BYTES};

/// Reads little-endian numbers and strings, front to back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes from the start.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Returns the next `n` bytes; `what` names them in errors.
    pub(super) fn take(&mut self, n: u64, what: &str) -> Result<&'a [u8], GgufError> {
        let end = (self.at as u64).saturating_add(n);
        let taken = usize::try_from(end).ok().and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| GgufError::Truncated {
            what: what.to_owned(),
            end,
            len: self.bytes.len() as u64,
        })?;
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let bytes = self.take(N as u64, what)?;
        Ok(bytes.try_into().expect("as many as were asked for"))
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Reads a count of `what`, which is limited.
    pub(super) fn count(&mut self, what: &str, most: u64) -> Result<u64, GgufError> {
        let count = self.u64(what)?;
        if count > most {
            return Err(GgufError::TooMany { what: what.to_owned(), count, most });
        }
        Ok(count)
    }

    /// A string: its length as u64, then UTF-8.
    pub(super) fn string(&mut self, what: &str) -> Result<&'a str, GgufError> {
        self.string_within(what, MAX_STRING_BYTES)
    }

    /// [`Self::string`], of at most `most` bytes.
    pub(super) fn string_within(&mut self, what: &str, most: u64) -> Result<&'a str, GgufError> {
        let n_bytes = self.u64(what)?;
        if n_bytes > most {
            let what = format!("the bytes of {what} are");
            return Err(GgufError::TooMany { what, count: n_bytes, most });
        }
        std::str::from_utf8(self.take(n_bytes, what)?).map_err(|_| GgufError::Utf8(what.to_owned()))
    }
}
