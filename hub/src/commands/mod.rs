//! The commands of `moex`: one file each, with its arguments and what it does.

pub mod bench;
pub mod chat;
pub mod check_grammar;
pub mod completions;
pub mod demo;
pub mod eval;
pub mod info;
pub mod invite;
pub mod logits;
pub mod pull;
pub mod serve;
pub mod synth;
pub mod worker;

mod access_args;
mod answer_printer;
mod busy_poll;
mod compute;
mod experts;
mod find_hub;
mod hub_args;
mod hub_client;
mod listen;
mod local_hub;
mod model_path;
mod part_file;
mod safetensors_file;
mod values;

use clap::{Parser, Subcommand};

/// A hub and a swarm of browser tabs that together run a mixture-of-experts model.
#[derive(Parser, Debug)]
#[command(name = "moex", version = env!("MOEX_VERSION"), about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
#[expect(missing_docs, reason = "each variant shows the help text of its arguments")]
pub enum Command {
    Demo(demo::Args),
    Serve(Box<serve::Args>),
    Worker(worker::Args),
    Chat(chat::Args),
    Invite(invite::Args),
    Pull(pull::Args),
    Info(info::Args),
    Logits(logits::Args),
    Eval(eval::Args),
    Synth(synth::Args),
    Bench(bench::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    Man(completions::ManArgs),
    #[command(hide = true)]
    CheckGrammar(check_grammar::Args),
}

impl Command {
    /// Default log filter; `MOEX_LOG` overrides it. A serving hub logs joins, leaves and failures.
    pub fn log_filter(&self) -> &'static str {
        match self {
            Self::Serve(_) => "warn,moex_hub=info,moex_engine=info,moex_model=info,moex_swarm=info",
            _ => "warn",
        }
    }

    /// Whether it computes for hubs.
    pub fn is_worker(&self) -> bool {
        matches!(self, Self::Worker(_))
    }

    /// Runs the command to its end.
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Demo(args) => demo::run(args),
            Self::Serve(args) => serve::run(*args),
            Self::Worker(args) => worker::run(args),
            Self::Chat(args) => chat::run(args),
            Self::Invite(args) => invite::run(&args),
            Self::Pull(args) => pull::run(args),
            Self::Info(args) => info::run(args),
            Self::Logits(args) => logits::run(args),
            Self::Eval(args) => eval::run(args),
            Self::Synth(args) => synth::run(args),
            Self::Bench(args) => bench::run(args),
            Self::Completions(args) => completions::run(&args),
            Self::Man(args) => completions::man(&args),
            Self::CheckGrammar(args) => check_grammar::run(&args),
        }
    }
}

/// Formats an error and its causes as one sentence. A cause that the error already names is left out.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if said.is_empty() {
            said = cause;
        } else if !said.contains(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    // Part of the text may come from a peer, so control characters are removed.
    let shown = |character: char| match character.is_control() && character != '\n' {
        true => character.escape_unicode().to_string(),
        false => character.to_string(),
    };
    said.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::sentence;

    #[test]
    fn what_a_peer_said_commands_no_terminal() {
        let error = anyhow!("\u{1b}[2Jgone").context("the hub refuses this worker");
        assert_eq!(sentence(&error), "the hub refuses this worker: \\u{1b}[2Jgone");
    }

    #[test]
    fn a_cause_that_an_error_names_is_not_said_again() {
        let cause = || anyhow!("no such file");
        assert_eq!(
            sentence(&cause().context("a.json: no such file").context("not a model")),
            "not a model: a.json: no such file"
        );
        assert_eq!(sentence(&cause()), "no such file");
    }
}
