//! `--busy-poll`, of the commands that wait for messages.

use clap::ValueEnum;
use moex_worker::native::BusyPoll;

/// So many processors have one to spare for looking.
const MANY_PROCESSORS: usize = 8;

/// The flag.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct BusyPollArgs {
    /// Look for messages for a millisecond before sleeping: saves tens of microseconds a layer where hub and workers are on
    /// one machine or a fast cable away. Keeps a processor busy while tokens are made, and a worker's graphics card at its full
    /// clock. `auto`: where there are eight processors or more
    #[arg(
        long,
        env = "MOEX_BUSY_POLL",
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_value = "auto",
        default_missing_value = "on"
    )]
    busy_poll: When,
}

/// When to look for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum When {
    /// With eight processors or more
    Auto,
    /// Always
    #[value(aliases = ["true", "yes", "1"])]
    On,
    /// Never
    #[value(aliases = ["false", "no", "0"])]
    Off,
}

impl BusyPollArgs {
    /// On this machine; a hub that `starts_workers` here looks unless told not to: waking a thread takes longer than sending a
    /// message.
    pub(super) fn choose(self, starts_workers: bool) -> BusyPoll {
        let n_processors = std::thread::available_parallelism().map_or(1, usize::from);
        BusyPoll::new(self.busy_poll.is_on(n_processors, starts_workers))
    }
}

impl When {
    fn is_on(self, n_processors: usize, starts_workers: bool) -> bool {
        match self {
            Self::Auto => starts_workers || n_processors >= MANY_PROCESSORS,
            Self::On => true,
            Self::Off => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        busy_poll: BusyPollArgs,
        /// What a flag without a value must not take for one.
        url: Option<String>,
    }

    #[test]
    fn it_is_on_where_processors_are_many_unless_told_otherwise() {
        let is_on = |arguments: &str, n_processors, starts_workers| {
            let command = Command::try_parse_from(format!("moex {arguments}").split_whitespace()).unwrap();
            assert_eq!(command.url.is_some(), arguments.ends_with("URL"));
            command.busy_poll.busy_poll.is_on(n_processors, starts_workers)
        };
        assert!(!is_on("URL", 4, false) && is_on("URL", 4, true) && is_on("URL", 8, false));
        assert!(is_on("--busy-poll URL", 1, false) && is_on("--busy-poll=true", 1, false));
        assert!(!is_on("--busy-poll=off URL", 16, true) && !is_on("--busy-poll=0", 16, true));
        assert!(Command::try_parse_from(["moex", "--busy-poll=often"]).is_err());
    }
}
