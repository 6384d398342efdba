//! Table 1: the expert phase by equation 18, by quadrature and by Monte Carlo.

use super::column;
use crate::{
    error::ModelError,
    geometry::{CHECKPOINT, PAPER},
    latency::Latency,
    monte_carlo::{Estimate, estimate_mean},
    phase::ExpertPhase,
    plot::{Axis, Chart, Curve, Legend, Scale},
    quadrature::Integral,
    random::Random,
    report::{Cell, Column, Digits, Table},
};

/// The default number of draws for each h: a standard error of about 0.03 ms.
pub const DEFAULT_DRAWS: u64 = 200_000;
/// The default seed.
pub const DEFAULT_SEED: u64 = 1;

/// The paper's E[expert phase] for h = 1 to 4, milliseconds.
const PAPER_MS: [f64; 4] = [51.2, 28.7, 23.1, 20.4];
const MAX_H: usize = PAPER_MS.len();

/// The latency, and how often it is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Every worker's latency.
    pub latency: Latency,
    /// Experts a token visits in a layer.
    pub k: u32,
    /// Seed of the Monte Carlo; each h draws from its own stream.
    pub seed: u64,
    /// Draws for each h.
    pub draws: u64,
}

impl Question {
    /// The paper's question: k = 8, log-normal with a median of 20 ms and sigma 0.5.
    pub fn paper() -> Self {
        let latency = Latency::log_normal(20.0, 0.5).expect("the paper's parameters are within the limits");
        Self { latency, k: PAPER.k, seed: DEFAULT_SEED, draws: DEFAULT_DRAWS }
    }

    /// The mean for h = 1 to 4 by both methods; the paper's figure is shown where the paper asks the same question.
    pub fn table(&self) -> Result<Table, ModelError> {
        let is_papers = self.latency == Self::paper().latency && self.k == PAPER.k;
        let answers = (1..=MAX_H).map(|h| self.answer(h)).collect::<Result<Vec<_>, _>>()?;
        let cut =
            |means: &dyn Fn(usize) -> f64, i: usize| (i > 0).then(|| 100.0 * (1.0 - means(i) / means(0)));
        let rows = answers.iter().enumerate().map(|(i, (exact, drawn))| {
            vec![
                Cell::Number((i + 1) as f64),
                is_papers.then(|| PAPER_MS[i]).into(),
                exact.value.into(),
                exact.error.into(),
                drawn.mean.into(),
                drawn.standard_error.into(),
                drawn.distance(exact.value).into(),
                is_papers.then(|| cut(&|i| PAPER_MS[i], i)).flatten().into(),
                cut(&|i| answers[i].0.value, i).into(),
                Cell::Number((i + 1) as f64),
            ]
        });
        Ok(Table {
            name: "1",
            title: format!("Expected expert phase (equation 18): k = {}, {}", self.k, self.latency),
            columns: vec![
                column("h", "h", 0),
                column("paper_ms", "paper, ms", 1),
                column("eq18_ms", "eq. 18, ms", 2),
                Column { key: "quadrature_error_ms", heading: "+- at most", digits: Digits::Magnitude },
                column("monte_carlo_ms", "Monte Carlo, ms", 2),
                column("standard_error_ms", "s.e.", 3),
                column("distance_standard_errors", "off by s.e.", 2),
                column("paper_cut_percent", "paper's cut, %", 1),
                column("cut_percent", "cut, %", 1),
                column("bandwidth_times", "bandwidth, x", 0),
            ],
            rows: rows.collect(),
            notes: self.notes(is_papers),
        })
    }

    /// The distribution function for h = 1 to 4, with its mean marked.
    pub fn chart(&self) -> Result<Chart, ModelError> {
        let phases = (1..=MAX_H).map(|h| self.phase(h)).collect::<Result<Vec<_>, _>>()?;
        // Up to where the slowest curve is almost 1; a constant still gets some width.
        let end = (1.02 * phases[0].quantile(0.995)?).max(1e-3);
        let curve = |(i, phase): (usize, &ExpertPhase)| -> Result<Curve, ModelError> {
            let mean = phase.mean()?.value;
            Ok(Curve {
                label: format!("h = {}, mean {mean:.2} ms", i + 1),
                points: (0..=600).map(|i| end * f64::from(i) / 600.0).map(|t| (t, phase.cdf(t))).collect(),
                dots: vec![(mean, phase.cdf(mean))],
                drops: true,
            })
        };
        Ok(Chart {
            title: format!("Expert phase of one layer: k = {}, {}", self.k, self.latency),
            x: Axis {
                label: "time until the last expert has answered, ms",
                from: 0.0,
                to: end,
                scale: Scale::Linear,
            },
            y: Axis { label: "share of layers that are done", from: 0.0, to: 1.0, scale: Scale::Linear },
            curves: phases.iter().enumerate().map(curve).collect::<Result<_, _>>()?,
            legend: Legend::LowerRight,
        })
    }

    fn answer(&self, h: usize) -> Result<(Integral, Estimate), ModelError> {
        let phase = self.phase(h)?;
        let drawn = estimate_mean(&phase, self.draws, &mut Random::new(self.seed, h as u64))?;
        Ok((phase.mean()?, drawn))
    }

    fn phase(&self, h: usize) -> Result<ExpertPhase, ModelError> {
        ExpertPhase::iid(self.latency.clone(), self.k, h)
    }

    fn notes(&self, is_papers: bool) -> Vec<String> {
        let mut notes = vec![format!(
            "Equation 18 by adaptive Gauss-Kronrod quadrature, its error estimate beside it; Monte Carlo with {} draws \
             for each h, seed {}.",
            self.draws, self.seed
        )];
        if is_papers {
            notes.push(
                "Why the paper differs: wrong integral. Its figures are not equation 18's value for the distribution it \
                 names; quadrature and Monte Carlo agree with each other. At h = 1 it is 20 % too high, so its cuts \
                 are too large."
                    .to_owned(),
            );
        }
        let kib = |row_bytes: f64| f64::from(self.k) * row_bytes / 1024.0;
        notes.push(format!(
            "Means do not depend on the geometry; bytes do. A token's rows leave the hub k x h times a layer: {} KiB x h \
             in the paper's geometry, {} KiB x h in the checkpoint's (f16).",
            kib(PAPER.row_bytes()),
            kib(CHECKPOINT.row_bytes())
        ));
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(table: &Table, key: &str) -> Vec<f64> {
        let index = table.columns.iter().position(|column| column.key == key).unwrap();
        let number = |row: &Vec<Cell>| match row[index] {
            Cell::Number(number) => number,
            _ => panic!("{key} has a gap"),
        };
        table.rows.iter().map(number).collect()
    }

    #[test]
    fn table_1_holds_both_ways() {
        let table = Question::paper().table().unwrap();
        let want = [42.78, 27.57, 22.38, 19.62];
        for (got, want) in numbers(&table, "eq18_ms").iter().zip(want) {
            assert!((got - want).abs() < 0.01, "{got}, not {want}");
        }
        let distances = numbers(&table, "distance_standard_errors");
        assert!(distances.iter().all(|&distance| distance < 3.0), "{distances:?}");
        assert!(numbers(&table, "standard_error_ms").iter().all(|&error| error < 0.05));
        assert_eq!(numbers(&table, "paper_ms"), PAPER_MS);
    }

    #[test]
    fn the_cuts_are_those_of_the_means() {
        let table = Question::paper().table().unwrap();
        let cuts: Vec<String> = table.rows[1..]
            .iter()
            .map(|row| match row[8] {
                Cell::Number(cut) => format!("{cut:.1}"),
                _ => panic!("a cut is missing"),
            })
            .collect();
        assert_eq!(cuts, ["35.5", "47.7", "54.1"]);
    }

    #[test]
    fn another_question_has_no_figure_of_the_paper() {
        let mut question = Question::paper();
        question.k = 4;
        question.draws = 100;
        let table = question.table().unwrap();
        assert!(table.rows.iter().all(|row| row[1] == Cell::Missing && row[7] == Cell::Missing));
        assert!(table.notes.iter().all(|note| !note.contains("wrong integral")));
    }

    #[test]
    fn the_chart_has_four_curves_that_rise_and_a_mean_on_each() {
        let chart = Question::paper().chart().unwrap();
        assert_eq!(chart.curves.len(), 4);
        for curve in &chart.curves {
            assert!(curve.points.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{} falls", curve.label);
            assert_eq!(curve.dots.len(), 1);
        }
        let svg = chart.to_svg().unwrap();
        assert!(svg.contains("h = 1, mean 42.78 ms") && svg.contains("h = 4, mean 19.61 ms"));
        assert_eq!(svg, chart.to_svg().unwrap());
    }

    #[test]
    fn a_chart_of_a_constant_can_be_drawn() {
        for ms in [0.0, 5.0] {
            let question = Question { latency: Latency::constant(ms).unwrap(), ..Question::paper() };
            assert!(question.chart().unwrap().to_svg().is_ok());
        }
    }
}
