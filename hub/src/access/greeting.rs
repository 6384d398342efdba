//! Lays out the hub's startup message for the terminal's width.

use super::{links, qr};

/// In narrower terminals a label stands above its URL, which would not fit beside it.
const MIN_COLUMNS_FOR_LABELS: usize = 60;
/// Assumed width if the terminal's is unknown.
const DEFAULT_COLUMNS: usize = 80;
/// Maximum width of text, since long lines are hard to read.
const MAX_COLUMNS: usize = 100;

/// Contents of the message.
#[derive(Clone, Debug)]
pub struct Greeting<'a> {
    /// The model and the formats it is computed with: one line each.
    pub model: &'a str,
    /// The page for phones, with the token.
    pub phone: Option<&'a str>,
    /// URL for the QR code, if one is shown.
    pub qr: Option<&'a str>,
    /// Origins, the best first; at least one.
    pub origins: &'a [String],
    /// The token that workers join with.
    pub token: &'a str,
    /// Join URL for native workers, if it differs from the tabs'.
    pub worker: Option<&'a str>,
    /// Next steps and notes: one paragraph each.
    pub notes: &'a [String],
}

impl Greeting<'_> {
    /// The message for a terminal of this width; only URLs may be longer.
    pub fn text(&self, columns: usize) -> String {
        let fragment = links::fragment(self.token, None);
        let first = self.origins.first().map(String::as_str).unwrap_or_default();
        let model = format!("moex serves {}", self.model);
        let mut text = String::new();
        for line in model.lines() {
            text += &wrapped(line, columns);
            text.push('\n');
        }
        let mut row = |label: &str, url: &str| {
            text += &match columns < MIN_COLUMNS_FOR_LABELS {
                // At the left margin, a URL that the terminal breaks can still be opened and copied.
                true if label.is_empty() => format!("\n{url}"),
                true => format!("\n{label}\n{url}"),
                false => format!("\n  {label:<6} {url}"),
            };
        };
        if let Some(phone) = self.phone {
            row("phone", phone);
        }
        row("chat", &format!("{first}/"));
        row("API", &format!("{first}/v1"));
        row("swarm", &format!("{first}/swarm"));
        for (n, origin) in self.origins.iter().enumerate() {
            row(if n == 0 { "join" } else { "" }, &format!("{origin}/join#{fragment}"));
        }
        if let Some(worker) = self.worker {
            row("worker", worker);
        }
        if let Some(qr) = self.qr {
            text.push_str("\n\n");
            text += &match qr::lines(qr, columns) {
                Some(lines) => lines.join("\n"),
                None => wrapped("This window is too narrow for the QR code.", columns),
            };
        }
        for note in self.notes {
            text += &format!("\n\n{}", wrapped(note, columns));
        }
        text
    }
}

/// Width of the terminal at stderr, or a default.
pub fn columns() -> usize {
    let mut table = comfy_table::Table::new();
    table.use_stderr();
    table.width().map_or(DEFAULT_COLUMNS, usize::from).clamp(20, MAX_COLUMNS)
}

/// Breaks the paragraph at spaces into lines of at most this many characters.
pub fn wrapped(paragraph: &str, columns: usize) -> String {
    let mut text = String::new();
    let mut used = 0;
    for word in paragraph.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > columns {
            text.push('\n');
            used = 0;
        } else if used > 0 {
            text.push(' ');
            used += 1;
        }
        text += word;
        used += length;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(columns: usize) -> String {
        let origins = ["http://192.0.2.7:80".to_owned(), "http://desk.local:80".to_owned()];
        let notes =
            ["Open a join address in a tab, or give it to `moex worker`, to lend a machine.".to_owned()];
        let (phone, qr) = (Some("http://192.0.2.7:81/#t0ken"), Some("http://192.0.2.7:81/#t0ken"));
        let (model, worker) = ("demo: 8 layers, context 512", Some("https://192.0.2.7/join#t0ken,ca=12"));
        Greeting { model, phone, qr, origins: &origins, token: "t0ken", worker, notes: &notes }.text(columns)
    }

    #[test]
    fn every_address_has_a_line_to_share() {
        let text = greeting(80);
        assert!(text.contains("\n  join   http://192.0.2.7:80/join#t0ken\n"), "{text}");
        assert!(text.contains("\n         http://desk.local:80/join#t0ken\n"), "{text}");
    }

    #[test]
    fn no_line_but_a_url_is_wider_than_the_window() {
        for columns in [20, 40, 60, 80] {
            for line in greeting(columns).lines() {
                let is_code = line.starts_with('\x1b');
                assert!(
                    line.chars().count() <= columns || line.starts_with("http") || is_code,
                    "{columns}: {line}"
                );
            }
        }
    }
}
