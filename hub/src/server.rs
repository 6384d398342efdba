//! The HTTP server: routes and shutdown.
