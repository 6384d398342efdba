//! The `moex-sim` binary.

mod command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mimalloc::MiMalloc;

use self::command::{
    chaos::{self, ChaosArguments},
    plan::{self, PlanArguments},
    replay::{self, ReplayArguments},
    run::{self, RunArguments},
    table::{self, TableArguments},
};

/// A simulation is a few million small messages, made and dropped: the C library's allocator took a tenth of its time.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The latency model of a MoEx swarm, and the swarm itself on virtual time.
#[derive(Parser)]
#[command(name = "moex-sim", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print one of the paper's tables, its figures beside ours and the reason where they differ
    Table(TableArguments),
    /// Run a scenario: tokens a second, latencies, bytes, and where the time goes
    Run(RunArguments),
    /// Find the smallest room that serves a model in time, and what binds
    Plan(PlanArguments),
    /// Predict the second half of what a hub wrote down from its first half
    Replay(ReplayArguments),
    /// Do random harm to simulated swarms and check what must hold
    Chaos(ChaosArguments),
}

fn main() -> ExitCode {
    let ended = match Arguments::parse().command {
        Command::Table(arguments) => table::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Chaos(arguments) => chaos::run(&arguments),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("moex-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}
