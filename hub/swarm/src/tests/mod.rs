//! The swarm against scripted workers on virtual time. Their sessions are the real ones.

mod agreement;
mod blocking;
mod faults;
mod hedges;
mod liveness;
mod membership;
mod probation;
mod room;
mod sums;
mod trust;
