//! Hub, cache and token, from the environment variables that all of Hugging Face's tools read.

use std::{
    env,
    ffi::OsString,
    fs::File,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use reqwest::{Url, header::HeaderValue};

use super::error::PullError;

/// Default hub; `HF_ENDPOINT` names another.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// Maximum bytes of a token file.
const MAX_TOKEN_BYTES: u64 = 4096;
/// Default time that a hub may be silent.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time that a variable can set.
const MAX_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// Pauses between attempts of a request: short, so that a wrong address is reported soon.
const ASK_PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1)];
/// Pauses between attempts of a download: a network may be down for a minute.
const DOWNLOAD_PAUSES: [Duration; 7] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
    Duration::from_secs(30),
];
/// How long another process may hold a file without writing to it. Hashing a partial file takes as long as reading it
/// from a slow disk.
const LOCK_PATIENCE: Duration = Duration::from_secs(10 * 60);

/// Where models are downloaded from and stored.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `HF_ENDPOINT`.
    pub(super) endpoint: Url,
    /// `HF_HUB_CACHE`, `HF_HOME/hub`.
    pub(super) cache: PathBuf,
    pub(super) token: Option<Token>,
    /// `HF_HUB_OFFLINE`.
    pub(super) offline: bool,
    /// `HF_HUB_ETAG_TIMEOUT`: time limit of a request's answer.
    pub(super) ask_timeout: Duration,
    /// `HF_HUB_DOWNLOAD_TIMEOUT`: how long a download may stall.
    pub(super) stall_timeout: Duration,
    pub(super) ask_pauses: Vec<Duration>,
    pub(super) download_pauses: Vec<Duration>,
    pub(super) lock_patience: Duration,
}

/// The user's token for the hub.
#[derive(Clone, Debug)]
pub(super) struct Token {
    /// `Bearer TOKEN`, which is never printed.
    pub(super) header: HeaderValue,
    /// Where it comes from, for messages.
    pub(super) source: String,
}

impl Settings {
    /// Reads the settings from the environment.
    ///
    /// # Errors
    /// If a variable is invalid.
    pub fn from_env() -> Result<Self, PullError> {
        Self::read(&|name| env::var_os(name).filter(|value| !value.is_empty()), env::home_dir().as_deref())
    }

    /// The hub's host, for messages.
    pub fn host(&self) -> &str {
        self.endpoint.host_str().unwrap_or("the hub")
    }

    /// The folder of the cache.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    pub(super) fn read(
        variable: &dyn Fn(&str) -> Option<OsString>,
        home: Option<&Path>,
    ) -> Result<Self, PullError> {
        let path = |name: &str| variable(name).map(|value| expand(PathBuf::from(value), home));
        let user_cache = || match path("XDG_CACHE_HOME") {
            Some(folder) => folder,
            None => home.map_or_else(env::temp_dir, |home| home.join(".cache")),
        };
        let hf_home = path("HF_HOME").unwrap_or_else(|| user_cache().join("huggingface"));
        // The second is its older name.
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let is_on = |name: &str| {
            let value = variable(name).map(|value| value.to_string_lossy().to_uppercase());
            value.is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.as_str()))
        };
        Ok(Self {
            endpoint: endpoint(variable("HF_ENDPOINT"))?,
            cache: cache.unwrap_or_else(|| hf_home.join("hub")),
            token: token(variable, &path("HF_TOKEN_PATH").unwrap_or_else(|| hf_home.join("token")))?,
            offline: is_on("HF_HUB_OFFLINE"),
            ask_timeout: timeout(variable, "HF_HUB_ETAG_TIMEOUT")?,
            stall_timeout: timeout(variable, "HF_HUB_DOWNLOAD_TIMEOUT")?,
            ask_pauses: ASK_PAUSES.to_vec(),
            download_pauses: DOWNLOAD_PAUSES.to_vec(),
            lock_patience: LOCK_PATIENCE,
        })
    }
}

/// Expands `~/...` as a shell does.
fn expand(path: PathBuf, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

fn endpoint(value: Option<OsString>) -> Result<Url, PullError> {
    let text =
        value.map_or_else(|| DEFAULT_ENDPOINT.to_owned(), |value| value.to_string_lossy().into_owned());
    let url = Url::parse(text.trim()).ok();
    let is_hub = |url: &Url| {
        ["http", "https"].contains(&url.scheme())
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
    };
    url.filter(is_hub).ok_or(PullError::Setting {
        variable: "HF_ENDPOINT".to_owned(),
        reason: format!("it must be a URL such as {DEFAULT_ENDPOINT}"),
    })
}

/// The token from `HF_TOKEN`, or from a file.
fn token(variable: &dyn Fn(&str) -> Option<OsString>, file: &Path) -> Result<Option<Token>, PullError> {
    let (text, source) = match variable("HF_TOKEN") {
        Some(value) => (value.to_string_lossy().into_owned(), "HF_TOKEN".to_owned()),
        None => (read_token(file)?, file.display().to_string()),
    };
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let fits = text.bytes().all(|byte| byte.is_ascii_graphic());
    match HeaderValue::try_from(format!("Bearer {text}")) {
        Ok(mut header) if fits => {
            header.set_sensitive(true);
            Ok(Some(Token { header, source }))
        }
        _ => Err(PullError::Setting {
            variable: source,
            reason: "a token is letters and digits in one line".to_owned(),
        }),
    }
}

/// Empty if the file does not exist.
fn read_token(file: &Path) -> Result<String, PullError> {
    let mut text = Vec::new();
    let read = File::open(file).and_then(|file| file.take(MAX_TOKEN_BYTES).read_to_end(&mut text));
    match read {
        Ok(_) => Ok(String::from_utf8_lossy(&text).into_owned()),
        Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {
            Ok(String::new())
        }
        Err(source) => Err(PullError::Io { path: file.to_owned(), source }),
    }
}

/// A timeout in seconds.
fn timeout(variable: &dyn Fn(&str) -> Option<OsString>, name: &str) -> Result<Duration, PullError> {
    let Some(value) = variable(name) else { return Ok(DEFAULT_TIMEOUT) };
    let seconds = value.to_str().and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
    seconds.filter(|time| !time.is_zero() && *time <= MAX_TIMEOUT).ok_or_else(|| PullError::Setting {
        variable: name.to_owned(),
        reason: format!("it must be a number of seconds from 1 to {}", MAX_TIMEOUT.as_secs()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, PullError> {
        let variable = |name: &str| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| OsString::from(value))
        };
        Settings::read(&variable, Some(Path::new("/home/me")))
    }

    #[test]
    fn the_cache_is_where_other_tools_have_it() {
        let cache = |variables: &[(&str, &str)]| read(variables).unwrap().cache.display().to_string();
        assert_eq!(cache(&[]), "/home/me/.cache/huggingface/hub");
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/c")]), "/c/huggingface/hub");
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/c"), ("HF_HOME", "~/hf")]), "/home/me/hf/hub");
        assert_eq!(cache(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/models")]), "/models");
        assert_eq!(cache(&[("HUGGINGFACE_HUB_CACHE", "/old")]), "/old");
    }

    #[test]
    fn offline_is_said_as_everywhere() {
        for (value, offline) in [("1", true), ("true", true), ("ON", true), ("0", false), ("no", false)] {
            assert_eq!(read(&[("HF_HUB_OFFLINE", value)]).unwrap().offline, offline, "{value}");
        }
    }

    #[test]
    fn a_token_is_read_from_the_variable_else_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        assert!(read(&[("HF_HOME", home)]).unwrap().token.is_none());
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let token = read(&[("HF_HOME", home)]).unwrap().token.unwrap();
        assert_eq!((token.header.as_bytes(), token.header.is_sensitive()), (&b"Bearer hf_file"[..], true));
        assert!(token.source.ends_with("token"));
        let token = read(&[("HF_HOME", home), ("HF_TOKEN", " hf_variable ")]).unwrap().token.unwrap();
        assert_eq!(
            (token.header.as_bytes(), token.source.as_str()),
            (&b"Bearer hf_variable"[..], "HF_TOKEN")
        );
        let printed = format!("{token:?}");
        assert!(!printed.contains("hf_variable"), "{printed}");
        for wrong in ["two words", "two\nlines", "ä"] {
            assert!(read(&[("HF_HOME", home), ("HF_TOKEN", wrong)]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_a_variable_cannot_say_is_named_with_it() {
        for (name, value) in [
            ("HF_ENDPOINT", "huggingface.co"),
            ("HF_ENDPOINT", "ftp://host"),
            ("HF_ENDPOINT", "https://me:secret@host"),
            ("HF_HUB_ETAG_TIMEOUT", "soon"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "0"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "1e9"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "99999999999"),
        ] {
            let said = read(&[(name, value)]).unwrap_err().to_string();
            assert!(said.starts_with(name) && !said.contains("secret"), "{said}");
        }
    }
}
