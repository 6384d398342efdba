//! The crate from outside: every limit against hostile bytes, every frame there and back, both sessions against each
//! other on virtual time, and the fuzz targets' bodies over their seeds. What concerns one file alone is tested there.

mod pair;
mod samples;

mod compression;
mod conversation;
mod endings;
mod limits;
mod readme;
mod round_trips;
mod seeds;
