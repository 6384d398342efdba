//! Reads lines from the terminal: edited, kept in a history, or hidden.

use std::borrow::Cow;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use anyhow::Context;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::Validator;
use rustyline::{Behavior, ColorMode, Config, DefaultEditor, Editor, Helper};

use crate::access::state_folder::{StateFolder, make_private_folder};

/// Most lines in the history.
const MAX_HISTORY: usize = 1000;
/// Name of the history file in the state folder.
const HISTORY_FILE: &str = "chat-history";

/// What a person typed.
pub(super) enum Typed {
    /// A line, without its end.
    Line(String),
    /// Ctrl-C: the line is discarded.
    Interrupt,
    /// Ctrl-D: end of input.
    End,
}

/// Reads lines from the terminal.
pub(super) struct LineEditor {
    editor: DefaultEditor,
    /// The history file; none after an error with it.
    history: Option<PathBuf>,
}

impl LineEditor {
    /// Opens the terminal and loads the history.
    pub(super) fn open() -> anyhow::Result<Self> {
        let config = Config::builder()
            .behavior(behavior())
            .max_history_size(MAX_HISTORY)
            .context("the history has a size")?
            // As in a shell, lines that begin with a space stay out of the history.
            .history_ignore_space(true)
            .build();
        let mut editor = DefaultEditor::with_config(config).context("the terminal cannot be used")?;
        let folder = StateFolder::default_path();
        let made = make_private_folder(&folder);
        if let Err(error) = &made {
            eprintln!("moex: the history is not kept: {}: {error}", folder.display());
        }
        let history = made.is_ok().then(|| folder.join(HISTORY_FILE));
        // The file is missing at the first run; an unreadable one is replaced.
        let _ = history.as_ref().map(|history| editor.load_history(history));
        Ok(Self { editor, history })
    }

    /// Reads the next line.
    pub(super) fn read(&mut self) -> anyhow::Result<Typed> {
        match self.editor.readline("> ") {
            Ok(line) => {
                self.remember(&line);
                Ok(Typed::Line(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Typed::Interrupt),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(error).context("the terminal cannot be read"),
        }
    }

    fn remember(&mut self, line: &str) {
        let Some(history) = &self.history else { return };
        // The editor creates the file readable by its owner alone.
        let remembered =
            self.editor.add_history_entry(line).and_then(|_| self.editor.append_history(history));
        if let Err(error) = remembered {
            eprintln!("moex: the history is not kept: {}: {error}", history.display());
            self.history = None;
        }
    }
}

/// Asks for a line that is shown as stars and not kept; none if the user leaves it empty.
///
/// # Errors
/// If the terminal cannot be used.
pub(super) fn read_hidden(prompt: &str) -> anyhow::Result<Option<String>> {
    let config = Config::builder()
        .behavior(Behavior::PreferTerm)
        // The editor masks the line only if colours are on.
        .color_mode(ColorMode::Forced)
        .auto_add_history(false)
        .build();
    let mut editor = Editor::<Stars, MemHistory>::with_history(config, MemHistory::new())
        .context("the terminal cannot be used")?;
    editor.set_helper(Some(Stars));
    match editor.readline(prompt) {
        Ok(line) => Ok(Some(line.trim().to_owned()).filter(|line| !line.is_empty())),
        Err(ReadlineError::Interrupted | ReadlineError::Eof) => Ok(None),
        Err(error) => Err(error).context("the terminal cannot be read"),
    }
}

/// The prompt goes to the terminal even if answers go to a file.
fn behavior() -> Behavior {
    if io::stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm }
}

/// Shows every character as a star.
struct Stars;

impl Highlighter for Stars {
    fn highlight<'l>(&self, line: &'l str, _pos: usize) -> Cow<'l, str> {
        Cow::Owned("*".repeat(line.chars().count()))
    }

    fn highlight_char(&self, _line: &str, _pos: usize, kind: CmdKind) -> bool {
        kind != CmdKind::MoveCursor
    }
}

impl Completer for Stars {
    type Candidate = String;
}

impl Hinter for Stars {
    type Hint = String;
}

impl Validator for Stars {}

impl Helper for Stars {}
