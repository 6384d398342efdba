//! Sends requests back to back, and compares each answer with the hub's own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use tokio::time::Instant;

use crate::chat::{self, Reply};

/// The most failures and differences that are kept for display.
const MAX_SHOWN: usize = 10;

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

/// Asks random cases until it is time to stop, then waits for the running request.
pub(super) async fn run(url: String, cases: Arc<Vec<Case>>, seed: u64, until: Instant) -> Result<Outcome> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let http = chat::client()?;
    let mut outcome = Outcome::default();
    while Instant::now() < until {
        let Case { question, expected } = &cases[random.random_range(0..cases.len())];
        let is_streamed = random.random_range(0..2) == 0;
        let begin = Instant::now();
        let said = match is_streamed {
            true => chat::stream(&http, &url, question, || ()).await,
            false => chat::ask(&http, &url, question).await,
        };
        outcome.n_requests += 1;
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
