//! `moex chat`: talks to a running hub.

mod conversation;
mod line_editor;

use std::future;
use std::io::{self, BufRead, IsTerminal};

use clap::builder::FalseyValueParser;
use tokio::runtime::Runtime;

use self::conversation::{Answered, Conversation, Settings};
use self::line_editor::{LineEditor, Typed, read_hidden};
use super::hub_args::HubArgs;
use super::hub_client::{HubClient, KeyError};
use super::sentence;

/// How often a user may type an API key.
const KEY_TRIES: usize = 3;

const HELP: &str = "\
/new           start a new conversation
/again         ask the last question again
/system TEXT   set the system prompt; without TEXT, remove it
/exit          end; so does Ctrl-D
Ctrl-C stops an answer. The arrow keys edit the line and recall earlier ones.
A line that begins with // is sent with a single /; one that begins with a space stays out of the history.";

/// Talks to a running hub: asks one prompt, or holds a conversation without one.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to ask. Without it, each line of stdin is one question.
    prompt: Option<String>,

    #[command(flatten)]
    hub: HubArgs,

    /// Maximum number of tokens in an answer.
    #[arg(long, env = "MOEX_MAX_TOKENS", value_name = "N")]
    max_tokens: Option<u32>,

    /// Sampling temperature; 0 always takes the most likely token.
    #[arg(long, env = "MOEX_TEMPERATURE", value_name = "T")]
    temperature: Option<f64>,

    /// Answer without thinking first.
    #[arg(long, env = "MOEX_NO_THINKING", value_parser = FalseyValueParser::new())]
    no_thinking: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let person = io::stdin().is_terminal();
    let (client, model) = connect(&args, &runtime, person)?;
    let settings =
        Settings { max_tokens: args.max_tokens, temperature: args.temperature, thinking: !args.no_thinking };
    let mut conversation = Conversation::new(client, model, settings);
    let ended = match &args.prompt {
        Some(prompt) => ask(&mut conversation, &runtime, prompt),
        None if person => converse(&mut conversation, &runtime, &args.hub.url),
        None => ask_each_line(&mut conversation, &runtime),
    };
    match ended {
        // The reader of stdout has closed it, as in `moex chat … | head`.
        Err(error) if is_broken_pipe(&error) => Ok(()),
        ended => ended,
    }
}

/// Connects to the hub and returns the client with the model's name. Asks the user for a key if the hub needs one.
fn connect(args: &Args, runtime: &Runtime, person: bool) -> anyhow::Result<(HubClient, String)> {
    let mut key = args.hub.api_key.clone();
    let mut tries = if person { KEY_TRIES } else { 0 };
    loop {
        let client = args.hub.client(key.as_deref())?;
        match runtime.block_on(client.model()) {
            Ok(model) => return Ok((client, model)),
            Err(error) if tries > 0 && error.is::<KeyError>() => {
                tries -= 1;
                eprintln!("moex: {}", sentence(&error));
                key = read_hidden("API key: ")?;
                if key.is_none() {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Asks one question. Ctrl-C ends the command.
fn ask(conversation: &mut Conversation, runtime: &Runtime, prompt: &str) -> anyhow::Result<()> {
    let answered = runtime.block_on(conversation.ask(prompt, future::pending()))?;
    tell(&answered);
    Ok(())
}

/// Asks each line of a file or a pipe, up to the first that fails.
fn ask_each_line(conversation: &mut Conversation, runtime: &Runtime) -> anyhow::Result<()> {
    for line in io::stdin().lock().lines() {
        let line = line?;
        if !line.trim().is_empty() {
            ask(conversation, runtime, line.trim())?;
        }
    }
    Ok(())
}

/// Holds a conversation on the terminal. A failed question is reported and forgotten; the conversation goes on.
fn converse(conversation: &mut Conversation, runtime: &Runtime, url: &str) -> anyhow::Result<()> {
    let mut editor = LineEditor::open()?;
    eprintln!("Talking to {} at {url}; /help lists the commands, Ctrl-D ends.", conversation.model());
    // Whether the last key was Ctrl-C: a second one ends the command.
    let mut interrupted = false;
    loop {
        let line = match editor.read()? {
            Typed::Line(line) => line,
            Typed::End => return Ok(()),
            Typed::Interrupt if interrupted => return Ok(()),
            Typed::Interrupt => {
                interrupted = true;
                eprintln!("(press Ctrl-C again to end, or Ctrl-D, or type /exit)");
                continue;
            }
        };
        interrupted = false;
        let question = match Entry::read(&line) {
            Entry::Nothing => continue,
            Entry::Exit => return Ok(()),
            Entry::Say(text) => {
                eprintln!("{text}");
                continue;
            }
            Entry::New => {
                conversation.begin_anew();
                eprintln!("(a new conversation)");
                continue;
            }
            Entry::System(text) => {
                conversation.instruct(text);
                continue;
            }
            Entry::Again => match conversation.take_last_question() {
                Some(question) => question,
                None => {
                    eprintln!("(nothing was asked yet)");
                    continue;
                }
            },
            Entry::Question(question) => question.to_owned(),
        };
        match runtime.block_on(conversation.ask(&question, ctrl_c())) {
            Ok(answered) => {
                interrupted = matches!(answered, Answered::Stopped);
                tell(&answered);
            }
            Err(error) if is_broken_pipe(&error) => return Err(error),
            Err(error) => eprintln!("moex: {}", sentence(&error)),
        }
    }
}

/// What a typed line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Entry<'a> {
    Nothing,
    Question(&'a str),
    New,
    Again,
    System(&'a str),
    Exit,
    /// Print this text.
    Say(&'static str),
}

impl<'a> Entry<'a> {
    fn read(line: &'a str) -> Self {
        let line = line.trim();
        let Some(command) = line.strip_prefix('/') else {
            return if line.is_empty() { Self::Nothing } else { Self::Question(line) };
        };
        let (name, text) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match (name, text.trim()) {
            ("new", "") => Self::New,
            ("again", "") => Self::Again,
            ("system", text) => Self::System(text),
            ("exit" | "quit", "") => Self::Exit,
            ("help" | "?", "") => Self::Say(HELP),
            _ if command.starts_with('/') => Self::Question(command),
            _ => Self::Say("(no such command: /help lists them, and // sends a line that begins with /)"),
        }
    }
}

/// Prints how the answer ended and how fast it was; if stdout is a pipe, only whether it was cut.
fn tell(answered: &Answered) {
    let person = io::stderr().is_terminal();
    match answered {
        Answered::Stopped => eprintln!("(stopped)"),
        Answered::Whole(ending) => {
            let cut = (ending.finish_reason == "length").then(|| "cut at the token limit".to_owned());
            let speed = person.then(|| ending.speed());
            let notes: Vec<String> = cut.into_iter().chain(speed).collect();
            if !notes.is_empty() {
                eprintln!("({})", notes.join(", "));
            }
        }
    }
}

/// Resolves on Ctrl-C; never on systems without it.
async fn ctrl_c() {
    if tokio::signal::ctrl_c().await.is_err() {
        future::pending::<()>().await;
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_question_or_a_command() {
        for (line, entry) in [
            ("  ", Entry::Nothing),
            (" what? ", Entry::Question("what?")),
            ("/new", Entry::New),
            ("/again ", Entry::Again),
            ("/system  be brief", Entry::System("be brief")),
            ("/system", Entry::System("")),
            ("/quit", Entry::Exit),
            ("/help", Entry::Say(HELP)),
            ("//usr/bin", Entry::Question("/usr/bin")),
        ] {
            assert_eq!(Entry::read(line), entry, "{line:?}");
        }
        for unknown in ["/nwe", "/", "/new conversation"] {
            assert!(matches!(Entry::read(unknown), Entry::Say(text) if text.contains("/help")), "{unknown}");
        }
    }
}
