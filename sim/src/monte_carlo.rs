//! Estimates a mean by sampling.
//!
//! Samples share only the distribution's parameters with the quadrature: normals come from the polar method, not from
//! an inverted distribution function, so that each method checks the other.

use crate::{error::ModelError, limits::MAX_DRAWS, phase::ExpertPhase, random::Random};

/// A mean estimated from draws.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The average of the draws, milliseconds.
    pub mean: f64,
    /// The standard error of that average, milliseconds.
    pub standard_error: f64,
    /// The number of draws.
    pub draws: u64,
}

impl Estimate {
    /// How many standard errors `value` lies away from the mean; 0 where both are the same constant.
    pub fn distance(&self, value: f64) -> f64 {
        let off = (self.mean - value).abs();
        if off == 0.0 { 0.0 } else { off / self.standard_error }
    }
}

/// Draws the phase `draws` times, from 2 to [`MAX_DRAWS`], and averages.
pub fn estimate_mean(phase: &ExpertPhase, draws: u64, random: &mut Random) -> Result<Estimate, ModelError> {
    if !(2..=MAX_DRAWS).contains(&draws) {
        return Err(ModelError::Draws(draws));
    }
    // Welford's recurrence: one pass, no cancellation.
    let (mut mean, mut squares) = (0.0, 0.0);
    for n in 1..=draws {
        let draw = phase.sample(random);
        let off = draw - mean;
        mean += off / n as f64;
        squares += off * (draw - mean);
    }
    let variance = squares / (draws - 1) as f64;
    Ok(Estimate { mean, standard_error: (variance / draws as f64).sqrt(), draws })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Latency;

    #[test]
    fn agrees_with_quadrature_within_three_standard_errors() {
        let latencies = [
            Latency::log_normal(20.0, 0.5).unwrap(),
            Latency::shifted_log_normal(5.0, 15.0, 0.7).unwrap(),
            Latency::empirical((0..100).map(|i| f64::from(i * i) / 100.0).collect()).unwrap(),
        ];
        for (index, latency) in latencies.into_iter().enumerate() {
            for h in 1..=4 {
                let phase = ExpertPhase::iid(latency.clone(), 8, h).unwrap();
                let exact = phase.mean().unwrap().value;
                let drawn =
                    estimate_mean(&phase, 50_000, &mut Random::new(7, (10 * index + h) as u64)).unwrap();
                assert!(drawn.distance(exact) < 3.0, "{latency:?}, h = {h}: {drawn:?}, not {exact}");
                // The interval must also be tight enough to be meaningful.
                assert!(drawn.standard_error < 0.005 * exact, "{drawn:?}");
            }
        }
    }

    #[test]
    fn too_few_or_too_many_draws_are_errors() {
        let phase = ExpertPhase::iid(Latency::constant(1.0).unwrap(), 1, 1).unwrap();
        for draws in [0, 1, MAX_DRAWS + 1] {
            assert_eq!(estimate_mean(&phase, draws, &mut Random::new(1, 0)), Err(ModelError::Draws(draws)));
        }
        let constant = estimate_mean(&phase, 2, &mut Random::new(1, 0)).unwrap();
        assert_eq!((constant.mean, constant.standard_error, constant.distance(1.0)), (1.0, 0.0, 0.0));
    }
}
