//! Flags of the commands that talk to a running hub.

use std::path::PathBuf;

use moex_worker::native::{Fingerprint, Trust};

use super::hub_client::HubClient;

/// The flags.
#[derive(clap::Args, Debug)]
pub(super) struct HubArgs {
    /// URL of the hub, with or without /v1 at its end.
    #[arg(long, env = "MOEX_URL", default_value = "http://127.0.0.1:8080")]
    pub(super) url: String,

    /// The hub's API key, if it needs one.
    #[arg(long, env = "MOEX_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub(super) api_key: Option<String>,

    /// PEM file with the certificate authority of an https hub, if this system does not trust it.
    #[arg(long, env = "MOEX_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// SHA-256 of that certificate authority, as the hub prints it, instead of a file.
    #[arg(long, env = "MOEX_FINGERPRINT", value_name = "HEX", conflicts_with = "ca")]
    fingerprint: Option<Fingerprint>,
}

impl HubArgs {
    /// A client of the hub, with this API key.
    pub(super) fn client(&self, api_key: Option<&str>) -> anyhow::Result<HubClient> {
        let trust = match (&self.ca, self.fingerprint) {
            (Some(file), _) => Trust::File(file.clone()),
            (None, Some(fingerprint)) => Trust::Authority(fingerprint),
            (None, None) => Trust::System,
        };
        HubClient::new(&self.url, api_key, &trust)
    }
}
