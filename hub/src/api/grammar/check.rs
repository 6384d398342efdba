//! Compiles grammars within bounds. Nobody can foresee what a schema takes: four kilobytes of definitions that refer to each
//! other twice take gigabytes, and a chain of four hundred overflows a thread's stack.
//!
//! So another process compiles it first, `moex check-grammar`, which ends without harm if it takes too much. What it has
//! compiled is compiled here with the same stack, and as much memory as the vocabulary adds: a thread that stopped for lack of it
//! would keep what it holds, each time that a stranger wishes.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use moex_model::budget::{Stopped, within};

use super::{factory_of, one_line};

/// Bytes that the process may hold.
const MAX_BYTES: usize = 64 << 20;
/// More than there are: they are counted, and what compiled there is bounded.
const ANY_BYTES: usize = usize::MAX / 2;
/// How long it may take; a schema of hundreds of fields takes some ten milliseconds.
const MAX_TIME: Duration = Duration::from_secs(2);
/// How often the process is looked after.
const LOOKED_AFTER_EVERY: Duration = Duration::from_millis(1);

/// Compiles a grammar without a model's vocabulary, and returns how many bytes that takes. The error is a reason.
pub fn check(lark: String) -> Result<usize, String> {
    // Single bytes alone: what a vocabulary adds to a grammar has bounds of its own.
    let words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).chain([vec![]]).collect();
    compiled_within(MAX_BYTES, &Arc::new(factory_of(&words, &[256])?), lark).map(|(_, n_bytes)| n_bytes)
}

/// Compiles a grammar, which was checked, and returns how many bytes that takes. The error is a reason.
pub(super) fn compiled(factory: &Arc<ParserFactory>, lark: String) -> Result<(Matcher, usize), String> {
    compiled_within(ANY_BYTES, factory, lark)
}

fn compiled_within(
    bytes: usize,
    factory: &Arc<ParserFactory>,
    lark: String,
) -> Result<(Matcher, usize), String> {
    let factory = factory.clone();
    let begin = move || {
        let mut matcher = Matcher::new(factory.create_parser(TopLevelGrammar::from_lark(lark)));
        // Finds errors that only show at the first step, and fills the state that all sequences share.
        let first = matcher.compute_mask();
        match matcher.get_error().or(first.err().map(|error| error.to_string())) {
            Some(why) => Err(one_line(&why)),
            None => Ok(matcher),
        }
    };
    match within(bytes, begin) {
        Ok((matcher, n_bytes)) => Ok((matcher?, n_bytes)),
        Err(Stopped::OverBudget) => Err(too_large()),
        Err(Stopped::Failed) => Err("no thread is left for it".to_owned()),
    }
}

/// Checks a grammar in a process of its own; `program` is the `moex` binary. The error is a reason.
pub(super) fn checked(program: &Path, lark: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("it cannot be checked, {error}");
    let mut process = Process(
        Command::new(program)
            .arg("check-grammar")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?,
    );
    let stdin = process.0.stdin.take();
    let status = thread::scope(|scope| {
        // What ends, or is killed, before it has read everything is judged by its status.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(lark.as_bytes())));
        let status = process.ended_within(MAX_TIME);
        if !matches!(status, Ok(Some(_))) {
            // Otherwise the writing would not end.
            let _ = process.0.kill();
        }
        status
    });
    let Some(status) = status.map_err(failed)? else { return Err(too_large()) };
    let mut said = String::new();
    if let Some(stdout) = &mut process.0.stdout {
        stdout.read_to_string(&mut said).map_err(failed)?;
    }
    match status.code() {
        Some(0) => Ok(()),
        Some(_) if !said.is_empty() => Err(said.trim_end().to_owned()),
        _ => Err(too_large()),
    }
}

fn too_large() -> String {
    "it is too large, refers to itself too often, or is nested too deeply".to_owned()
}

/// Killed, if it has not ended, when it is dropped.
struct Process(Child);

impl Process {
    /// Its status, or none if it takes longer.
    fn ended_within(&mut self, time: Duration) -> io::Result<Option<ExitStatus>> {
        let begun = Instant::now();
        while begun.elapsed() < time {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            sleep(LOOKED_AFTER_EVERY);
        }
        Ok(None)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Definitions of which each refers to the next.
    fn chain(n: usize) -> String {
        let next =
            |i: usize| json!({"type": "object", "properties": {"a": {"$ref": format!("#/$defs/d{i}")}}});
        let mut definitions: serde_json::Map<String, Value> =
            (1..=n).map(|i| (format!("d{i}"), next(i - 1))).collect();
        definitions.insert("d0".to_owned(), json!({"type": "string"}));
        let schema = json!({"$defs": definitions, "$ref": format!("#/$defs/d{n}")});
        format!("start: %json {schema}\n")
    }

    #[test]
    fn a_chain_of_definitions_is_compiled_or_refused() {
        let n_bytes: usize = check(chain(40)).unwrap();
        // Counted by the allocator of the binary alone.
        assert_eq!(n_bytes, 0);
        #[cfg(target_os = "linux")]
        assert_eq!(check(chain(20_000)).unwrap_err(), too_large());
        assert!(check("start: %json {\"type\": \"nothing\"}\n".to_owned()).is_err());
    }

    #[test]
    fn a_program_that_does_not_answer_is_an_error() {
        let reason = checked(Path::new("/no/such/program"), "start: \"a\"\n").unwrap_err();
        assert!(reason.starts_with("it cannot be checked, "), "{reason}");
        #[cfg(unix)]
        assert_eq!(checked(Path::new("/usr/bin/false"), &"x".repeat(1 << 20)).unwrap_err(), too_large());
        // Nor one that reads nothing and does not end: `yes check-grammar`.
        #[cfg(unix)]
        assert_eq!(checked(Path::new("/usr/bin/yes"), &"x".repeat(1 << 20)).unwrap_err(), too_large());
    }
}
