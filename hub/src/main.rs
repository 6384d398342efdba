//! The `moex` command.

use std::process::ExitCode;

use clap::Parser;
use moex_hub::commands::Cli;

fn main() -> ExitCode {
    // Logs and progress go to stderr; stdout is for what the command was asked for.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("MOEX_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .init();
    match Cli::parse().command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("moex: {error:#}");
            ExitCode::FAILURE
        }
    }
}
