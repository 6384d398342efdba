//! Writes JSON like Python's `json.dumps(value, ensure_ascii=False)`, the format of tools in training data.

use std::io;

use serde::Serialize;
use serde_json::{
    Value,
    ser::{Formatter, PrettyFormatter, Serializer},
};

/// The most spaces a level is indented by.
const MAX_INDENT: usize = 16;

/// `value` on one line with `", "` and `": "`, or indented.
pub(super) fn python_dumps(value: &Value, indent: Option<usize>) -> String {
    let mut out = Vec::new();
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut out, Python)),
        Some(spaces) => {
            let spaces = " ".repeat(spaces.min(MAX_INDENT));
            value.serialize(&mut Serializer::with_formatter(
                &mut out,
                PrettyFormatter::with_indent(spaces.as_bytes()),
            ))
        }
    };
    written.expect("a JSON value can always be written to memory");
    String::from_utf8(out).expect("JSON is UTF-8")
}

struct Python;

impl Formatter for Python {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(python_float(value).as_bytes())
    }
}

/// The shortest digits that read back as `value`, with an exponent where Python writes one: below 1e-4 and from 1e16.
fn python_float(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{value:?}");
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_line_as_python_writes_it() {
        let value = json!({"b": [1, 2.0, null, true], "a": "<é & '\"\n>", "e": {}, "l": []});
        let expected = r#"{"b": [1, 2.0, null, true], "a": "<é & '\"\n>", "e": {}, "l": []}"#;
        assert_eq!(python_dumps(&value, None), expected, "keys in their order, nothing escaped for HTML");
    }

    #[test]
    fn indented_as_python_writes_it() {
        let value = json!({"a": [1, {}], "b": "c"});
        assert_eq!(python_dumps(&value, Some(2)), "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": \"c\"\n}");
    }

    #[test]
    fn floats_as_python_writes_them() {
        for (value, text) in
            [(1.0, "1.0"), (0.1, "0.1"), (1e16, "1e+16"), (1.5e-7, "1.5e-07"), (123_456.789, "123456.789")]
        {
            assert_eq!(python_float(value), text);
        }
        assert_eq!(python_float(-2.5e100), "-2.5e+100");
    }
}
