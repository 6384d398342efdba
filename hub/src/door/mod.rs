//! The front door: by which addresses others reach a hub, and what it keeps between starts so that they find it again.
//!
//! ```text
//! addresses   this machine's addresses that others can reach, and its name
//! links       the URLs made of them
//! greeting    what the terminal shows of it
//! qr          a link for cameras
//! kept        the join token, the API key and the authority, in files that only their owner reads
//! authority   a certificate authority of the hub's own, and what it vouches for
//! certificate what is shown to clients, replaced while the hub runs
//! page        the plain port's page: how to trust the authority, and the way in without
//! mdns        how hubs of a network are found
//! ```
//! What is served behind the door is `server`'s matter; which of this a command asks for, `commands::serve`'s.

pub mod addresses;
pub mod authority;
pub mod certificate;
pub mod greeting;
pub mod kept;
pub mod links;
pub mod mdns;
pub mod page;
pub mod qr;
