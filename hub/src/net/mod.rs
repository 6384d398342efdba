//! Drives the swarm over sockets.
