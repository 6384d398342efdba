//! How other machines reach a hub: addresses, links, certificates, and the secrets that stay the same between starts.
//!
//! ```text
//! addresses   this machine's addresses that others can reach, and its name
//! links       the URLs made of them
//! greeting    the startup message on the terminal
//! qr          a link as a QR code
//! kept        join token, API key and authority, in files that only their owner can read
//! revocations the invitations that no longer admit anyone
//! authority   the hub's own certificate authority, and the names it may certify
//! certificate the certificate shown to clients, renewed while the hub runs
//! page        the plain http port's page: how to trust the authority, and a link to join without
//! mdns        announces and finds hubs on the local network
//! ```
//! `server` serves the requests; `commands::serve` chooses which of these a hub uses.

pub mod addresses;
pub mod authority;
pub mod certificate;
pub mod greeting;
pub mod links;
pub mod mdns;
pub mod page;
pub mod qr;
pub mod revocations;
pub mod state_folder;
