//! Parses values of flags, such as durations, and tokens that fit a URL.

use std::time::Duration;

use moex_protocol::{CompressionMode, Dtype};
use moex_swarm::{JoinToken, MAX_INVITATION_NAME_BYTES};

use crate::net::{MAX_IN_FLIGHT, Prefer};

/// The longest duration a flag takes.
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest join token.
const MAX_TOKEN_BYTES: usize = 128;

/// `500ms`, `60s`, `2m`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let millis_per_unit = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return Err("write it as 500ms, 60s or 2m".to_owned()),
    };
    let millis = number.parse::<u64>().ok().and_then(|number| number.checked_mul(millis_per_unit));
    match millis.map(Duration::from_millis) {
        Some(duration) if !duration.is_zero() && duration <= MAX_DURATION => Ok(duration),
        _ => Err("it must be more than nothing and at most a day".to_owned()),
    }
}

/// Format of rows on the wire. int4 is for weights only: too coarse for activations.
pub(super) fn wire(text: &str) -> Result<Dtype, String> {
    match text.parse() {
        Ok(dtype @ (Dtype::F16 | Dtype::Bf16 | Dtype::Int8)) => Ok(dtype),
        _ => Err("it must be f16, bf16 or int8".to_owned()),
    }
}

/// When messages are compressed.
pub(super) fn compress(text: &str) -> Result<CompressionMode, String> {
    match text {
        "auto" => Ok(CompressionMode::Auto),
        "on" => Ok(CompressionMode::On),
        "off" => Ok(CompressionMode::Off),
        _ => Err("it must be auto, on or off".to_owned()),
    }
}

/// A join token: it is part of a URL's fragment unescaped.
pub(super) fn token(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    if text.is_empty() || text.len() > MAX_TOKEN_BYTES || !text.bytes().all(fits) {
        return Err(format!("it must be 1 to {MAX_TOKEN_BYTES} letters, digits or -_.~"));
    }
    Ok(text.to_owned())
}

/// The name of an invitation.
pub(super) fn invitation_name(text: &str) -> Result<String, String> {
    match JoinToken::is_invitation_name(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("it must be 1 to {MAX_INVITATION_NAME_BYTES} letters, digits, - or _")),
    }
}

/// An API key: it is sent in a header unescaped.
pub(super) fn api_key(text: &str) -> Result<String, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("it must be printable ASCII without spaces".to_owned());
    }
    Ok(text.to_owned())
}

/// Groups of rows in flight; none chooses by measured speed.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight(pub(super) Option<usize>);

/// "auto", or a number from 1 to [`MAX_IN_FLIGHT`].
pub(super) fn in_flight(text: &str) -> Result<InFlight, String> {
    match text.parse() {
        _ if text == "auto" => Ok(InFlight(None)),
        Ok(n @ 1..=MAX_IN_FLIGHT) => Ok(InFlight(Some(n))),
        _ => Err(format!("it must be auto or a number from 1 to {MAX_IN_FLIGHT}")),
    }
}

/// "faster" or "workers".
pub(super) fn prefer(text: &str) -> Result<Prefer, String> {
    match text {
        "faster" => Ok(Prefer::Faster),
        "workers" => Ok(Prefer::Workers),
        _ => Err("it must be faster or workers".to_owned()),
    }
}

/// `5%`, `2.5%`; returned as a fraction of one.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').map(str::parse::<f64>) {
        Some(Ok(percent)) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("write it as 5%, from 0% to 100%".to_owned()),
    }
}

/// A secret seed from the operating system.
pub(super) fn seed() -> anyhow::Result<u64> {
    getrandom::u64().map_err(|error| anyhow::anyhow!("the system gives no random bytes: {error}"))
}

/// A secret of 160 bits from the operating system, in letters and digits.
pub(super) fn secret() -> anyhow::Result<String> {
    const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| anyhow::anyhow!("the system gives no random bytes: {error}"))?;
    Ok(bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in [
            "",
            "5",
            "ms",
            "-1s",
            "1.5s",
            "0s",
            "25h",
            "1441m",
            "99999999999999999999s",
            "18446744073709551615m",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn percents() {
        assert_eq!((percent("5%"), percent("0%"), percent("12.5%")), (Ok(0.05), Ok(0.0), Ok(0.125)));
        for wrong in ["5", "-1%", "101%", "NaN%", "%", "inf%"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rows_do_not_travel_in_four_bits() {
        assert_eq!(wire("bf16"), Ok(Dtype::Bf16));
        assert!(wire("int4").is_err() && wire("f32").is_err());
    }

    #[test]
    fn tokens_fit_a_fragment() {
        assert!(token("a-b_c.d~9").is_ok());
        for wrong in ["", "a b", "a#b", "é", &"x".repeat(129)] {
            assert!(token(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn secrets_are_long_and_new() {
        let (one, other) = (secret().unwrap(), secret().unwrap());
        assert_ne!(one, other);
        assert_eq!(token(&one), Ok(one.clone()));
        assert!(one.len() * 5 >= 128, "32 letters carry 5 bits each");
    }
}
