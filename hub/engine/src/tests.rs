//! The scheduler on the demo model, step by step, and the engine's thread.

use std::{
    ops::ControlFlow,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use serde_json::{Map, json};

use super::*;
use crate::sampler::Sampling;
use moex_model::text::ChatInput;
use moex_model::{
    Asked, Checkpoint, ExpertsError, PAGE_POSITIONS, StepError, Ticket, local_experts::LocalExperts,
};

/// Waits for no memory that never comes.
#[test]
fn a_conversation_that_the_system_has_no_memory_for_fails_and_others_follow() {
    let (mut scheduler, mut experts) = scheduler(EngineConfig::default());
    let [first, second] = [Heard::default(), Heard::default()];
    let max_pages = scheduler.kv().max_positions() / PAGE_POSITIONS;
    scheduler.kv().set_max_pages(0);
    scheduler.submit(request(QUESTIONS[0]), first.sink()).unwrap();
    scheduler.step(&mut experts);
    assert!(scheduler.is_idle(), "it would be stepped for ever");
    assert_eq!(*first.0.lock().unwrap(), [Event::Failed(Failure::NoMemory)]);
    scheduler.kv().set_max_pages(max_pages);
    scheduler.submit(request(QUESTIONS[0]), second.sink()).unwrap();
    while !scheduler.is_idle() {
        scheduler.step(&mut experts);
    }
    assert!(matches!(second.0.lock().unwrap().last(), Some(Event::Finished(_))));
}

const QUESTIONS: [&str; 4] = [
    "49 + 34 = ?",
    "Count from 15 to 22.",
    "Tell me a story about a bear.",
    "Sort these numbers: 83, 34, 63.",
];

fn demo() -> (Arc<Model>, Arc<Text>) {
    static DEMO: OnceLock<(Arc<Model>, Arc<Text>)> = OnceLock::new();
    let load = || {
        let checkpoint = Checkpoint::demo().unwrap();
        (Arc::new(Model::load(&checkpoint).unwrap()), Arc::new(Text::load(&checkpoint).unwrap()))
    };
    DEMO.get_or_init(load).clone()
}

fn scheduler(config: EngineConfig) -> (Scheduler, LocalExperts) {
    let (model, text) = demo();
    (Scheduler::new(model.clone(), text, config), LocalExperts::of_checkpoint(model))
}

fn request(question: &str) -> Request {
    let message = json!({"role": "user", "content": question});
    let variables: Map<_, _> = [("enable_thinking".to_owned(), json!(false))].into_iter().collect();
    let prompt_ids = demo().1.prompt(&ChatInput {
        messages: &[message],
        tools: None,
        generation_prompt: true,
        variables: &variables,
        unix_seconds: 0,
    });
    Request { prompt_ids: prompt_ids.unwrap(), ..Request::default() }
}

/// What a request's sink was given.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Event>>>);

impl Heard {
    fn sink(&self) -> Sink {
        let heard = self.0.clone();
        Box::new(move |event| {
            heard.lock().unwrap().push(event);
            ControlFlow::Continue(())
        })
    }

    fn pieces(&self) -> Vec<String> {
        let text = |event: &Event| if let Event::Text(text) = event { Some(text.clone()) } else { None };
        self.0.lock().unwrap().iter().filter_map(text).collect()
    }

    fn text(&self) -> String {
        self.pieces().concat()
    }

    fn last(&self) -> Option<Event> {
        self.0.lock().unwrap().last().cloned()
    }

    fn finish(&self) -> Finish {
        match self.last() {
            Some(Event::Finished(finish)) => finish,
            other => panic!("not finished: {other:?}"),
        }
    }
}

/// Runs `requests` together to their ends.
fn run_all(config: EngineConfig, requests: Vec<Request>) -> Vec<Heard> {
    let (mut scheduler, mut experts) = scheduler(config);
    let mut heard = Vec::new();
    for request in requests {
        heard.push(Heard::default());
        scheduler.submit(request, heard[heard.len() - 1].sink()).unwrap();
    }
    while !scheduler.is_idle() {
        scheduler.step(&mut experts);
    }
    heard
}

fn run_one(request: Request) -> Heard {
    run_all(EngineConfig::default(), vec![request]).remove(0)
}

#[test]
fn it_answers() {
    let heard = run_one(request(QUESTIONS[0]));
    assert_eq!(heard.text(), "83");
    let finish = heard.finish();
    assert_eq!(finish.reason, FinishReason::Stop);
    assert_eq!(finish.ids, [23, 18, 1017]);
    let prompt_tokens = request(QUESTIONS[0]).prompt_ids.len();
    assert_eq!(finish.usage, Usage { prompt_tokens, completion_tokens: 3, ..Usage::default() });
}

#[test]
fn a_request_is_measured_by_the_engines_clock_from_its_first_step_to_its_last_token() {
    let config = EngineConfig { max_rows: 10, ..EngineConfig::default() };
    let (unmeasured, mut experts) = scheduler(config);
    // Each look takes 10 ms, and a step looks twice: it takes 10 ms, and 10 more pass before the next.
    let looks = Arc::new(AtomicU64::new(0));
    let seen = looks.clone();
    let clock = move || Duration::from_millis(10 * seen.fetch_add(1, Ordering::Relaxed));
    let mut scheduler = unmeasured.with_clock(Box::new(clock));
    let (first, second) = (Heard::default(), Heard::default());
    scheduler.submit(request(QUESTIONS[0]), first.sink()).unwrap();
    while !scheduler.is_idle() {
        scheduler.step(&mut experts);
    }
    let Finish { usage, timings, .. } = first.finish();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (25, 3));
    assert_eq!(timings.prompt, Duration::from_millis(10 + 2 * 20), "three steps of ten rows at most");
    assert_eq!(timings.generation, Duration::from_millis(2 * 20), "two steps after the first token");

    // What it waited before its first step does not count; asked again, all but one token is cached: one step.
    scheduler.submit(request(QUESTIONS[0]), second.sink()).unwrap();
    looks.fetch_add(50, Ordering::Relaxed);
    while !scheduler.is_idle() {
        scheduler.step(&mut experts);
    }
    assert_eq!(second.finish().timings, Timings { prompt: Duration::from_millis(10), ..timings });
}

#[test]
fn a_text_does_not_depend_on_who_else_talks_or_how_a_prompt_is_cut() {
    let alone: Vec<String> = QUESTIONS.map(|question| run_one(request(question)).text()).into();
    for max_rows in [128, 7, 4] {
        let config = EngineConfig { max_rows, ..EngineConfig::default() };
        let together = run_all(config, QUESTIONS.map(request).into());
        assert_eq!(together.iter().map(Heard::text).collect::<Vec<_>>(), alone, "{max_rows} rows a step");
    }
}

#[test]
fn a_prompt_goes_in_by_chunks() {
    let heard =
        run_all(EngineConfig { max_rows: 10, ..EngineConfig::default() }, vec![request(QUESTIONS[0])]);
    let total = request(QUESTIONS[0]).prompt_ids.len();
    let chunks: Vec<usize> = (1..=total.div_ceil(10)).map(|n| (10 * n).min(total)).collect();
    let heard = heard[0].0.lock().unwrap();
    assert!(chunks.len() >= 2);
    let said: Vec<Event> = chunks.iter().map(|done| Event::Prompt { done: *done, total }).collect();
    assert_eq!(heard[..chunks.len()], said);
}

#[test]
fn when_pages_run_out_the_youngest_begins_anew_with_the_same_text() {
    let alone: Vec<String> = QUESTIONS.map(|question| run_one(request(question)).text()).into();
    let (model, _) = demo();
    // Six pages: less than four prompts and their answers need.
    let kv_bytes = 6 * PAGE_POSITIONS * model.compute().kv_layout(model.spec()).position_bytes();
    let config = EngineConfig { kv_bytes, ..EngineConfig::default() };
    let mut requests: Vec<Request> = QUESTIONS.map(request).into();
    requests.swap(0, 2);
    let mut texts: Vec<String> = run_all(config, requests).iter().map(Heard::text).collect();
    texts.swap(0, 2);
    assert_eq!(texts, alone);
}

#[test]
fn max_tokens_and_the_context_end_a_text() {
    let heard = run_one(Request { max_tokens: Some(5), ..request(QUESTIONS[1]) });
    let finish = heard.finish();
    assert_eq!((finish.reason, finish.usage.completion_tokens), (FinishReason::Length, 5));
    assert_eq!(heard.text(), "15, 1");

    let (model, _) = demo();
    let kv_bytes = PAGE_POSITIONS * model.compute().kv_layout(model.spec()).position_bytes();
    let request = request(QUESTIONS[1]);
    let room = PAGE_POSITIONS - request.prompt_ids.len();
    let heard = run_all(EngineConfig { kv_bytes, ..EngineConfig::default() }, vec![request]);
    let finish = heard[0].finish();
    assert_eq!((finish.reason, finish.usage.completion_tokens), (FinishReason::Length, room));
}

#[test]
fn stop_strings_end_a_text_and_are_not_said() {
    let stop = vec!["18, 19".to_owned(), "never".to_owned()];
    let heard = run_one(Request { stop, ..request(QUESTIONS[1]) });
    assert_eq!(heard.text(), "15, 16, 17, ");
    assert_eq!(heard.finish().reason, FinishReason::Stop);
    let stop = vec!["22, 23".to_owned()];
    let heard = run_one(Request { stop, ..request(QUESTIONS[1]) });
    assert_eq!(heard.text(), "15, 16, 17, 18, 19, 20, 21, 22", "what was held back is said at the end");
}

#[test]
fn a_seed_is_a_text() {
    let text = |seed| {
        let sampling = Sampling { temperature: 1.5, seed, ..Sampling::default() };
        run_one(Request { sampling, max_tokens: Some(40), ..request(QUESTIONS[2]) }).text()
    };
    assert_eq!(text(1), text(1));
    assert_ne!(text(1), text(2));
}

#[test]
fn who_no_longer_listens_is_not_computed_for() {
    let (mut scheduler, mut experts) = scheduler(EngineConfig { max_rows: 8, ..EngineConfig::default() });
    let heard = Heard::default();
    let mut left = 3;
    let leaves = move |_| {
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    scheduler.submit(request(QUESTIONS[2]), Box::new(leaves)).unwrap();
    scheduler.submit(request(QUESTIONS[0]), heard.sink()).unwrap();
    for _ in 0..12 {
        scheduler.step(&mut experts);
    }
    assert!(scheduler.is_idle(), "the story was not told to the end");
    assert_eq!(heard.text(), "83");
}

/// Experts that fail in the steps before `works`.
struct Failing {
    experts: LocalExperts,
    works: bool,
}

impl Experts for Failing {
    fn begin(&mut self, asked: Asked<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        if self.works {
            return self.experts.begin(asked, sum);
        }
        Err(ExpertsError::NotCovered { layer: asked.layer as u16, expert: asked.routing.experts[0] })
    }
}

#[test]
fn experts_that_fail_end_the_requests_of_the_step_and_no_others() {
    let (mut scheduler, experts) = scheduler(EngineConfig::default());
    let mut experts = Failing { experts, works: false };
    let (first, second) = (Heard::default(), Heard::default());
    scheduler.submit(request(QUESTIONS[0]), first.sink()).unwrap();
    scheduler.step(&mut experts);
    let Some(Event::Failed(failure)) = first.last() else { panic!("{:?}", first.last()) };
    assert!(matches!(failure, Failure::Step(StepError::Experts(ExpertsError::NotCovered { layer: 0, .. }))));
    assert!(failure.to_string().starts_with("no worker holds expert "));
    assert!(scheduler.is_idle());

    experts.works = true;
    scheduler.submit(request(QUESTIONS[0]), second.sink()).unwrap();
    while !scheduler.is_idle() {
        scheduler.step(&mut experts);
    }
    assert_eq!(second.text(), "83");
}

#[test]
fn requests_that_cannot_begin_are_one_sentence() {
    let (mut scheduler, _) = scheduler(EngineConfig { max_sequences: 1, ..EngineConfig::default() });
    let mut refused =
        |request: Request| scheduler.submit(request, Heard::default().sink()).unwrap_err().to_string();
    let long = Request { prompt_ids: vec![1; 2048], ..Request::default() };
    assert_eq!(
        refused(long),
        "the prompt has 2048 tokens, and the context has room for 2048 with at least one of the answer"
    );
    assert_eq!(refused(Request::default()), "the prompt is empty");
    let prompt = || Request { prompt_ids: vec![1], ..Request::default() };
    assert!(refused(Request { prompt_ids: vec![1024], ..prompt() }).contains("1024"));
    assert!(refused(Request { max_tokens: Some(0), ..prompt() }).contains("max_tokens"));
    assert!(refused(Request { stop: vec![String::new()], ..prompt() }).contains("stop"));
    assert!(refused(Request { stop: vec!["a".to_owned(); 17], ..prompt() }).contains("stop"));
    let sampling = Sampling { top_p: 2.0, ..Sampling::default() };
    assert!(refused(Request { sampling, ..prompt() }).contains("top_p"));

    scheduler.submit(prompt(), Heard::default().sink()).unwrap();
    assert_eq!(scheduler.submit(prompt(), Heard::default().sink()), Err(SubmitError::Busy));
}

#[test]
fn the_thread_serves_and_its_queue_is_bounded() {
    let (model, text) = demo();
    let config = EngineConfig { max_sequences: 1, max_waiting: 1, ..EngineConfig::default() };
    let experts = Box::new(LocalExperts::of_checkpoint(model.clone()));
    let engine = Engine::start(model, text, experts, config).unwrap();

    // A sink that holds the engine's thread until the test lets it go.
    let (reached, is_reached) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let blocks = move |event| {
        if matches!(event, Event::Prompt { .. }) {
            reached.send(()).unwrap();
            released.recv().unwrap();
        }
        ControlFlow::Continue(())
    };
    engine.submit(request(QUESTIONS[0]), Box::new(blocks)).unwrap();
    is_reached.recv_timeout(Duration::from_secs(60)).unwrap();

    let (sender, events) = mpsc::channel();
    let tells = move |event| {
        let _ = sender.send(event);
        ControlFlow::Continue(())
    };
    engine.submit(request(QUESTIONS[1]), Box::new(tells)).unwrap();
    assert_eq!(engine.submit(request(QUESTIONS[1]), Heard::default().sink()), Err(SubmitError::Busy));
    let long = Request { prompt_ids: vec![1; 4096], ..Request::default() };
    assert!(matches!(engine.submit(long, Heard::default().sink()), Err(SubmitError::PromptTooLong { .. })));

    release.send(()).unwrap();
    let finish = loop {
        match events.recv_timeout(Duration::from_secs(60)).unwrap() {
            Event::Finished(finish) => break finish,
            Event::Failed(failure) => panic!("{failure}"),
            Event::Prompt { .. } | Event::Text(_) | Event::Logprobs(_) => {}
        }
    };
    assert_eq!(finish.reason, FinishReason::Stop);
}

/// Turns of conversations that begin alike, in any order, with room for a few of them: the texts are those of an engine that
/// keeps nothing, and only what is new is computed.
#[test]
fn texts_are_the_same_whatever_is_cached() {
    let (mut cached, mut experts) =
        scheduler(EngineConfig { kv_bytes: 24 * page_bytes(), guesses: false, ..EngineConfig::default() });
    let mut begun: Vec<Vec<u32>> = QUESTIONS.map(|question| request(question).prompt_ids).into();
    let mut seed = 7_u64;
    let mut draw = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % n
    };
    let mut n_found = 0;
    for turn in 0..60 {
        let pick = draw(begun.len());
        let begin = &begun[pick];
        let ids: Vec<u32> = begin[..begin.len() - draw(begin.len() / 2)].to_vec();
        let ask = || Request {
            prompt_ids: ids.clone(),
            max_tokens: Some(8),
            ignore_eos: true,
            ..Request::default()
        };
        let rows_before = cached.counts().rows();
        let heard = Heard::default();
        cached.submit(ask(), heard.sink()).unwrap();
        while !cached.is_idle() {
            cached.step(&mut experts);
        }
        let finish = heard.finish();
        let alone = run_all(EngineConfig::default(), vec![ask()]).remove(0);
        assert_eq!(finish.ids, alone.finish().ids, "turn {turn}");
        assert_eq!(heard.text(), alone.text());
        let computed = (cached.counts().rows() - rows_before) as usize;
        assert_eq!(
            computed,
            ids.len() - finish.usage.cached_tokens + 7,
            "prompt and answer, but for the last token"
        );
        n_found += finish.usage.cached_tokens;
        begun.push([ids, finish.ids].concat());
    }
    assert_eq!(cached.counts().cached() as usize, n_found);
    assert!(n_found > 500, "{n_found} tokens found");
}

fn page_bytes() -> usize {
    demo().0.compute().kv_layout(demo().0.spec()).position_bytes() * PAGE_POSITIONS
}

/// Asked at once, a common beginning is computed once.
#[test]
fn chats_with_one_system_prompt_compute_it_once() {
    let system: Vec<u32> = request(QUESTIONS[2]).prompt_ids.iter().copied().cycle().take(200).collect();
    let ask = |n: u32| {
        let prompt_ids = [&system[..], &[n + 5, n + 6, n + 7]].concat();
        Request { prompt_ids, max_tokens: Some(4), ignore_eos: true, ..Request::default() }
    };
    let (mut together, mut experts) = scheduler(EngineConfig::default());
    let heard: Vec<Heard> = (0..16).map(|_| Heard::default()).collect();
    for (n, heard) in heard.iter().enumerate() {
        together.submit(ask(n as u32), heard.sink()).unwrap();
    }
    while !together.is_idle() {
        together.step(&mut experts);
    }
    let found: usize = heard.iter().map(|heard| heard.finish().usage.cached_tokens).sum();
    // Whole pages as soon as they are there, parts of one once their sequence is over.
    assert!((15 * (200 / PAGE_POSITIONS * PAGE_POSITIONS)..=15 * 200).contains(&found), "{found}");
    assert_eq!(together.counts().rows() as usize, 16 * (203 + 3) - found);
    for (n, heard) in heard.iter().enumerate() {
        let alone = run_all(EngineConfig::default(), vec![ask(n as u32)]).remove(0);
        assert_eq!(heard.finish().ids, alone.finish().ids, "chat {n}");
    }
}

/// Experts that are computed elsewhere: a layer's sum is there when it is fetched, not before.
struct Elsewhere {
    experts: LocalExperts,
    sums: Vec<(Ticket, Vec<f32>)>,
    n: u64,
    most_away: usize,
}

impl Experts for Elsewhere {
    fn begin(&mut self, asked: Asked<'_>, _: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        self.n += 1;
        self.sums.push((Ticket(self.n), self.experts.apply(asked.layer, asked.rows, asked.routing)?));
        self.most_away = self.most_away.max(self.sums.len());
        Ok(Some(Ticket(self.n)))
    }

    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        let at = self.sums.iter().position(|(away, _)| *away == ticket).expect("it was asked for");
        sum.copy_from_slice(&self.sums.swap_remove(at).1);
        Ok(())
    }

    fn max_in_flight(&self) -> usize {
        8
    }
}

#[test]
fn texts_are_the_same_however_many_groups_are_under_way() {
    let long: Vec<u32> = QUESTIONS.iter().flat_map(|question| request(question).prompt_ids).collect();
    let requests = || {
        let mut requests: Vec<Request> = QUESTIONS.map(request).into();
        requests.push(Request { prompt_ids: long.clone(), max_tokens: Some(9), ..Request::default() });
        requests
    };
    let alone: Vec<Vec<u32>> = requests().into_iter().map(|request| run_one(request).finish().ids).collect();
    for (in_flight, most) in [(Some(1), 1), (Some(2), 2), (Some(8), 8), (None, 2)] {
        let (mut scheduler, experts) =
            scheduler(EngineConfig { max_rows: 16, in_flight, ..EngineConfig::default() });
        let mut experts = Elsewhere { experts, sums: Vec::new(), n: 0, most_away: 0 };
        let heard: Vec<Heard> = requests().iter().map(|_| Heard::default()).collect();
        for (request, heard) in requests().into_iter().zip(&heard) {
            scheduler.submit(request, heard.sink()).unwrap();
        }
        while !scheduler.is_idle() {
            scheduler.step(&mut experts);
        }
        let ids: Vec<Vec<u32>> = heard.iter().map(|heard| heard.finish().ids).collect();
        assert_eq!(ids, alone, "{in_flight:?} groups");
        assert_eq!(experts.most_away, most, "{in_flight:?} groups");
        assert!(experts.sums.is_empty(), "all were fetched");
    }
}

/// Steps take 40 ms and 1 for each row, as behind a link: guesses are worth their rows.
fn far_away(config: EngineConfig) -> (Scheduler, Arc<AtomicU64>) {
    let (scheduler, _) = scheduler(config);
    let now = Arc::new(AtomicU64::new(0));
    let clock = now.clone();
    (scheduler.with_clock(Box::new(move || Duration::from_millis(clock.load(Ordering::Relaxed)))), now)
}

/// Experts for which time passes.
struct Slow(LocalExperts, Arc<AtomicU64>);

impl Experts for Slow {
    fn begin(&mut self, asked: Asked<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        let n_rows = asked.routing.experts.len() / asked.routing.k;
        self.1.fetch_add(10 + n_rows as u64 / 4, Ordering::Relaxed);
        self.0.begin(asked, sum)
    }
}

#[test]
fn guesses_change_no_text_and_save_steps_where_a_text_repeats_itself() {
    let prompt_ids: Vec<u32> = request(QUESTIONS[1]).prompt_ids;
    let ask = |temperature: f32, prediction_ids: &[u32]| Request {
        prompt_ids: prompt_ids.clone(),
        sampling: Sampling { temperature, seed: 3, ..Sampling::default() },
        prediction_ids: prediction_ids.to_vec(),
        max_tokens: Some(120),
        ignore_eos: true,
        ..Request::default()
    };
    let run = |guesses: bool, request: Request| {
        let (mut scheduler, now) = far_away(EngineConfig { guesses, ..EngineConfig::default() });
        let mut experts = Slow(LocalExperts::of_checkpoint(demo().0), now);
        let heard = Heard::default();
        scheduler.submit(request, heard.sink()).unwrap();
        while !scheduler.is_idle() {
            scheduler.step(&mut experts);
        }
        (heard, scheduler.counts().steps())
    };
    for temperature in [0.0, 0.7] {
        let (plain, steps) = run(false, ask(temperature, &[]));
        assert_eq!((plain.finish().usage.guessed_tokens, steps), (0, 120));
        let (guessed, _) = run(true, ask(temperature, &[]));
        assert_eq!(guessed.finish().ids, plain.finish().ids, "temperature {temperature}");
        assert_eq!(guessed.text(), plain.text());
        // What it will say is known but for one token.
        let mut prediction = plain.finish().ids;
        prediction[60] = 7;
        let (predicted, steps) = run(true, ask(temperature, &prediction));
        assert_eq!(predicted.finish().ids, plain.finish().ids, "temperature {temperature}");
        let usage = predicted.finish().usage;
        assert!(usage.accepted_tokens > 90 && steps < 30, "{usage:?} in {steps} steps");
        assert_eq!(usage.completion_tokens, 120);
    }
}

#[test]
fn each_token_is_told_with_its_probability_and_the_text_is_the_same() {
    let plain = run_one(request(QUESTIONS[1]));
    let told = run_one(Request { top_logprobs: Some(3), ..request(QUESTIONS[1]) });
    assert_eq!(told.text(), plain.text());
    let events = told.0.lock().unwrap();
    let told: Vec<_> =
        events.iter().filter_map(|e| if let Event::Logprobs(l) = e { Some(l) } else { None }).collect();
    assert_eq!(told.iter().map(|l| l.token).collect::<Vec<_>>(), plain.finish().ids);
    for logprobs in told {
        assert_eq!((logprobs.top.len(), logprobs.top[0]), (3, (logprobs.token, logprobs.logprob)), "greedy");
    }
}
