//! Output formats of a command's table.

use clap::Args;
use moex_sim::report::Table;

use super::print;

/// The flags of every table.
#[derive(Args)]
pub(crate) struct Output {
    /// Print one JSON object
    #[arg(long, env = "MOEX_JSON", conflicts_with = "csv")]
    json: bool,
    /// Print comma-separated values, without the notes
    #[arg(long, env = "MOEX_CSV")]
    csv: bool,
}

impl Output {
    /// Prints the table in the format that the flags select.
    pub(crate) fn show(&self, table: &Table) -> anyhow::Result<()> {
        print(&match (self.json, self.csv) {
            (true, _) => table.to_json(),
            (_, true) => table.to_csv(),
            _ => table.to_text(),
        })
    }
}
