//! Sends requests back to back, and compares each answer with the hub's own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use tokio::time::Instant;

use crate::chat::{self, Said};

/// Failures and differences that are kept to be shown.
const MAX_SHOWN: usize = 10;

/// A conversation, and what a hub without workers says.
#[derive(Clone, Debug)]
pub(super) struct Case {
    question: Value,
    expected: Said,
}

/// What became of the requests of a stream, or of all.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Answers that were waited for.
    pub n_requests: usize,
    /// How many did not come whole.
    pub n_failed: usize,
    /// How many said something else than the hub alone.
    pub n_differing: usize,
    /// The first failures and differences, in words.
    pub shown: Vec<String>,
    /// The longest that anyone waited for a whole answer.
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

/// What the hub at `url` says to these, one after the other.
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

/// Asks cases at random until it is time to stop; what is under way then is still waited for.
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
