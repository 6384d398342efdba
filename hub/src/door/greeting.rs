//! What a hub says on the terminal when it serves, laid out for the terminal's width.

use super::{links, qr};

/// Narrower than this, a label stands above its URL: beside it no URL would fit.
const MIN_COLUMNS_FOR_LABELS: usize = 60;
/// Where nothing is known of the terminal.
const DEFAULT_COLUMNS: usize = 80;
/// Text is not spread over more: long lines are hard to read.
const MAX_COLUMNS: usize = 100;

/// What there is to say.
#[derive(Clone, Debug)]
pub struct Greeting<'a> {
    /// What is served, and what it is computed with: a line each.
    pub model: &'a str,
    /// The page for phones, with the token.
    pub phone: Option<&'a str>,
    /// What a QR code shows, if one is to be shown.
    pub qr: Option<&'a str>,
    /// Where, the best first; at least one.
    pub origins: &'a [String],
    /// What workers join with.
    pub token: &'a str,
    /// The join URL for native workers, where it is another than for tabs.
    pub worker: Option<&'a str>,
    /// What to do next, and what to know: a paragraph each.
    pub notes: &'a [String],
}

impl Greeting<'_> {
    /// The text for a window of so many columns; only URLs may be longer.
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
                // Flush left, a URL that the terminal breaks can still be opened and copied.
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

/// The columns of the terminal that stderr is, or as many as fit most.
pub fn columns() -> usize {
    let mut table = comfy_table::Table::new();
    table.use_stderr();
    table.width().map_or(DEFAULT_COLUMNS, usize::from).clamp(20, MAX_COLUMNS)
}

/// The paragraph in lines of at most so many characters, broken at spaces.
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
