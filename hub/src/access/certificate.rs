//! The hub's TLS certificate, renewed while it runs: one from its own authority when this machine's addresses change,
//! one from files when the files change.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::authority::{Authority, Names};

/// Interval of checks whether a new certificate is needed.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How long before its end a certificate is replaced.
const RENEW_BEFORE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Where certificates come from.
pub enum Source {
    /// The hub's own authority.
    Authority(Box<Authority>),
    /// PEM files: a chain, and its key.
    Files {
        /// `--tls-cert`.
        chain: PathBuf,
        /// `--tls-key`.
        key: PathBuf,
    },
}

/// The current certificate, and the source of the next one.
pub struct Certificate {
    source: Source,
    shown: RwLock<Shown>,
}

/// The certificate in use, and what it was made from.
struct Shown {
    key: Arc<CertifiedKey>,
    made_of: MadeOf,
}

#[derive(PartialEq, Eq)]
enum MadeOf {
    /// For these names, to be renewed at this time.
    Names(Names, SystemTime),
    /// From files with these modification times.
    Files([Option<SystemTime>; 2]),
}

impl Certificate {
    /// Loads or issues the first certificate.
    ///
    /// # Errors
    /// If a file cannot be used, or the system has no random bytes; one sentence.
    pub fn first(source: Source) -> Result<Self, String> {
        let shown = source.make()?;
        Ok(Self { source, shown: RwLock::new(shown) })
    }

    /// The authority, if it is the hub's own.
    pub fn authority(&self) -> Option<&Authority> {
        match &self.source {
            Source::Authority(authority) => Some(authority),
            Source::Files { .. } => None,
        }
    }

    /// TLS 1.2 and 1.3 with whichever certificate is current.
    ///
    /// # Errors
    /// If the cryptography provider supports neither.
    pub fn server_config(self: &Arc<Self>) -> Result<ServerConfig, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?;
        Ok(builder.with_no_client_auth().with_cert_resolver(self.clone()))
    }

    /// Renews the certificate whenever needed; never returns. On failure the old one stays, and renewal is retried.
    pub async fn keep_current(self: Arc<Self>) {
        let mut said = String::new();
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            match self.renew(SystemTime::now()) {
                Ok(false) => {}
                Ok(true) => {
                    said.clear();
                    tracing::info!("the certificate was renewed");
                }
                Err(error) if error == said => {}
                Err(error) => {
                    tracing::warn!("renewing the certificate failed, the old one stays: {error}");
                    said = error;
                }
            }
        }
    }

    /// Returns whether a new certificate was needed.
    fn renew(&self, now: SystemTime) -> Result<bool, String> {
        let is_current = {
            let shown = self.shown.read().unwrap_or_else(PoisonError::into_inner);
            self.source.is_current(&shown.made_of, now)
        };
        if is_current {
            return Ok(false);
        }
        let next = self.source.make()?;
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(true)
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.shown.read().unwrap_or_else(PoisonError::into_inner).key.clone())
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificate")
    }
}

impl Source {
    fn make(&self) -> Result<Shown, String> {
        match self {
            Self::Authority(authority) => {
                let names = Names::of_this_machine();
                let leaf = authority.issue(&names, SystemTime::now())?;
                Ok(Shown { key: leaf.key, made_of: MadeOf::Names(names, leaf.not_after) })
            }
            Self::Files { chain, key } => {
                // Times are read before the contents, so that a change in between is noticed next time.
                let times = [modified(chain), modified(key)];
                Ok(Shown { key: Arc::new(read(chain, key)?), made_of: MadeOf::Files(times) })
            }
        }
    }

    fn is_current(&self, made_of: &MadeOf, now: SystemTime) -> bool {
        match (self, made_of) {
            (Self::Authority(_), MadeOf::Names(names, not_after)) => {
                now + RENEW_BEFORE < *not_after && *names == Names::of_this_machine()
            }
            (Self::Files { chain, key }, MadeOf::Files(times)) => *times == [modified(chain), modified(key)],
            _ => false,
        }
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn read(chain: &Path, key: &Path) -> Result<CertifiedKey, String> {
    let cannot =
        |path: &Path, error: &dyn fmt::Display| format!("{} cannot be used: {error}", path.display());
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect)
        .map_err(|error| cannot(chain, &error))?;
    if certificates.is_empty() {
        return Err(cannot(chain, &"it holds no certificate in PEM"));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| cannot(key, &error))?;
    CertifiedKey::from_der(certificates, private, &ring::default_provider()).map_err(|error| {
        format!("{} and {} cannot be used together: {error}", chain.display(), key.display())
    })
}

#[cfg(test)]
mod tests {
    use super::super::state_folder::StateFolder;
    use super::*;

    #[test]
    fn a_certificate_is_replaced_before_it_ends_and_not_sooner() {
        let folder = tempfile::tempdir().unwrap();
        let (authority, _) = Authority::keep(&StateFolder::at(folder.path().to_owned())).unwrap();
        let certificate = Certificate::first(Source::Authority(Box::new(authority))).unwrap();
        let first = certificate.shown.read().unwrap().key.clone();
        let now = SystemTime::now();
        assert_eq!(certificate.renew(now), Ok(false));
        assert_eq!(certificate.renew(now + Duration::from_secs(370 * 24 * 60 * 60)), Ok(true));
        assert!(certificate.shown.read().unwrap().key.cert[0] != first.cert[0]);
    }

    #[test]
    fn files_that_change_are_read_again_and_damaged_ones_are_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
        let write = |name: &str| {
            let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
            std::fs::write(&chain, made.cert.pem()).unwrap();
            std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        };
        let source = || Source::Files { chain: chain.clone(), key: key.clone() };
        assert!(Certificate::first(source()).unwrap_err().contains("chain.pem"));
        write("one.example");
        let certificate = Certificate::first(source()).unwrap();
        assert_eq!(certificate.renew(SystemTime::now()), Ok(false));
        let later = SystemTime::now() + Duration::from_secs(10);
        std::fs::write(&key, "nothing").unwrap();
        std::fs::File::options().write(true).open(&key).unwrap().set_modified(later).unwrap();
        assert!(certificate.renew(SystemTime::now()).unwrap_err().contains("key.pem"));
        write("two.example");
        assert_eq!(certificate.renew(SystemTime::now()), Ok(true));
    }
}
