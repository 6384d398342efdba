//! The cryptography that every TLS client and server of this process uses.

/// Makes ring the process's provider; call it before the first client or server is made. A second call does nothing.
pub fn install_crypto() {
    // An error says that there is a provider already: this one.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
