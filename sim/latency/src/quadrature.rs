//! Adaptive Gauss-Kronrod quadrature with an error estimate, over finite pieces and infinite tails.
//!
//! The piece with the largest error estimate is halved until the sum of the estimates is within tolerance (QUADPACK's
//! QAG, Piessens et al. 1983, with its 7-15 point pair). The caller provides the integrand.

use std::{cmp::Ordering, collections::BinaryHeap};

use crate::error::ModelError;

/// The sum of the error estimates is brought below this fraction of the value ...
pub const RELATIVE_TOLERANCE: f64 = 1e-10;
/// ... or below this, for integrals that are nearly zero.
pub const ABSOLUTE_TOLERANCE: f64 = 1e-13;
/// How many times pieces may be halved before the integral fails.
pub const MAX_BISECTIONS: usize = 10_000;

/// A number and a bound of its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Integral {
    /// The 15-point sum over all pieces.
    pub value: f64,
    /// The sum over all pieces of |15-point - 7-point|, which is pessimistic wherever the integrand is smooth, plus the
    /// largest possible rounding error.
    pub error: f64,
    /// How often the integrand was evaluated.
    pub evaluations: usize,
}

/// One stretch of the integration's domain, inside which the integrand has no jump.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Piece {
    /// From the first to the second.
    Between(f64, f64),
    /// From `from` to infinity, mapped onto the unit interval by `t = from + scale * x / (1 - x)`.
    Tail {
        /// The start.
        from: f64,
        /// A length over which the integrand changes: it lands in the middle of the unit interval.
        scale: f64,
    },
}

/// Integrates `f` over all `pieces`.
///
/// Fails if the estimate is not within tolerance after [`MAX_BISECTIONS`]; the integrand must be finite.
pub fn integrate(mut f: impl FnMut(f64) -> f64, pieces: &[Piece]) -> Result<Integral, ModelError> {
    let mut parts: BinaryHeap<Part> = pieces
        .iter()
        .map(|&piece| match piece {
            Piece::Between(from, to) => Part::evaluate(&mut f, piece, from, to),
            Piece::Tail { .. } => Part::evaluate(&mut f, piece, 0.0, 1.0),
        })
        .collect();
    let mut evaluations = 15 * parts.len();
    let (mut value, mut error) = totals(&parts);
    for _ in 0..MAX_BISECTIONS {
        if error <= tolerance(value) {
            break;
        }
        let Some(worst) = parts.pop() else { break };
        let middle = worst.from + (worst.to - worst.from) / 2.0;
        let halves = [(worst.from, middle), (middle, worst.to)]
            .map(|(from, to)| Part::evaluate(&mut f, worst.piece, from, to));
        evaluations += 30;
        value += halves[0].value + halves[1].value - worst.value;
        error += halves[0].error + halves[1].error - worst.error;
        parts.extend(halves);
    }
    // Summed afresh, since the running totals have collected rounding errors.
    (value, error) = totals(&parts);
    // Twice the tolerance, for that same rounding. A NaN fails the comparison, an infinity the test before it.
    if value.is_finite() && error <= 2.0 * tolerance(value) {
        let rounding = (parts.len() + 15) as f64 * f64::EPSILON * value.abs();
        Ok(Integral { value, error: error + rounding, evaluations })
    } else {
        Err(ModelError::NotConverged { value, error, evaluations })
    }
}

fn tolerance(value: f64) -> f64 {
    ABSOLUTE_TOLERANCE.max(RELATIVE_TOLERANCE * value.abs())
}

/// Sums in ascending order of position, so that the result does not depend on the heap's layout.
fn totals(parts: &BinaryHeap<Part>) -> (f64, f64) {
    let mut in_order: Vec<&Part> = parts.iter().collect();
    in_order.sort_by(|a, b| a.start().total_cmp(&b.start()));
    in_order.iter().fold((0.0, 0.0), |(value, error), part| (value + part.value, error + part.error))
}

/// A part of a piece with its sum; `from` and `to` are in the piece's own variable.
struct Part {
    piece: Piece,
    from: f64,
    to: f64,
    value: f64,
    error: f64,
}

impl Part {
    fn evaluate(f: &mut impl FnMut(f64) -> f64, piece: Piece, from: f64, to: f64) -> Self {
        let half = (to - from) / 2.0;
        let centre = from + half;
        let mut at = |x: f64| match piece {
            Piece::Between(..) => f(x),
            Piece::Tail { from, scale } => {
                let rest = 1.0 - x;
                f(from + scale * x / rest) * scale / (rest * rest)
            }
        };
        let middle = at(centre);
        let mut kronrod = KRONROD_CENTRE * middle;
        let mut gauss = GAUSS_CENTRE * middle;
        for (i, (&node, &weight)) in NODES.iter().zip(&KRONROD).enumerate() {
            let pair = at(centre - half * node) + at(centre + half * node);
            kronrod += weight * pair;
            if i % 2 == 1 {
                gauss += GAUSS[i / 2] * pair;
            }
        }
        Self { piece, from, to, value: half * kronrod, error: (half * (kronrod - gauss)).abs() }
    }

    /// The start in the integrand's variable.
    fn start(&self) -> f64 {
        match self.piece {
            Piece::Between(..) => self.from,
            Piece::Tail { from, scale } => from + scale * self.from / (1.0 - self.from),
        }
    }
}

impl Ord for Part {
    /// Orders by error; equal errors by position, so that the order is total.
    fn cmp(&self, other: &Self) -> Ordering {
        self.error.total_cmp(&other.error).then(other.start().total_cmp(&self.start()))
    }
}

impl PartialOrd for Part {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Part {}

/// The nodes of the 15-point rule right of the centre, outermost first; every second one is the 7-point rule's.
const NODES: [f64; 7] = [
    0.9914553711208126,
    0.9491079123427585,
    0.8648644233597691,
    0.7415311855993945,
    0.5860872354676911,
    0.4058451513773972,
    0.20778495500789848,
];
const KRONROD: [f64; 7] = [
    0.022935322010529224,
    0.06309209262997856,
    0.10479001032225019,
    0.14065325971552592,
    0.1690047266392679,
    0.19035057806478542,
    0.20443294007529889,
];
const KRONROD_CENTRE: f64 = 0.20948214108472782;
const GAUSS: [f64; 3] = [0.1294849661688697, 0.27970539148927664, 0.3818300505051189];
const GAUSS_CENTRE: f64 = 0.4179591836734694;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(f: impl Fn(f64) -> f64, pieces: &[Piece], want: f64) {
        let got = integrate(f, pieces).unwrap();
        // The estimate is a promise: the true error lies within it.
        let off = (got.value - want).abs();
        assert!(off <= got.error, "{got:?} is off {want} by {off}");
        assert!(got.error <= 3.0 * tolerance(want), "{got:?} is not within tolerance");
    }

    #[test]
    fn known_integrals_lie_within_the_stated_error() {
        check(|x| x.powi(13), &[Piece::Between(0.0, 1.0)], 1.0 / 14.0);
        check(f64::sqrt, &[Piece::Between(0.0, 1.0)], 2.0 / 3.0);
        check(f64::sin, &[Piece::Between(0.0, 100.0)], 1.0 - 100f64.cos());
        check(|x| (x - 0.3).abs(), &[Piece::Between(0.0, 1.0)], 0.29);
        check(|x| (-x).exp(), &[Piece::Tail { from: 0.0, scale: 1.0 }], 1.0);
        check(|x| (-x).exp(), &[Piece::Tail { from: 2.0, scale: 1e3 }], (-2f64).exp());
        check(|x| 1.0 / (x * x), &[Piece::Tail { from: 1.0, scale: 1.0 }], 1.0);
        check(|x| (-x).exp(), &[Piece::Between(0.0, 3.0), Piece::Tail { from: 3.0, scale: 1.0 }], 1.0);
        check(|_| 0.0, &[Piece::Between(0.0, 1.0)], 0.0);
        check(|_| 1.0, &[], 0.0);
    }

    #[test]
    fn a_divergent_integral_is_an_error() {
        assert!(integrate(|x| 1.0 / x, &[Piece::Between(0.0, 1.0)]).is_err());
        assert!(integrate(|_| f64::NAN, &[Piece::Between(0.0, 1.0)]).is_err());
    }
}
