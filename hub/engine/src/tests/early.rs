//! Sums that are used before they are known to be right.

use super::shared::Elsewhere;
use super::*;

/// Experts elsewhere whose every `lies_every`th sum that is given early is false, which is found out with the next one.
struct Early {
    experts: Elsewhere,
    lies_every: usize,
    n_early: usize,
    n_refuted: usize,
    /// A false sum was given.
    is_false: bool,
}

impl Early {
    fn check(&mut self) -> Result<(), ExpertsError> {
        let was_false = std::mem::take(&mut self.is_false);
        self.n_refuted += usize::from(was_false);
        if was_false { Err(ExpertsError::FalseAnswer) } else { Ok(()) }
    }
}

impl Experts for Early {
    fn begin(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        self.experts.begin(asked, sum)
    }

    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        self.experts.finish(ticket, sum)
    }

    fn finish_early(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        self.check()?;
        self.experts.finish(ticket, sum)?;
        self.n_early += 1;
        self.is_false = self.n_early.is_multiple_of(self.lies_every);
        if self.is_false {
            sum.iter_mut().for_each(|value| *value = 65504.0 - 3.0 * *value);
        }
        Ok(())
    }

    fn confirm(&mut self) -> Result<(), ExpertsError> {
        self.check()
    }

    fn max_in_flight(&self) -> usize {
        self.experts.max_in_flight()
    }
}

#[test]
fn a_false_sum_reaches_no_text_whichever_layer_it_is_of() {
    let alone: Vec<Vec<u32>> =
        QUESTIONS.map(|question| run_one(request(question)).finish().ids).into_iter().collect();
    let n_layers = demo().0.spec().layers.len();
    // Of one layer always, of each in turn, and of some.
    for lies_every in [n_layers, n_layers + 1, 3] {
        let (mut scheduler, experts) = scheduler(EngineConfig { max_rows: 16, ..EngineConfig::default() });
        let experts = Elsewhere::new(experts);
        let mut experts = Early { experts, lies_every, n_early: 0, n_refuted: 0, is_false: false };
        let heard: Vec<Heard> = QUESTIONS.iter().map(|_| Heard::default()).collect();
        for (question, heard) in QUESTIONS.iter().zip(&heard) {
            scheduler.submit(request(question), heard.sink()).unwrap();
        }
        while !scheduler.is_idle() {
            scheduler.step(&mut experts);
        }
        let ids: Vec<Vec<u32>> = heard.iter().map(|heard| heard.finish().ids).collect();
        assert_eq!(ids, alone, "each {lies_every}th is false");
        assert!(experts.n_refuted > 10, "each {lies_every}th is false: {}", experts.n_refuted);
    }
}
