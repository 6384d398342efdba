//! The time that one worker takes to answer one call, as a distribution over milliseconds.
//!
//! [`crate::phase`] combines several workers; [`crate::random`] draws random numbers.

use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

use crate::{
    error::ModelError,
    limits::{MAX_SAMPLE_COUNT, MAX_SIGMA, MAX_TIME_MS},
    random::Random,
};

/// The cuts of a log-normal's rise, in standard deviations of its logarithm; beyond 8, less than 1e-15 is left.
const CUT_DEVIATIONS: [f64; 9] = [-8.0, -6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0, 8.0];

/// A distribution of one worker's answer time, milliseconds, never negative.
///
/// Cloning is cheap: an empirical distribution shares its samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency(Shape);

#[derive(Clone, Debug, PartialEq)]
enum Shape {
    /// `shift + exp(mu + sigma * Z)`, Z standard normal.
    LogNormal { shift: f64, mu: f64, sigma: f64 },
    /// Each sample with equal weight, ascending.
    Empirical(Arc<[f64]>),
}

impl Latency {
    /// Log-normal by its median and the deviation of its logarithm; the paper's is `log_normal(20.0, 0.5)`.
    pub fn log_normal(median_ms: f64, sigma: f64) -> Result<Self, ModelError> {
        Self::shifted_log_normal(0.0, median_ms, sigma)
    }

    /// `shift_ms`, which every answer takes (the wire's round trip), plus a log-normal (queueing and compute).
    pub fn shifted_log_normal(shift_ms: f64, median_ms: f64, sigma: f64) -> Result<Self, ModelError> {
        check_time("the shift", shift_ms)?;
        check_time("the median", median_ms)?;
        if median_ms == 0.0 {
            return Err(ModelError::ZeroMedian);
        }
        if !(sigma > 0.0 && sigma <= MAX_SIGMA) {
            return Err(ModelError::Sigma(sigma));
        }
        Ok(Self(Shape::LogNormal { shift: shift_ms, mu: libm::log(median_ms), sigma }))
    }

    /// The same `ms` later: a copy that is sent after this time.
    pub fn delayed(&self, ms: f64) -> Result<Self, ModelError> {
        check_time("the delay", ms)?;
        match &self.0 {
            &Shape::LogNormal { shift, mu, sigma } => {
                check_time("the shift", shift + ms)?;
                Ok(Self(Shape::LogNormal { shift: shift + ms, mu, sigma }))
            }
            Shape::Empirical(samples) => Self::empirical(samples.iter().map(|sample| sample + ms).collect()),
        }
    }

    /// Measured samples, milliseconds, each with equal weight.
    pub fn empirical(mut samples_ms: Vec<f64>) -> Result<Self, ModelError> {
        if samples_ms.is_empty() || samples_ms.len() > MAX_SAMPLE_COUNT {
            return Err(ModelError::SampleCount(samples_ms.len()));
        }
        for &sample in &samples_ms {
            check_time("a sample", sample)?;
        }
        samples_ms.sort_by(f64::total_cmp);
        Ok(Self(Shape::Empirical(samples_ms.into())))
    }

    /// A distribution that always gives the same time.
    pub fn constant(ms: f64) -> Result<Self, ModelError> {
        Self::empirical(vec![ms])
    }

    /// An empirical distribution from text: one time in milliseconds a line, `#` starts a comment.
    pub fn from_sample_lines(text: &str) -> Result<Self, ModelError> {
        let mut samples = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let number = line.split('#').next().unwrap_or_default().trim();
            if number.is_empty() {
                continue;
            }
            if samples.len() == MAX_SAMPLE_COUNT {
                return Err(ModelError::SampleCount(samples.len() + 1));
            }
            samples.push(number.parse().ok().filter(|ms| check_time("a sample", *ms).is_ok()).ok_or_else(
                || ModelError::SampleLine { line: index + 1, text: number.chars().take(40).collect() },
            )?);
        }
        Self::empirical(samples)
    }

    /// P(X <= `t_ms`).
    pub fn cdf(&self, t_ms: f64) -> f64 {
        match &self.0 {
            &Shape::LogNormal { shift, mu, sigma } if t_ms > shift => {
                upper_normal_tail(-(libm::log(t_ms - shift) - mu) / sigma)
            }
            Shape::LogNormal { .. } => 0.0,
            Shape::Empirical(samples) => at_most(samples, t_ms) as f64 / samples.len() as f64,
        }
    }

    /// P(X > `t_ms`). It keeps its digits in the far tail, where `1 - cdf` has none.
    pub fn survival(&self, t_ms: f64) -> f64 {
        match &self.0 {
            &Shape::LogNormal { shift, mu, sigma } if t_ms > shift => {
                upper_normal_tail((libm::log(t_ms - shift) - mu) / sigma)
            }
            Shape::LogNormal { .. } => 1.0,
            Shape::Empirical(samples) => {
                (samples.len() - at_most(samples, t_ms)) as f64 / samples.len() as f64
            }
        }
    }

    /// The expectation in closed form, milliseconds.
    pub fn mean(&self) -> f64 {
        match &self.0 {
            Shape::LogNormal { shift, mu, sigma } => shift + libm::exp(mu + sigma * sigma / 2.0),
            Shape::Empirical(samples) => samples.iter().sum::<f64>() / samples.len() as f64,
        }
    }

    /// The median, milliseconds; of an even number of samples the upper one.
    pub fn median(&self) -> f64 {
        match &self.0 {
            Shape::LogNormal { shift, mu, .. } => shift + libm::exp(*mu),
            Shape::Empirical(samples) => samples[samples.len() / 2],
        }
    }

    /// The time within which a share `q` of all answers has arrived, milliseconds, by nearest rank of the samples.
    /// `None` for a law: [`crate::phase::ExpertPhase::quantile`] inverts those.
    pub fn sample_quantile(&self, q: f64) -> Option<f64> {
        match &self.0 {
            Shape::LogNormal { .. } => None,
            Shape::Empirical(samples) => {
                let rank = libm::ceil(q * samples.len() as f64).max(1.0) as usize;
                Some(samples[rank.min(samples.len()) - 1])
            }
        }
    }

    /// One draw, milliseconds.
    pub fn sample(&self, random: &mut Random) -> f64 {
        match &self.0 {
            Shape::LogNormal { shift, mu, sigma } => shift + libm::exp(mu + sigma * random.normal()),
            Shape::Empirical(samples) => samples[random.below(samples.len())],
        }
    }

    /// Draws from the samples that are longer than `ms`; returns `ms` itself if there is none. For a law, returns a
    /// draw or `ms`, whichever is longer.
    pub fn sample_beyond(&self, ms: f64, random: &mut Random) -> f64 {
        match &self.0 {
            Shape::LogNormal { .. } => self.sample(random).max(ms),
            Shape::Empirical(samples) => match &samples[at_most(samples, ms)..] {
                [] => ms,
                longer => longer[random.below(longer.len())],
            },
        }
    }

    /// Whether it consists of samples.
    pub(crate) fn is_empirical(&self) -> bool {
        matches!(self.0, Shape::Empirical(_))
    }

    /// The earliest possible answer, milliseconds.
    pub(crate) fn earliest(&self) -> f64 {
        match &self.0 {
            Shape::LogNormal { shift, .. } => *shift,
            Shape::Empirical(samples) => samples[0],
        }
    }

    /// The cuts of an integral over the distribution, ascending: at every jump, and so often in between that no piece
    /// can step over a narrow rise.
    pub(crate) fn cuts(&self) -> Cow<'_, [f64]> {
        match &self.0 {
            Shape::LogNormal { shift, mu, sigma } => {
                CUT_DEVIATIONS.iter().map(|z| shift + libm::exp(mu + sigma * z)).collect()
            }
            Shape::Empirical(samples) => Cow::Borrowed(samples),
        }
    }
}

impl FromStr for Latency {
    type Err = ModelError;

    /// Reads `lognormal:MEDIAN,SIGMA` or `shifted:SHIFT,MEDIAN,SIGMA`, times in milliseconds.
    fn from_str(text: &str) -> Result<Self, ModelError> {
        let no_latency = || ModelError::Spec(text.chars().take(60).collect());
        let (name, numbers) = text.split_once(':').ok_or_else(no_latency)?;
        let numbers: Vec<f64> = numbers
            .split(',')
            .take(4)
            .map(|number| number.trim().parse().map_err(|_| no_latency()))
            .collect::<Result<_, _>>()?;
        match (name, numbers.as_slice()) {
            ("lognormal", &[median, sigma]) => Self::log_normal(median, sigma),
            ("shifted", &[shift, median, sigma]) => Self::shifted_log_normal(shift, median, sigma),
            _ => Err(no_latency()),
        }
    }
}

impl fmt::Display for Latency {
    /// Formats for a title: `log-normal(ln 20 ms, 0.5)`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Shape::LogNormal { shift, mu, sigma } => {
                // The median as it was given, not as exp(log(..)) rounds it.
                let median = (libm::exp(*mu) * 1e6).round() / 1e6;
                if *shift > 0.0 {
                    write!(out, "{shift} ms + ")?;
                }
                write!(out, "log-normal(ln {median} ms, {sigma})")
            }
            Shape::Empirical(samples) => write!(out, "empirical ({} samples)", samples.len()),
        }
    }
}

/// A time is finite, not negative and below the limit.
pub fn check_time(what: &'static str, ms: f64) -> Result<(), ModelError> {
    if (0.0..=MAX_TIME_MS).contains(&ms) { Ok(()) } else { Err(ModelError::Time { what, value: ms }) }
}

/// P(Z > z) of a standard normal.
fn upper_normal_tail(z: f64) -> f64 {
    0.5 * libm::erfc(z * std::f64::consts::FRAC_1_SQRT_2)
}

fn at_most(ascending: &[f64], t: f64) -> usize {
    ascending.partition_point(|&sample| sample <= t)
}

#[cfg(test)]
mod tests {
    use super::*;
    use statrs::distribution::{ContinuousCDF, LogNormal};

    #[test]
    fn log_normal_equals_statrs() {
        let ours = Latency::log_normal(20.0, 0.5).unwrap();
        let theirs = LogNormal::new(20f64.ln(), 0.5).unwrap();
        for t in [0.1, 1.0, 5.0, 19.9, 20.0, 42.78, 100.0, 400.0] {
            // statrs approximates erf to about 1e-11.
            assert!((ours.cdf(t) - theirs.cdf(t)).abs() < 1e-10, "cdf at {t}");
            assert!((ours.survival(t) - theirs.sf(t)).abs() < 1e-10, "survival at {t}");
        }
        assert_eq!(ours.cdf(0.0), 0.0);
        assert_eq!(ours.survival(-1.0), 1.0);
    }

    #[test]
    fn a_shift_moves_everything() {
        let plain = Latency::log_normal(15.0, 0.7).unwrap();
        let shifted = Latency::shifted_log_normal(5.0, 15.0, 0.7).unwrap();
        assert_eq!(shifted.cdf(25.0), plain.cdf(20.0));
        assert_eq!(shifted.cdf(5.0), 0.0);
        assert_eq!(shifted.mean(), plain.mean() + 5.0);
        assert!((shifted.median() - 20.0).abs() < 1e-12);
    }

    #[test]
    fn empirical_counts_its_samples() {
        let latency = Latency::from_sample_lines("# a trace\n3\n1 # early\n\n2\n2\n").unwrap();
        for (t, at_most) in [(0.9, 0.0), (1.0, 0.25), (1.5, 0.25), (2.0, 0.75), (3.0, 1.0), (9.0, 1.0)] {
            assert_eq!(latency.cdf(t), at_most, "cdf at {t}");
            assert_eq!(latency.survival(t), 1.0 - at_most, "survival at {t}");
        }
        assert_eq!(latency.mean(), 2.0);
    }

    #[test]
    fn wrong_input_is_told_in_a_sentence() {
        let messages = [
            Latency::log_normal(-1.0, 0.5),
            Latency::log_normal(f64::NAN, 0.5),
            Latency::log_normal(0.0, 0.5),
            Latency::log_normal(20.0, 0.0),
            Latency::log_normal(20.0, f64::INFINITY),
            Latency::empirical(vec![]),
            Latency::empirical(vec![1.0; MAX_SAMPLE_COUNT + 1]),
            Latency::empirical(vec![f64::NAN]),
            Latency::from_sample_lines("1\nfast\n"),
            Latency::from_sample_lines("-1\n"),
            "lognormal".parse(),
            "lognormal:20".parse(),
            "lognormal:20,x".parse(),
            "shifted:1,2,3,4,5".parse(),
            "gamma:1,2".parse(),
        ]
        .map(|result| result.unwrap_err().to_string());
        assert_eq!(messages[8], "line 2: 'fast' is no latency in milliseconds");
        assert!(messages.iter().all(|message| !message.contains('\n')), "{messages:#?}");
        assert_eq!("lognormal:20,0.5".parse(), Latency::log_normal(20.0, 0.5));
        assert_eq!("shifted:5, 15, 0.7".parse(), Latency::shifted_log_normal(5.0, 15.0, 0.7));
    }
}
