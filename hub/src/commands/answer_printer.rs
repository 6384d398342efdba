//! Prints an answer as it arrives: content to stdout, and on a terminal the reasoning too, dimmed.

use std::io::{self, IsTerminal, Write};

use super::hub_client::Delta;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Prints one answer.
pub(super) struct AnswerPrinter<W: Write> {
    out: W,
    /// Shows reasoning and drops control characters.
    terminal: bool,
    dimmed: bool,
    /// The content, for the conversation's next request.
    content: String,
    at_line_start: bool,
}

impl AnswerPrinter<io::Stdout> {
    /// Prints to stdout.
    pub(super) fn stdout() -> Self {
        let out = io::stdout();
        let terminal = out.is_terminal();
        Self::new(out, terminal)
    }
}

impl<W: Write> AnswerPrinter<W> {
    fn new(out: W, terminal: bool) -> Self {
        Self { out, terminal, dimmed: false, content: String::new(), at_line_start: true }
    }

    /// Prints a piece.
    pub(super) fn print(&mut self, delta: &Delta<'_>) -> io::Result<()> {
        match delta {
            Delta::Reasoning(_) if !self.terminal => Ok(()),
            Delta::Reasoning(text) => {
                if !self.dimmed {
                    self.dimmed = true;
                    self.out.write_all(DIM.as_bytes())?;
                }
                self.write(text)
            }
            Delta::Content(text) => {
                self.undim()?;
                self.content.push_str(text);
                self.write(text)
            }
            Delta::Call(name, arguments) => {
                self.undim()?;
                self.write(&format!("{name}({arguments})\n"))
            }
        }
    }

    /// Ends the line and returns the content.
    pub(super) fn finish(mut self) -> io::Result<String> {
        self.undim()?;
        if !self.at_line_start {
            self.out.write_all(b"\n")?;
        }
        self.out.flush()?;
        Ok(self.content)
    }

    fn undim(&mut self) -> io::Result<()> {
        if self.dimmed {
            self.dimmed = false;
            self.out.write_all(PLAIN.as_bytes())?;
            if !self.at_line_start {
                self.write("\n")?;
            }
        }
        Ok(())
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        let Some(last) = text.chars().last() else { return Ok(()) };
        self.at_line_start = last == '\n';
        if self.terminal {
            // A model's text must not move the cursor or colour the terminal.
            let safe: String = text.chars().filter(|&c| !c.is_control() || c == '\n' || c == '\t').collect();
            self.out.write_all(safe.as_bytes())?;
        } else {
            self.out.write_all(text.as_bytes())?;
        }
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(terminal: bool, deltas: &[Delta<'_>]) -> (String, String) {
        let mut bytes = Vec::new();
        let mut printer = AnswerPrinter::new(&mut bytes, terminal);
        for delta in deltas {
            printer.print(delta).unwrap();
        }
        let content = printer.finish().unwrap();
        (String::from_utf8(bytes).unwrap(), content)
    }

    #[test]
    fn a_person_sees_the_reasoning_dimmed_and_a_pipe_gets_the_content_alone() {
        let deltas = [Delta::Reasoning("so"), Delta::Content("4"), Delta::Content("2\x1b[31m")];
        assert_eq!(
            printed(true, &deltas),
            ("\x1b[2mso\x1b[0m\n42[31m\n".to_owned(), "42\x1b[31m".to_owned())
        );
        assert_eq!(printed(false, &deltas).0, "42\x1b[31m\n");
    }

    #[test]
    fn a_call_is_one_line() {
        assert_eq!(printed(false, &[Delta::Call("f", "{}")]).0, "f({})\n");
    }
}
