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
    order_no_gpus();
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

/// Turns off Mesa's Vulkan layer that puts a desktop's GPU first, and complains where there is no desktop: GPUs are chosen by
/// their kind here.
fn order_no_gpus() {
    // SAFETY: no other thread runs yet that could read the environment.
    unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
}
