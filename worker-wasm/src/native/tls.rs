//! TLS for clients of a hub: the certificate is checked against the system's roots, a file's, or the fingerprint in the link.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_platform_verifier::BuilderVerifierExt;

/// SHA-256 of a certificate's DER bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

/// The certificate authority that must have signed a hub's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Any that this system trusts.
    System,
    /// Any in this PEM file.
    File(PathBuf),
    /// The one with this fingerprint, which the hub sends with its certificate.
    Authority(Fingerprint),
}

impl Fingerprint {
    /// The fingerprint of this certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let hash = ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
        let hash = hash.tls13().map(|suite| suite.common.hash_provider.hash(certificate));
        let mut bytes = [0; 32];
        if let Some(hash) = hash {
            bytes.copy_from_slice(hash.as_ref());
        }
        Self(bytes)
    }

    /// Pairs of digits, for people who compare two fingerprints: `AB CD EF ...`.
    pub fn spelled(&self) -> String {
        let pairs: Vec<String> = self.0.iter().map(|byte| format!("{byte:02X}")).collect();
        pairs.join(" ")
    }
}

/// 64 hexadecimal digits.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

impl FromStr for Fingerprint {
    type Err = String;

    /// Colons and spaces between the digits are ignored.
    fn from_str(text: &str) -> Result<Self, String> {
        let digits: String = text.chars().filter(|c| !matches!(c, ':' | ' ')).collect();
        let wrong = || format!("`{text}` is not a SHA-256 fingerprint: write 64 hexadecimal digits");
        if digits.len() != 64 || !digits.is_ascii() {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

/// A client configuration for TLS 1.2 and 1.3 with this trust.
///
/// # Errors
/// One sentence, if the system has no certificate authorities or the file cannot be used.
pub fn client_tls(trust: &Trust) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS is not available: {error}."))?;
    let config = match trust {
        Trust::System => builder
            .with_platform_verifier()
            .map_err(|error| format!("This system's certificate authorities cannot be used: {error}."))?
            .with_no_client_auth(),
        Trust::File(path) => builder.with_root_certificates(roots_of(path)?).with_no_client_auth(),
        Trust::Authority(fingerprint) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned { fingerprint: *fingerprint, provider }))
            .with_no_client_auth(),
    };
    Ok(config)
}

/// The certificates of a PEM file.
fn roots_of(path: &std::path::Path) -> Result<RootCertStore, String> {
    let cannot =
        |error: &dyn fmt::Display| format!("The certificates in {} cannot be used: {error}.", path.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| cannot(&error))? {
        let certificate = certificate.map_err(|error| cannot(&error))?;
        roots.add(certificate).map_err(|error| cannot(&error))?;
    }
    if roots.is_empty() {
        return Err(cannot(&"it holds no certificate in PEM"));
    }
    Ok(roots)
}

/// Accepts the authority with this fingerprint as the only root, if the hub sends it. Names, dates and signatures are still
/// checked.
#[derive(Debug)]
struct Pinned {
    fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let pinned =
            intermediates.iter().find(|sent| Fingerprint::of(sent) == self.fingerprint).ok_or_else(|| {
                rustls::Error::General(
                    "this is not the hub of the link: its certificate authority has another fingerprint"
                        .into(),
                )
            })?;
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_the_sha_256_of_the_bytes() {
        let fingerprint = Fingerprint::of(&CertificateDer::from(&b"abc"[..]));
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(fingerprint.to_string(), hex);
        assert_eq!(hex.parse(), Ok(fingerprint));
        assert_eq!(fingerprint.spelled().parse(), Ok(fingerprint));
        assert!(fingerprint.spelled().starts_with("BA 78 16"));
        for wrong in ["", "ba78", &"g".repeat(64), &"é".repeat(32), &hex[1..]] {
            assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_file_without_certificates_is_one_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        for content in
            [None, Some("nothing"), Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")]
        {
            if let Some(content) = content {
                std::fs::write(&path, content).unwrap();
            }
            let said = client_tls(&Trust::File(path.clone())).unwrap_err();
            assert!(said.contains("ca.pem") && !said.contains('\n'), "{said}");
        }
    }
}
