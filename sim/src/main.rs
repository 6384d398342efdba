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

/// A simulation makes and drops a few million small messages: the C library's allocator took a tenth of its time.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The latency model of a MoEx swarm, and a simulator of the swarm on virtual time.
#[derive(Parser)]
#[command(name = "moex-sim", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print one of the paper's tables with our figures and the reason for differences
    Table(TableArguments),
    /// Run a scenario: tokens a second, latencies, bytes, and the parts of the time
    Run(RunArguments),
    /// Find the smallest room that serves a model fast enough, and its bottleneck
    Plan(PlanArguments),
    /// Predict the second half of a hub's trace from the first half
    Replay(ReplayArguments),
    /// Inject random faults into simulated swarms and check invariants
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
