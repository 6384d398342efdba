//! How long the chunks of a prompt are while others generate, on a clock that the experts advance.

use super::*;

/// Experts that take 5 ms for a layer and 1 ms for each row; the demo model's step of n rows takes layers x (5 + n).
struct PerRow(LocalExperts, Arc<AtomicU64>);

impl Experts for PerRow {
    fn begin(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        let n_rows = asked.routing.experts.len() / asked.routing.k;
        self.1.fetch_add(5 + n_rows as u64, Ordering::Relaxed);
        self.0.begin(asked, sum)
    }
}

#[test]
fn a_stream_waits_for_short_chunks_of_anothers_prompt_and_a_prompt_alone_has_long_ones() {
    let long: Vec<u32> =
        QUESTIONS.iter().flat_map(|q| request(q).prompt_ids).cycle().skip(3).take(400).collect();
    let prompt = || Request { prompt_ids: long.clone(), max_tokens: Some(6), ..Request::default() };
    let stream = || Request { max_tokens: Some(120), ignore_eos: true, ..request(QUESTIONS[2]) };
    let alone = [stream(), prompt()].map(|request| run_one(request).finish().ids);

    let (unmeasured, experts) = scheduler(EngineConfig { guesses: false, ..EngineConfig::default() });
    let now = Arc::new(AtomicU64::new(0));
    let clock = now.clone();
    let mut scheduler =
        unmeasured.with_clock(Box::new(move || Duration::from_millis(clock.load(Ordering::Relaxed))));
    let mut experts = PerRow(experts, now.clone());
    let heard = [Heard::default(), Heard::default()];
    let counts = scheduler.counts();
    // The rows and the milliseconds of a step.
    let mut step = |scheduler: &mut Scheduler| {
        let before = (counts.rows(), now.load(Ordering::Relaxed));
        scheduler.step(&mut experts);
        (counts.rows() - before.0, now.load(Ordering::Relaxed) - before.1)
    };
    scheduler.submit(stream(), heard[0].sink()).unwrap();
    for _ in 0..6 {
        step(&mut scheduler);
    }
    scheduler.submit(prompt(), heard[1].sink()).unwrap();
    let mut beside: Vec<(u64, u64)> = Vec::new();
    while heard[1].pieces().is_empty() {
        beside.push(step(&mut scheduler));
    }
    assert!(beside.len() > 10, "400 rows in short chunks: {beside:?}");
    // A row is the unit of choice, and the last of them may be counted as one too many.
    let row = demo().0.spec().sparse_layers().count() as u64;
    assert!(beside.iter().all(|(_, ms)| *ms <= 100 + row), "tokens come ten times a second: {beside:?}");
    let full = &beside[2..beside.len() - 2];
    assert!(
        full.iter().all(|(_, ms)| *ms >= 100 - 2 * row),
        "chunks are no shorter than that needs: {beside:?}"
    );
    while !scheduler.is_idle() {
        step(&mut scheduler);
    }
    assert_eq!(heard.each_ref().map(|heard| heard.finish().ids), alone, "texts do not depend on it");

    scheduler
        .submit(
            Request { prompt_ids: long.iter().rev().copied().collect(), ..prompt() },
            Heard::default().sink(),
        )
        .unwrap();
    assert_eq!(step(&mut scheduler).0, 128, "while nobody else waits, the longest");
}
