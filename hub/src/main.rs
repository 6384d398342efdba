//! The `moex` binary.

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use moex_hub::budget::Budgeted;
use moex_hub::commands::{Cli, sentence};

mod memory;

/// Returns freed memory to the system: the C library's arenas keep the memory of ended sessions, and grow.
#[global_allocator]
static ALLOCATOR: Budgeted<MiMalloc> = Budgeted(MiMalloc);

fn main() -> ExitCode {
    memory::give_back_at_once();
    moex_worker::native::install_crypto();
    let command = Cli::parse().command;
    // Logs and progress go to stderr; stdout is for the command's result.
    moex_hub::log::start(
        tracing_subscriber::EnvFilter::try_from_env("MOEX_LOG")
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(command.log_filter())),
    );
    match command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("moex: {}", sentence(&error));
            ExitCode::FAILURE
        }
    }
}
