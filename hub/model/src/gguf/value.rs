//! Metadata values, borrowed from the file.

use super::{GgufError, MAX_ELEMENTS, cursor::Cursor};

/// One value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// f32 or f64.
    Float(f64),
    /// One byte, 0 or 1.
    Bool(bool),
    /// UTF-8.
    Text(&'a str),
    /// Values of one type.
    Array(Array<'a>),
}

/// Values of one scalar type, or strings, as checked bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    element: Kind,
    n: usize,
    bytes: &'a [u8],
}

/// The value types, by their numbers in the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Text = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl<'a> Value<'a> {
    /// The value of `key`: its type, then itself.
    pub(super) fn read(cursor: &mut Cursor<'a>, key: &str) -> Result<Self, GgufError> {
        let kind = Kind::read(cursor, key)?;
        if kind != Kind::Array {
            return kind.read_value(cursor, key);
        }
        let element = Kind::read(cursor, key)?;
        if element == Kind::Array {
            return Err(GgufError::WrongValue { key: key.to_owned(), expected: "an array of plain values" });
        }
        let n = cursor.u64(key)?;
        if n > MAX_ELEMENTS {
            let what = format!("the elements of {key} are");
            return Err(GgufError::TooMany { what, count: n, most: MAX_ELEMENTS });
        }
        let mut end = *cursor;
        match element.n_bytes() {
            Some(each) => {
                end.take(n * each, key)?;
            }
            None => {
                for _ in 0..n {
                    end.string(key)?;
                }
            }
        }
        let bytes = cursor.take((end.position() - cursor.position()) as u64, key)?;
        Ok(Self::Array(Array { element, n: n as usize, bytes }))
    }

    /// Of an integer that is not negative.
    pub fn as_u64(self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(value),
            Self::Signed(value) => value.try_into().ok(),
            _ => None,
        }
    }

    /// Of a number.
    pub fn as_f64(self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(value),
            Self::Unsigned(value) => Some(value as f64),
            Self::Signed(value) => Some(value as f64),
            _ => None,
        }
    }

    /// Of a text.
    pub fn as_str(self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Of an array.
    pub fn as_array(self) -> Option<Array<'a>> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }
}

impl<'a> Array<'a> {
    /// Its elements.
    pub fn len(&self) -> usize {
        self.n
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Its elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (element, mut cursor) = (self.element, Cursor::new(self.bytes));
        (0..self.n).map(move |_| {
            element.read_value(&mut cursor, "").expect("an array was read whole when it was made")
        })
    }
}

impl Kind {
    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, GgufError> {
        const ALL: [Kind; 13] = [
            Kind::U8,
            Kind::I8,
            Kind::U16,
            Kind::I16,
            Kind::U32,
            Kind::I32,
            Kind::F32,
            Kind::Bool,
            Kind::Text,
            Kind::Array,
            Kind::U64,
            Kind::I64,
            Kind::F64,
        ];
        let kind = cursor.u32(key)?;
        let known = usize::try_from(kind).ok().and_then(|kind| ALL.get(kind)).copied();
        known.ok_or_else(|| GgufError::ValueType { key: key.to_owned(), kind })
    }

    /// Of a scalar.
    fn n_bytes(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text | Self::Array => None,
        }
    }

    fn read_value<'a>(self, cursor: &mut Cursor<'a>, key: &str) -> Result<Value<'a>, GgufError> {
        Ok(match self {
            Self::U8 => Value::Unsigned(cursor.array::<1>(key)?[0].into()),
            Self::I8 => Value::Signed(i8::from_le_bytes(cursor.array(key)?).into()),
            Self::U16 => Value::Unsigned(u16::from_le_bytes(cursor.array(key)?).into()),
            Self::I16 => Value::Signed(i16::from_le_bytes(cursor.array(key)?).into()),
            Self::U32 => Value::Unsigned(cursor.u32(key)?.into()),
            Self::I32 => Value::Signed(i32::from_le_bytes(cursor.array(key)?).into()),
            Self::F32 => Value::Float(f32::from_le_bytes(cursor.array(key)?).into()),
            Self::Bool => Value::Bool(cursor.array::<1>(key)?[0] != 0),
            Self::Text => Value::Text(cursor.string(key)?),
            Self::U64 => Value::Unsigned(cursor.u64(key)?),
            Self::I64 => Value::Signed(i64::from_le_bytes(cursor.array(key)?)),
            Self::F64 => Value::Float(f64::from_le_bytes(cursor.array(key)?)),
            Self::Array => {
                let expected = "an array of plain values";
                return Err(GgufError::WrongValue { key: key.to_owned(), expected });
            }
        })
    }
}
