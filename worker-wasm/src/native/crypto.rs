//! The cryptography that every TLS client and server of this process uses.

/// Installs ring as the process's provider. Call it before making the first client or server; a second call does nothing.
pub fn install_crypto() {
    // An error says that there is a provider already: this one.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
