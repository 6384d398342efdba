//! `moex chat`

use std::io::{self, BufRead, IsTerminal, Write};

use clap::builder::FalseyValueParser;
use serde_json::{Value, json};

use super::answer_printer::AnswerPrinter;
use super::hub_client::HubClient;

/// Talks to a running hub: one prompt, or without one a conversation.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to ask; without it, each line of stdin is asked in turn.
    prompt: Option<String>,

    /// The hub.
    #[arg(long, env = "MOEX_URL", default_value = "http://127.0.0.1:8080")]
    url: String,

    /// The hub's API key, if it has one.
    #[arg(long, env = "MOEX_API_KEY", hide_env_values = true)]
    api_key: Option<String>,

    /// The most tokens of an answer.
    #[arg(long, env = "MOEX_MAX_TOKENS", value_name = "N")]
    max_tokens: Option<u32>,

    /// Sampling temperature; 0 always takes the likeliest token.
    #[arg(long, env = "MOEX_TEMPERATURE", value_name = "T")]
    temperature: Option<f64>,

    /// Answer without thinking first.
    #[arg(long, env = "MOEX_NO_THINKING", value_parser = FalseyValueParser::new())]
    no_thinking: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = HubClient::new(&args.url, args.api_key.as_deref())?;
    let mut chat = Chat { client, args, messages: Vec::new() };
    let ended = match chat.args.prompt.take() {
        Some(prompt) => runtime.block_on(chat.ask(&prompt)),
        None => chat.converse(&runtime),
    };
    match ended {
        // Whoever reads stdout has seen enough, as in `moex chat … | head`.
        Err(error) if is_broken_pipe(&error) => Ok(()),
        ended => ended,
    }
}

struct Chat {
    client: HubClient,
    args: Args,
    messages: Vec<Value>,
}

impl Chat {
    /// Asks line after line. A failed question is reported and forgotten; the conversation goes on.
    fn converse(&mut self, runtime: &tokio::runtime::Runtime) -> anyhow::Result<()> {
        let stdin = io::stdin();
        let person = stdin.is_terminal();
        if person {
            let health = runtime.block_on(self.client.json("/health"))?;
            let model = health["model"].as_str().unwrap_or("a model");
            eprintln!("Talking to {model} at {}; Ctrl-D ends.", self.args.url);
        }
        let mut line = String::new();
        loop {
            if person {
                eprint!("> ");
                io::stderr().flush()?;
            }
            line.clear();
            if stdin.lock().read_line(&mut line)? == 0 {
                return Ok(());
            }
            let prompt = line.trim();
            if prompt.is_empty() {
                continue;
            }
            match runtime.block_on(self.ask(prompt)) {
                Err(error) if person && !is_broken_pipe(&error) => eprintln!("moex: {error:#}"),
                ended => ended?,
            }
        }
    }

    /// Asks, prints the answer, and keeps both in the conversation.
    async fn ask(&mut self, prompt: &str) -> anyhow::Result<()> {
        self.messages.push(json!({ "role": "user", "content": prompt }));
        let mut printer = AnswerPrinter::stdout();
        let asked = self.client.chat(self.request(), |delta| Ok(printer.print(&delta)?)).await;
        let content = printer.finish()?;
        match asked {
            Ok(ending) => {
                let cut = if ending.finish_reason == "length" { ", cut at the token limit" } else { "" };
                if io::stderr().is_terminal() || !cut.is_empty() {
                    eprintln!("({}{cut})", ending.speed());
                }
                self.messages.push(json!({ "role": "assistant", "content": content }));
                Ok(())
            }
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    fn request(&self) -> Value {
        json!({
            "messages": self.messages,
            "max_tokens": self.args.max_tokens,
            "temperature": self.args.temperature,
            "chat_template_kwargs": { "enable_thinking": !self.args.no_thinking },
        })
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
