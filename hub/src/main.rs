//! The `moex` binary.

use std::io::Write;

use clap::Parser;
use mimalloc::MiMalloc;
use moex_hub::commands::{Cli, sentence};
use moex_model::budget::Budgeted;

mod memory;

/// Returns freed memory to the system: the C library's arenas keep the memory of ended sessions, and grow.
#[global_allocator]
static ALLOCATOR: Budgeted<MiMalloc> = Budgeted(MiMalloc);

fn main() {
    memory::give_back_at_once();
    order_no_gpus();
    moex_worker::native::install_crypto();
    let command = Cli::parse().command;
    // Logs and progress go to stderr; stdout is for the command's result.
    moex_hub::log::start(
        tracing_subscriber::EnvFilter::try_from_env("MOEX_LOG")
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(command.log_filter())),
    );
    if command.is_worker()
        && let Err(error) = memory::give_back_soon()
    {
        tracing::warn!(%error, "prompts take longer: memory returns to the system at once");
    }
    let code = match command.run() {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("moex: {}", sentence(&error));
            1
        }
    };
    end(code)
}

/// Turns off Mesa's Vulkan layer that puts a desktop's GPU first, and complains where there is no desktop: GPUs are chosen by
/// their kind here.
fn order_no_gpus() {
    // SAFETY: no other thread runs yet that could read the environment.
    unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
}

/// Ends the process without the exit handlers of libraries: in one of them NVIDIA's driver unloads itself, while threads that end
/// with the process still give back what they have on the GPU, and that crashes.
fn end(code: i32) -> ! {
    // If nobody reads it any more, there is nobody to tell.
    let _ = std::io::stdout().flush();
    #[cfg(unix)]
    // SAFETY: it only ends the process.
    unsafe {
        libc::_exit(code)
    }
    #[cfg(not(unix))]
    std::process::exit(code)
}
