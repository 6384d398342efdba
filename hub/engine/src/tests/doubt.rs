//! Answers that are found wrong after they were used.

use super::*;

/// Experts whose sums are false from one step to another, which is found out in a later one.
struct Late {
    experts: LocalExperts,
    step: usize,
    is_false: std::ops::Range<usize>,
    found_in: usize,
}

impl Experts for Late {
    fn begin(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        let ticket = self.experts.begin(asked, sum)?;
        if self.is_false.contains(&self.step) {
            sum.iter_mut().for_each(|value| *value = 1000.0 - *value);
        }
        Ok(ticket)
    }

    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        self.experts.finish(ticket, sum)
    }

    fn n_doubts(&self) -> u64 {
        u64::from(self.step >= self.found_in)
    }

    fn step_begins(&mut self, _: usize) {
        self.step += 1;
    }
}

/// A reader that has shown nobody what it was told.
struct Unshown(Heard);

impl Listener for Unshown {
    fn hear(&mut self, event: Event) -> ControlFlow<()> {
        self.0.sink().hear(event)
    }

    fn forgets(&mut self) -> bool {
        self.0.0.lock().unwrap().clear();
        true
    }

    fn n_unread(&self) -> Option<usize> {
        Some(0)
    }
}

#[test]
fn a_text_begins_again_or_fails_and_no_later_one_reads_what_was_wrong() {
    let story = || Request { max_tokens: Some(24), ..request(QUESTIONS[2]) };
    let alone = run_one(story());
    let (mut scheduler, experts) = scheduler(EngineConfig::default());
    // The prompts are computed in the first two steps; the first token after them is false.
    let mut experts = Late { experts, step: 0, is_false: 2..5, found_in: 9 };
    let [shown, unshown, later] = [Heard::default(), Heard::default(), Heard::default()];
    scheduler.submit(story(), shown.sink()).unwrap();
    scheduler.submit(story(), Box::new(Unshown(unshown.clone()))).unwrap();
    while !scheduler.is_idle() {
        scheduler.step(&mut experts);
    }
    assert_eq!(shown.last(), Some(Event::Failed(Failure::InDoubt)));
    assert!(!alone.text().starts_with(&shown.text()), "what was shown is wrong: {:?}", shown.text());
    assert_eq!((unshown.text(), unshown.finish().ids), (alone.text(), alone.finish().ids));
    assert_eq!(unshown.finish().usage.cached_tokens, 0);

    scheduler.submit(story(), later.sink()).unwrap();
    while !scheduler.is_idle() {
        scheduler.step(&mut experts);
    }
    assert_eq!(later.finish().ids, alone.finish().ids);
    assert!(later.finish().usage.cached_tokens > 0, "what was computed since is cached");
}

#[test]
fn a_text_that_begins_again_too_often_fails() {
    let (mut scheduler, experts) = scheduler(EngineConfig::default());
    let mut experts = Late { experts, step: 0, is_false: 0..0, found_in: 0 };
    let heard = Heard::default();
    scheduler.submit(request(QUESTIONS[2]), Box::new(Unshown(heard.clone()))).unwrap();
    let mut n_steps = 0;
    while !scheduler.is_idle() {
        // In each third step another one is found.
        experts.found_in = if n_steps % 3 == 2 { 0 } else { usize::MAX };
        scheduler.step(&mut experts);
        n_steps += 1;
    }
    assert_eq!(heard.last(), Some(Event::Failed(Failure::InDoubt)));
    assert!(n_steps < 30, "{n_steps}");
}
