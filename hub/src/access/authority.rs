//! The hub's own certificate authority, for devices that choose to trust it. Its name constraints allow this machine's
//! name, names under `.local` and addresses, and no web site.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use moex_worker::native::Fingerprint;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, GeneralSubtree,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, PKCS_ECDSA_P256_SHA256,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};

use super::addresses;
use super::state_folder::{Replace, SecretError, StateFolder};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Lifetime of the authority.
const AUTHORITY_DAYS: u32 = 3650;
/// Lifetime of a certificate that it issues: browsers refuse more than 398 days.
const LEAF_DAYS: u32 = 396;
/// Certificates are valid from a day ago, since clocks differ.
const BACKDATED: Duration = DAY;
/// The file with the key.
const FILE: &str = "authority.json";
/// The file with the certificate alone, for tools.
const CERTIFICATE_FILE: &str = "ca.pem";

/// Names and addresses in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    ips: BTreeSet<IpAddr>,
    hosts: BTreeSet<String>,
}

/// The authority with its key.
pub struct Authority {
    record: Record,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// An issued certificate, and when to replace it.
pub struct Leaf {
    /// Certificate chain with the authority's, and private key.
    pub key: Arc<CertifiedKey>,
    /// When it expires.
    pub not_after: SystemTime,
}

/// The authority's file.
#[derive(Serialize, Deserialize)]
struct Record {
    /// The machine's name when the authority was created: the only host name it may certify.
    host_name: Option<String>,
    not_after_unix_seconds: u64,
    key: String,
    certificate: String,
}

impl Names {
    /// Names of this machine as of now.
    pub fn of_this_machine() -> Self {
        let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let ips = addresses::reachable(Ipv6Addr::UNSPECIFIED.into()).into_iter().chain(loopback).collect();
        let host_name = addresses::host_name();
        let local = host_name.as_ref().map(|name| format!("{name}.local"));
        let hosts = ["localhost".to_owned()].into_iter().chain(host_name).chain(local).collect();
        Self { ips, hosts }
    }
}

impl Authority {
    /// Loads the kept authority, or creates one if there is none or it expires within a certificate's lifetime; also
    /// returns whether it is new.
    ///
    /// # Errors
    /// If it cannot be stored, others can read its key, or its file is damaged.
    pub fn keep(state: &StateFolder) -> Result<(Self, bool), SecretError> {
        let check = |text: &str| Self::read(text).map(|_| text.to_owned());
        let make = || Self::make(addresses::host_name(), SystemTime::now());
        let mut kept = state.keep(FILE, Replace::No, check, make)?;
        let broken = |reason: String| SecretError::Broken { path: state.path(FILE), reason };
        let mut authority = Self::read(&kept.value).map_err(broken)?;
        if authority.not_after() < SystemTime::now() + DAY * (LEAF_DAYS + 1) {
            tracing::warn!(
                "the certificate authority is about to expire: a new one replaces it, and devices must trust that"
            );
            kept = state.keep(FILE, Replace::Yes, check, make)?;
            authority =
                Self::read(&kept.value).map_err(|reason| SecretError::Broken { path: kept.path, reason })?;
        }
        let pem = authority.pem().to_owned();
        state.keep(CERTIFICATE_FILE, Replace::Yes, |text| Ok(text.to_owned()), || Ok(pem))?;
        Ok((authority, kept.is_new))
    }

    /// Its certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The same in PEM.
    pub fn pem(&self) -> &str {
        &self.record.certificate
    }

    /// The name that systems list it under.
    pub fn name(&self) -> String {
        authority_name(self.record.host_name.as_deref())
    }

    /// Fingerprint that users compare and links contain.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// The file with the certificate alone.
    pub fn path(state: &StateFolder) -> std::path::PathBuf {
        state.path(CERTIFICATE_FILE)
    }

    /// Issues a certificate with its own key for those of these names that the authority may certify.
    ///
    /// # Errors
    /// If the system has no random bytes; one sentence.
    pub fn issue(&self, names: &Names, now: SystemTime) -> Result<Leaf, String> {
        let hosts = names.hosts.iter().filter(|host| self.may_vouch_for(host)).cloned();
        let sans: Vec<String> = hosts.chain(names.ips.iter().map(ToString::to_string)).collect();
        let not_after = now + DAY * LEAF_DAYS;
        let cannot = |error: &dyn std::fmt::Display| format!("creating a certificate failed: {error}");
        let mut params = CertificateParams::new(sans).map_err(|error| cannot(&error))?;
        params.distinguished_name = common_name(self.record.host_name.as_deref().unwrap_or("moex"));
        params.not_before = rcgen::date_time_ymd(1970, 1, 1) + since_epoch(now - BACKDATED);
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + since_epoch(not_after);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|error| cannot(&error))?;
        let leaf = params.signed_by(&key, &self.issuer).map_err(|error| cannot(&error))?;
        let chain = vec![leaf.der().clone(), self.certificate.clone()];
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key =
            CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|error| cannot(&error))?;
        Ok(Leaf { key: Arc::new(key), not_after })
    }

    fn may_vouch_for(&self, host: &str) -> bool {
        host == "localhost" || host.ends_with(".local") || self.record.host_name.as_deref() == Some(host)
    }

    fn not_after(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.record.not_after_unix_seconds)
    }

    /// Creates a new authority's file.
    fn make(host_name: Option<String>, now: SystemTime) -> Result<String, String> {
        let cannot =
            |error: &dyn std::fmt::Display| format!("creating the certificate authority failed: {error}");
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|error| cannot(&error))?;
        let not_after = now + DAY * AUTHORITY_DAYS;
        let params = params(host_name.as_deref(), now, not_after);
        let certificate = params.self_signed(&key).map_err(|error| cannot(&error))?;
        let record = Record {
            host_name,
            not_after_unix_seconds: since_epoch(not_after).as_secs(),
            key: key.serialize_pem(),
            certificate: certificate.pem(),
        };
        serde_json::to_string_pretty(&record).map_err(|error| cannot(&error))
    }

    fn read(text: &str) -> Result<Self, String> {
        let record: Record = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let certificate = CertificateDer::from_pem_slice(record.certificate.as_bytes())
            .map_err(|error| error.to_string())?;
        let key = KeyPair::from_pem(&record.key).map_err(|error| error.to_string())?;
        let end = UNIX_EPOCH
            .checked_add(Duration::from_secs(record.not_after_unix_seconds))
            .filter(|end| *end < UNIX_EPOCH + DAY * 100_000)
            .ok_or("its last day is none")?;
        // Only the name and key matter for signing; the dates stay those of the certificate.
        let params = params(record.host_name.as_deref(), end, end);
        Ok(Self { issuer: Issuer::new(params, key), record, certificate })
    }
}

fn params(host_name: Option<&str>, now: SystemTime, not_after: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(&authority_name(host_name));
    params.not_before = rcgen::date_time_ymd(1970, 1, 1) + since_epoch(now - BACKDATED);
    params.not_after = rcgen::date_time_ymd(1970, 1, 1) + since_epoch(not_after);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let own = host_name.map(|name| GeneralSubtree::DnsName(name.to_owned()));
    let names = ["localhost", "local"].map(|name| GeneralSubtree::DnsName(name.to_owned()));
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: names.into_iter().chain(own).collect(),
        excluded_subtrees: Vec::new(),
    });
    params
}

fn authority_name(host_name: Option<&str>) -> String {
    format!("moex on {}", host_name.unwrap_or("this network"))
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// Whole seconds, the resolution of certificates.
fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).map_or(Duration::ZERO, |since| Duration::from_secs(since.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(ips: &[&str], hosts: &[&str]) -> Names {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        Names { ips, hosts: hosts.iter().map(|host| (*host).to_owned()).collect() }
    }

    fn authority(host_name: &str) -> Authority {
        Authority::read(&Authority::make(Some(host_name.to_owned()), SystemTime::now()).unwrap()).unwrap()
    }

    /// What a client that trusts this authority makes of the certificate when it asks for `name`.
    fn verify(authority: &Authority, leaf: &Leaf, name: &str, at: SystemTime) -> Result<(), rustls::Error> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(authority.certificate.clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .unwrap();
        let now = rustls::pki_types::UnixTime::since_unix_epoch(since_epoch(at));
        let name = name.to_owned().try_into().unwrap();
        let (end, rest) = leaf.key.cert.split_first().unwrap();
        rustls::client::danger::ServerCertVerifier::verify_server_cert(&*verifier, end, rest, &name, &[], now)
            .map(drop)
    }

    #[test]
    fn a_certificate_holds_for_its_names_and_its_days() {
        let (authority, now) = (authority("desk"), SystemTime::now());
        let leaf = authority
            .issue(&names(&["192.0.2.7", "fd00::7"], &["desk", "desk.local", "localhost"]), now)
            .unwrap();
        for name in ["192.0.2.7", "fd00::7", "desk", "desk.local", "localhost"] {
            verify(&authority, &leaf, name, now).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        assert!(verify(&authority, &leaf, "192.0.2.8", now).is_err());
        assert!(verify(&authority, &leaf, "desk", now + DAY * 397).is_err());
        assert!(leaf.not_after - BACKDATED <= now + DAY * 397);
    }

    #[test]
    fn it_vouches_for_no_name_beyond_its_machine_and_network() {
        let (authority, now) = (authority("desk"), SystemTime::now());
        // Left out: a certificate with a name that the authority may not vouch for is believed by nobody.
        let leaf = authority.issue(&names(&["192.0.2.7"], &["renamed", "renamed.local"]), now).unwrap();
        assert!(verify(&authority, &leaf, "renamed", now).is_err());
        verify(&authority, &leaf, "renamed.local", now).unwrap();
        verify(&authority, &leaf, "192.0.2.7", now).unwrap();
        // Forged with its key.
        let mut params = CertificateParams::new(vec!["bank.example".to_owned()]).unwrap();
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().unwrap();
        let forged = params.signed_by(&key, &authority.issuer).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = CertifiedKey::from_der(vec![forged.der().clone()], key, &ring::default_provider()).unwrap();
        assert!(
            verify(&authority, &Leaf { key: Arc::new(key), not_after: now }, "bank.example", now).is_err()
        );
    }

    #[test]
    fn it_is_made_once_and_anew_before_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::at(folder.path().to_owned());
        let (first, is_new) = Authority::keep(&state).unwrap();
        assert!(is_new);
        let (second, is_new) = Authority::keep(&state).unwrap();
        assert!(!is_new && second.fingerprint() == first.fingerprint());
        assert_eq!(std::fs::read_to_string(Authority::path(&state)).unwrap().trim(), first.pem().trim());
        let old = Authority::make(None, SystemTime::now() - DAY * (AUTHORITY_DAYS - 100)).unwrap();
        state.keep(FILE, Replace::Yes, |text| Ok(text.to_owned()), || Ok(old)).unwrap();
        let (third, is_new) = Authority::keep(&state).unwrap();
        assert!(is_new && third.fingerprint() != first.fingerprint());
    }

    #[test]
    fn a_damaged_authority_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::at(folder.path().to_owned());
        let whole = Authority::make(None, SystemTime::now()).unwrap();
        for damaged in
            ["", "{}", &whole[..whole.len() / 2], &whole.replace("BEGIN PRIVATE KEY", "BEGIN NOTHING")]
        {
            state.keep(FILE, Replace::Yes, |text| Ok(text.to_owned()), || Ok(damaged.to_owned())).unwrap();
            let said = Authority::keep(&state).err().expect("it is damaged").to_string();
            assert!(said.contains(FILE) && said.contains("damaged"), "{said}");
        }
    }
}
