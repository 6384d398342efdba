//! A table of figures and its three output formats. [`crate::tables`] provides the content.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, presets::ASCII_MARKDOWN};
use serde::{Serialize, Serializer, ser::SerializeMap};

/// Rows under named columns, with a title above and remarks below.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The name on the command line: `1`, `eq4`.
    pub name: &'static str,
    /// The heading.
    pub title: String,
    /// The columns, in order.
    pub columns: Vec<Column>,
    /// The rows, each as long as `columns`.
    pub rows: Vec<Vec<Cell>>,
    /// Remarks that a reader needs to judge the figures, each a sentence or two.
    pub notes: Vec<String>,
}

/// A column's two names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The name in JSON and CSV, with the unit: `paper_ms`.
    pub key: &'static str,
    /// The name in text.
    pub heading: &'static str,
    /// The digits of a number in text; JSON and CSV have all of them.
    pub digits: Digits,
}

/// How a number is written in text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digits {
    /// This many after the point.
    After(usize),
    /// Two after the point, none for a whole number: for columns of unlike quantities.
    Mixed,
    /// One digit and a power of ten: for errors.
    Magnitude,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A figure.
    Number(f64),
    /// A word or a reason.
    Text(String),
    /// Unknown: `-` in text, `null` in JSON, empty in CSV.
    Missing,
}

impl Table {
    /// Markdown, readable in a terminal and in a README. Ends with a newline.
    pub fn to_text(&self) -> String {
        let mut table = comfy_table::Table::new();
        // Not fitted to the terminal: the bytes depend on the figures alone.
        table
            .load_preset(ASCII_MARKDOWN)
            .set_content_arrangement(ContentArrangement::Disabled)
            .force_no_tty();
        table.set_header(self.columns.iter().map(|column| column.heading));
        for row in &self.rows {
            table.add_row(row.iter().zip(&self.columns).map(|(cell, column)| {
                let alignment = match cell {
                    Cell::Number(_) => CellAlignment::Right,
                    Cell::Text(_) | Cell::Missing => CellAlignment::Left,
                };
                comfy_table::Cell::new(cell.to_text(column.digits)).set_alignment(alignment)
            }));
        }
        let mut text = format!("{}\n\n{table}\n", self.title);
        for note in &self.notes {
            let _ = write!(text, "\n* {note}");
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        text
    }

    /// One JSON object on one line, rows as objects by column key, numbers with all their digits.
    pub fn to_json(&self) -> String {
        let mut json = serde_json::to_string(self).expect("a table has text keys and finite or null numbers");
        json.push('\n');
        json
    }

    /// A header of column keys, then a line per row; notes are left out.
    pub fn to_csv(&self) -> String {
        let mut csv = String::new();
        let keys = self.columns.iter().map(|column| column.key.to_owned());
        write_csv_line(&mut csv, keys);
        for row in &self.rows {
            write_csv_line(&mut csv, row.iter().map(Cell::to_csv));
        }
        csv
    }
}

impl Cell {
    fn to_text(&self, digits: Digits) -> String {
        match self {
            Self::Number(number) => match digits {
                Digits::After(decimals) => format!("{number:.decimals$}"),
                Digits::Mixed if number.fract() == 0.0 => format!("{number:.0}"),
                Digits::Mixed => format!("{number:.2}"),
                Digits::Magnitude => format!("{number:.0e}"),
            },
            Self::Text(text) => text.clone(),
            Self::Missing => "-".to_owned(),
        }
    }

    fn to_csv(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) if text.contains([',', '"', '\n']) => {
                format!("\"{}\"", text.replace('"', "\"\""))
            }
            Self::Text(text) => text.clone(),
            Self::Missing => String::new(),
        }
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Cell {
    fn from(number: u32) -> Self {
        Self::Number(f64::from(number))
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(cell: Option<T>) -> Self {
        cell.map_or(Self::Missing, Into::into)
    }
}

impl Serialize for Table {
    // Written by hand, so that rows are objects whose fields are in the columns' order.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Row<'a>(&'a [Column], &'a [Cell]);
        impl Serialize for Row<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.iter().map(|column| column.key).zip(self.1))
            }
        }
        let rows: Vec<Row<'_>> = self.rows.iter().map(|row| Row(&self.columns, row)).collect();
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry("table", self.name)?;
        map.serialize_entry("title", &self.title)?;
        map.serialize_entry("rows", &rows)?;
        map.serialize_entry("notes", &self.notes)?;
        map.end()
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            // A count stays a count: 8, not 8.0.
            Self::Number(number) if number.fract() == 0.0 && number.abs() < 2f64.powi(53) => {
                serializer.serialize_i64(*number as i64)
            }
            Self::Number(number) => serializer.serialize_f64(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Missing => serializer.serialize_none(),
        }
    }
}

fn write_csv_line(csv: &mut String, fields: impl Iterator<Item = String>) {
    for (index, field) in fields.enumerate() {
        if index > 0 {
            csv.push(',');
        }
        csv.push_str(&field);
    }
    csv.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let column = |key, heading, decimals| Column { key, heading, digits: Digits::After(decimals) };
        Table {
            name: "t",
            title: "A title".to_owned(),
            columns: vec![column("h", "h", 0), column("a_ms", "a, ms", 2), column("why", "why", 0)],
            rows: vec![
                vec![1u32.into(), 42.776.into(), "so, \"and\" so".into()],
                vec![2u32.into(), Cell::Missing, "".into()],
            ],
            notes: vec!["A note.".to_owned()],
        }
    }

    #[test]
    fn digits_in_text() {
        let text = |number, digits| Cell::Number(number).to_text(digits);
        assert_eq!(text(2.5, Digits::After(0)), "2");
        assert_eq!(text(2.345, Digits::After(1)), "2.3");
        assert_eq!(text(4096.0, Digits::Mixed), "4096");
        assert_eq!(text(25.165_824, Digits::Mixed), "25.17");
        assert_eq!(text(1.6e-9, Digits::Magnitude), "2e-9");
    }

    #[test]
    fn the_three_forms() {
        let text = "A title\n\n\
                    | h | a, ms | why          |\n\
                    |---|-------|--------------|\n\
                    | 1 | 42.78 | so, \"and\" so |\n\
                    | 2 | -     |              |\n\
                    \n* A note.\n";
        assert_eq!(table().to_text(), text);
        let json = r#"{"table":"t","title":"A title","rows":[{"h":1,"a_ms":42.776,"why":"so, \"and\" so"},{"h":2,"a_ms":null,"why":""}],"notes":["A note."]}"#;
        assert_eq!(table().to_json(), format!("{json}\n"));
        assert_eq!(table().to_csv(), "h,a_ms,why\n1,42.776,\"so, \"\"and\"\" so\"\n2,,\n");
    }
}
