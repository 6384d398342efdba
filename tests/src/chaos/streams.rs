//! Sends requests back to back, and compares each answer with that of a hub without workers: cases, whose prompts are soon cached,
//! and long prompts that nobody has asked before, of which workers compute hundreds of rows at a time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::chat::{self, Reply};

/// The most failures and differences that are kept for display.
const MAX_SHOWN: usize = 10;

/// One of so many requests has a new prompt, of as many cases' questions at most.
const NEW_EVERY: usize = 4;
const MAX_QUESTIONS: usize = 80;

/// A conversation, and the answer of a hub without workers.
#[derive(Clone, Debug)]
pub(super) struct Case {
    question: Value,
    expected: Reply,
}

/// The results of the requests of one stream, or of all.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Requests that were sent.
    pub n_requests: usize,
    /// Those of them whose prompt was long and new.
    pub n_new: usize,
    /// Requests whose answer was not complete.
    pub n_failed: usize,
    /// Requests whose answer differed from the hub's own.
    pub n_differing: usize,
    /// Descriptions of the first failures and differences.
    pub shown: Vec<String>,
    /// The longest wait for a complete answer.
    pub longest: Duration,
}

impl Outcome {
    pub(super) fn add(&mut self, other: Self) {
        self.n_requests += other.n_requests;
        self.n_new += other.n_new;
        self.n_failed += other.n_failed;
        self.n_differing += other.n_differing;
        self.longest = self.longest.max(other.longest);
        self.shown.extend(other.shown);
        self.shown.truncate(MAX_SHOWN);
    }

    fn show(&mut self, what: String) {
        if self.shown.len() < MAX_SHOWN {
            self.shown.push(what);
        }
    }
}

/// The answers of the hub at `url` to these questions, asked one after another.
pub(super) async fn alone(url: &str, questions: &[Value]) -> Result<Vec<Case>> {
    let http = chat::client()?;
    let mut cases = Vec::new();
    for question in questions {
        let expected =
            chat::ask(&http, url, question).await.with_context(|| format!("case {}", question["id"]))?;
        cases.push(Case { question: question.clone(), expected });
    }
    Ok(cases)
}

/// Asks random cases until it is time to stop, then waits for the running request. With the address of a hub without workers also
/// new prompts, whose answers are compared with its own.
pub(super) async fn run(
    url: String,
    alone: Option<String>,
    cases: Arc<Vec<Case>>,
    seed: u64,
    until: Instant,
) -> Result<Outcome> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let http = chat::client()?;
    let mut outcome = Outcome::default();
    while Instant::now() < until {
        let new = match alone.as_deref().filter(|_| random.random_range(0..NEW_EVERY) == 0) {
            Some(url) => self::alone(url, &[new_question(&cases, &mut random)]).await?.pop(),
            None => None,
        };
        let Case { question, expected } = new.as_ref().unwrap_or(&cases[random.random_range(0..cases.len())]);
        let is_streamed = random.random_range(0..2) == 0;
        let begin = Instant::now();
        let said = match is_streamed {
            true => chat::stream(&http, &url, question, || ()).await,
            false => chat::ask(&http, &url, question).await,
        };
        outcome.n_requests += 1;
        outcome.n_new += usize::from(new.is_some());
        outcome.longest = outcome.longest.max(begin.elapsed());
        let case = &question["id"];
        match said {
            Err(error) => {
                outcome.n_failed += 1;
                outcome.show(format!("case {case} failed: {error:#}"));
            }
            Ok(said) if said != *expected => {
                outcome.n_differing += 1;
                outcome.show(format!("case {case} differs: {said:?} instead of {expected:?}"));
            }
            Ok(_) => {}
        }
    }
    Ok(outcome)
}

/// A prompt of many cases' questions in a new order.
fn new_question(cases: &[Case], random: &mut Xoshiro256PlusPlus) -> Value {
    let n = random.random_range(MAX_QUESTIONS / 4..MAX_QUESTIONS);
    let id = random.random_range(0..u64::MAX);
    let mut content = format!("{id}.");
    for _ in 0..n {
        let Case { question, .. } = &cases[random.random_range(0..cases.len())];
        content.extend([" ", question["messages"][0]["content"].as_str().unwrap_or_default()]);
    }
    json!({"id": id, "messages": [{"role": "user", "content": content}], "max_tokens": 16,
        "enable_thinking": false})
}
