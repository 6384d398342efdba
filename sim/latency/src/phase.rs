//! The expert phase of one layer: the hub waits for the slowest of k experts, each answered by the fastest of its
//! workers. Equation 18 of the paper is its mean.
//!
//! ```text
//! P(min of h copies > t)      = product of their survivals           = S(t)^h            if i.i.d.
//! P(max of k such minima <= t) = product of (1 - that)               = (1 - S(t)^h)^k    if i.i.d.
//! E[phase]                    = integral over t >= 0 of 1 - that     = equation 18
//! ```

use crate::{
    error::ModelError,
    latency::Latency,
    limits::{MAX_CALLS, MAX_COPIES, MAX_CUTS},
    quadrature::{Integral, Piece, integrate},
    random::Random,
};

/// A width for phases that have none, such as those of constants.
const SHORTEST_MS: f64 = 1e-6;

/// A layer's wait, milliseconds, as a distribution: the maximum over calls of the minimum over copies.
///
/// Latencies are independent. Calls may differ, so a swarm of unlike workers is described as well as the paper's.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertPhase(Vec<Calls>);

/// `count` calls to equal workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    /// The number of experts.
    pub count: u32,
    /// The workers that each expert is requested from; the first answer counts.
    pub copies: Vec<Latency>,
}

impl ExpertPhase {
    /// `k` experts, each requested from `h` workers of the same latency, as in equation 18.
    pub fn iid(latency: Latency, k: u32, h: usize) -> Result<Self, ModelError> {
        if h > MAX_COPIES {
            return Err(ModelError::Copies(h));
        }
        Self::new(vec![Calls { count: k, copies: vec![latency; h] }])
    }

    /// Calls to any workers.
    ///
    /// Fails for no call, for a call without a copy, and beyond [`MAX_CALLS`], [`MAX_COPIES`] or [`MAX_CUTS`].
    pub fn new(calls: Vec<Calls>) -> Result<Self, ModelError> {
        let n_calls: u64 = calls.iter().map(|calls| u64::from(calls.count)).sum();
        if n_calls == 0 || n_calls > u64::from(MAX_CALLS) || calls.iter().any(|calls| calls.count == 0) {
            return Err(ModelError::Calls(n_calls));
        }
        if let Some(wrong) = calls.iter().find(|calls| !(1..=MAX_COPIES).contains(&calls.copies.len())) {
            return Err(ModelError::Copies(wrong.copies.len()));
        }
        let cuts = calls.iter().flat_map(|calls| &calls.copies).map(|copy| copy.cuts().len()).sum();
        if cuts > MAX_CUTS {
            return Err(ModelError::Cuts(cuts));
        }
        Ok(Self(calls))
    }

    /// P(the phase takes longer than t).
    pub fn survival(&self, t_ms: f64) -> f64 {
        // In logarithms, so that a survival of 1e-300 is not lost beside 1.
        -libm::expm1(self.log_cdf(t_ms))
    }

    /// P(the phase is over by t).
    pub fn cdf(&self, t_ms: f64) -> f64 {
        libm::exp(self.log_cdf(t_ms))
    }

    fn log_cdf(&self, t_ms: f64) -> f64 {
        self.0
            .iter()
            .map(|Calls { count, copies }| {
                let all_late: f64 = copies.iter().map(|copy| copy.survival(t_ms)).product();
                f64::from(*count) * libm::log1p(-all_late)
            })
            .sum()
    }

    /// The expected phase by quadrature, milliseconds: equation 18.
    pub fn mean(&self) -> Result<Integral, ModelError> {
        // Before the earliest possible end the survival is 1, whose integral is exact.
        let earliest = self.earliest();
        let mut cuts = vec![earliest];
        for copy in self.copies() {
            cuts.extend(copy.cuts().iter().filter(|&&cut| cut > earliest));
        }
        cuts.sort_by(f64::total_cmp);
        cuts.dedup();
        if self.copies().all(Latency::is_empirical) {
            return Ok(self.mean_of_steps(earliest, &cuts));
        }
        let mut pieces: Vec<Piece> = cuts.windows(2).map(|pair| Piece::Between(pair[0], pair[1])).collect();
        let from = cuts[cuts.len() - 1];
        pieces.push(Piece::Tail { from, scale: (from - earliest).max(SHORTEST_MS) });
        let integral = integrate(|t| self.survival(t), &pieces)?;
        Ok(Integral { value: earliest + integral.value, ..integral })
    }

    /// The mean where the survival is constant from each cut to the next, and zero from the last one on.
    fn mean_of_steps(&self, earliest: f64, cuts: &[f64]) -> Integral {
        let steps = cuts.windows(2).map(|pair| (pair[1] - pair[0]) * self.survival(pair[0]));
        let value = earliest + steps.sum::<f64>();
        Integral { value, error: cuts.len() as f64 * f64::EPSILON * value, evaluations: cuts.len() }
    }

    /// The time by which the phase has ended with probability `p`, milliseconds.
    pub fn quantile(&self, p: f64) -> Result<f64, ModelError> {
        if !(p > 0.0 && p < 1.0) {
            return Err(ModelError::Probability(p));
        }
        let mut low = self.earliest();
        if self.cdf(low) >= p {
            return Ok(low);
        }
        let mut high = self.copies().map(Latency::median).fold(low + SHORTEST_MS, f64::max);
        // The doubling ends: every survival is 0 at the largest f64.
        while self.cdf(high) < p {
            low = high;
            high *= 2.0;
        }
        loop {
            let middle = low + (high - low) / 2.0;
            if middle <= low || middle >= high {
                return Ok(high);
            }
            if self.cdf(middle) < p { low = middle } else { high = middle }
        }
    }

    /// One draw of the whole phase, milliseconds.
    pub fn sample(&self, random: &mut Random) -> f64 {
        let mut slowest: f64 = 0.0;
        for Calls { count, copies } in &self.0 {
            for _ in 0..*count {
                let fastest = copies.iter().map(|copy| copy.sample(random)).fold(f64::INFINITY, f64::min);
                slowest = slowest.max(fastest);
            }
        }
        slowest
    }

    /// The earliest possible end of the phase, milliseconds.
    fn earliest(&self) -> f64 {
        let fastest = |copies: &[Latency]| copies.iter().map(Latency::earliest).fold(f64::INFINITY, f64::min);
        self.0.iter().map(|calls| fastest(&calls.copies)).fold(0.0, f64::max)
    }

    fn copies(&self) -> impl Iterator<Item = &Latency> {
        self.0.iter().flat_map(|calls| &calls.copies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn log_normal(median: f64, sigma: f64) -> Latency {
        Latency::log_normal(median, sigma).unwrap()
    }

    fn mean(latency: Latency, k: u32, h: usize) -> f64 {
        ExpertPhase::iid(latency, k, h).unwrap().mean().unwrap().value
    }

    #[test]
    fn equation_18_gives_table_1() {
        for (h, want) in [(1, 42.78), (2, 27.57), (3, 22.38), (4, 19.62)] {
            let phase = ExpertPhase::iid(log_normal(20.0, 0.5), 8, h).unwrap();
            let got = phase.mean().unwrap();
            assert!((got.value - want).abs() < 0.01, "h = {h}: {got:?}");
            assert!(got.error < 1e-6, "h = {h}: {got:?}");
        }
    }

    #[test]
    fn one_call_of_one_copy_is_the_latency_itself() {
        for latency in [
            log_normal(20.0, 0.5),
            log_normal(20.0, 1e-9),
            log_normal(20.0, 1e-3),
            log_normal(20.0, 0.02),
            log_normal(1e-3, 5.0),
            log_normal(1e9, 5.0),
            Latency::shifted_log_normal(1e6, 1e-3, 0.1).unwrap(),
            Latency::shifted_log_normal(50.0, 2.0, 1.0).unwrap(),
            Latency::empirical(vec![4.0, 1.0, 1.0, 2.5]).unwrap(),
            Latency::constant(0.0).unwrap(),
        ] {
            let want = latency.mean();
            let got = ExpertPhase::iid(latency.clone(), 1, 1).unwrap().mean().unwrap();
            let off = (got.value - want).abs();
            // The closed form has rounding errors too.
            assert!(off <= got.error + 1e-14 * want, "{latency:?}: {got:?}, not {want}");
        }
    }

    #[test]
    fn a_constant_is_not_improved_by_copies() {
        let constant = Latency::constant(7.25).unwrap();
        assert_eq!(mean(constant.clone(), 8, 1), 7.25);
        assert_eq!(mean(constant, 8, 4), 7.25);
    }

    #[test]
    fn empirical_phases_equal_enumeration() {
        // Two dice, by hand: E[max] = 161/36, E[min] = 91/36.
        let die = Latency::empirical((1..=6).map(f64::from).collect()).unwrap();
        assert!((mean(die.clone(), 2, 1) - 161.0 / 36.0).abs() < 1e-12);
        assert!((mean(die, 1, 2) - 91.0 / 36.0).abs() < 1e-12);
    }

    #[test]
    fn unlike_workers_wait_for_the_slow_one() {
        // A constant of 100 ms dominates anything that never reaches it.
        let calls = |copies: Vec<Latency>| Calls { count: 1, copies };
        let slow = Latency::constant(100.0).unwrap();
        let fast = log_normal(1.0, 0.2);
        let both = ExpertPhase::new(vec![calls(vec![slow.clone()]), calls(vec![fast.clone()])]).unwrap();
        assert!((both.mean().unwrap().value - 100.0).abs() < 1e-9);
        let hedged =
            ExpertPhase::new(vec![calls(vec![slow, fast.clone()]), calls(vec![fast.clone()])]).unwrap();
        assert!((hedged.mean().unwrap().value - mean(fast, 2, 1)).abs() < 1e-9);
    }

    #[test]
    fn quantiles_invert_the_distribution() {
        let phase = ExpertPhase::iid(log_normal(20.0, 0.5), 8, 2).unwrap();
        for p in [1e-6, 0.01, 0.5, 0.99, 0.999_999] {
            assert!((phase.cdf(phase.quantile(p).unwrap()) - p).abs() < 1e-12);
        }
        let steps = ExpertPhase::iid(Latency::empirical(vec![1.0, 2.0]).unwrap(), 1, 1).unwrap();
        assert_eq!(steps.quantile(0.5).unwrap(), 1.0);
        assert_eq!(steps.quantile(0.51).unwrap(), 2.0);
        assert!(steps.quantile(1.0).is_err() && steps.quantile(f64::NAN).is_err());
    }

    #[test]
    fn limits_are_errors() {
        let latency = log_normal(20.0, 0.5);
        assert!(matches!(ExpertPhase::iid(latency.clone(), 0, 1), Err(ModelError::Calls(0))));
        assert!(matches!(ExpertPhase::iid(latency.clone(), MAX_CALLS + 1, 1), Err(ModelError::Calls(_))));
        assert!(matches!(ExpertPhase::iid(latency.clone(), 8, 0), Err(ModelError::Copies(0))));
        assert!(matches!(ExpertPhase::iid(latency, 8, usize::MAX), Err(ModelError::Copies(_))));
        let large = Latency::empirical(vec![1.0; crate::limits::MAX_SAMPLE_COUNT]).unwrap();
        let calls = vec![Calls { count: 1, copies: vec![large; MAX_COPIES] }; 2];
        assert!(matches!(ExpertPhase::new(calls), Err(ModelError::Cuts(_))));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// More experts wait longer, more copies wait less, and scaling time scales the mean.
        #[test]
        fn the_mean_is_monotone(median in 0.01f64..500.0, sigma in 0.05f64..2.0, k in 1u32..64, h in 1usize..8) {
            let here = mean(log_normal(median, sigma), k, h);
            prop_assert!(mean(log_normal(median, sigma), k + 1, h) > here);
            prop_assert!(mean(log_normal(median, sigma), k, h + 1) < here);
            let twice = mean(log_normal(2.0 * median, sigma), k, h);
            prop_assert!((twice - 2.0 * here).abs() < 1e-7 * here);
        }
    }
}
