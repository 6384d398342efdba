//! The scheduler on the demo model, step by step, and the engine's thread.

use std::{
    ops::ControlFlow,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Map, json};

mod chunks;
mod doubt;
mod early;
mod faults;
mod prompt_logprobs;
mod shared;
mod turns;
mod windows;

use super::*;
use crate::sampler::Sampling;
use moex_model::text::ChatInput;
use moex_model::{
    Checkpoint, ExpertsError, LayerRequest, PAGE_POSITIONS, StepError, Ticket, local_experts::LocalExperts,
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

/// What is kept for later texts is not in use.
#[test]
fn the_cache_is_as_full_as_running_texts_make_it() {
    let (mut scheduler, mut experts) = scheduler(EngineConfig::default());
    let counts = scheduler.counts();
    scheduler.submit(request(QUESTIONS[2]), Heard::default().sink()).unwrap();
    scheduler.step(&mut experts);
    let (first, max_pages) = (counts.kv_usage(), scheduler.kv().max_pages() as f64);
    assert!(first > 0.0 && first <= 2.0 / max_pages, "{first} of {max_pages} pages");
    let mut most = first;
    while !scheduler.is_idle() {
        most = most.max(counts.kv_usage());
        scheduler.step(&mut experts);
    }
    assert!(most > first && most < 1.0);
    assert_eq!((counts.kv_usage(), scheduler.kv().pages_in_tables()), (0.0, 0));
    assert!(scheduler.kv().idle_pages() > 0);
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
    scheduler_of(&demo().0, config)
}

fn scheduler_of(model: &Arc<Model>, config: EngineConfig) -> (Scheduler, LocalExperts) {
    (Scheduler::new(model.clone(), demo().1, config), LocalExperts::of_checkpoint(model.clone()))
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
    run_all_on(&demo().0, config, requests)
}

fn run_all_on(model: &Arc<Model>, config: EngineConfig, requests: Vec<Request>) -> Vec<Heard> {
    let (mut scheduler, mut experts) = scheduler_of(model, config);
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
fn before_its_least_length_no_end_token_and_no_stop_string_ends_a_text() {
    let least = |min_tokens, stop: &[&str]| {
        let stop = stop.iter().map(|stop| (*stop).to_owned()).collect();
        let asked = Request { min_tokens, stop, max_tokens: Some(30), ..request(QUESTIONS[0]) };
        let heard = run_one(asked);
        (heard.finish(), heard.text())
    };
    assert_eq!(least(2, &[]).1, "83", "it is shorter than the answer");
    let (longer, text) = least(20, &[]);
    let end = *demo().1.eos.first().unwrap();
    assert!(longer.usage.completion_tokens >= 20 && text.starts_with("83"), "{longer:?}");
    assert!(longer.ids[..19].iter().all(|id| *id != end));
    assert!(least(20, &["8"]).1.starts_with("83"), "the string came too early");
    assert_eq!(least(0, &["8"]).1, "");
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
    fn begin(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
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
    let (mut scheduler, _) =
        scheduler(EngineConfig { max_sequences: 1, max_waiting: 0, ..EngineConfig::default() });
    let mut refused =
        |request: Request| scheduler.submit(request, Heard::default().sink()).unwrap_err().to_string();
    let long = Request { prompt_ids: vec![1; 2048], ..Request::default() };
    assert_eq!(
        refused(long),
        "the prompt has 2048 tokens; the context holds 2048, including at least one of the answer"
    );
    assert_eq!(refused(Request::default()), "the prompt is empty");
    let prompt = || Request { prompt_ids: vec![1], ..Request::default() };
    assert!(refused(Request { prompt_ids: vec![1024], ..prompt() }).contains("1024"));
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
    let (reached, is_reached) = channel();
    let (release, released) = channel::<()>();
    let blocks = move |event| {
        if matches!(event, Event::Prompt { .. }) {
            reached.send(()).unwrap();
            released.recv().unwrap();
        }
        ControlFlow::Continue(())
    };
    engine.submit(request(QUESTIONS[0]), Box::new(blocks)).unwrap();
    is_reached.recv_timeout(Duration::from_secs(60)).unwrap();

    let (sender, events) = channel();
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
            Event::Prompt { .. } | Event::PromptLogprobs(_) | Event::Text(_) | Event::Logprobs(_) => {}
        }
    };
    assert_eq!(finish.reason, FinishReason::Stop);
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
