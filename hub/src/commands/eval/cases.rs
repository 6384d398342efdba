//! Reads questions with their right answers, and decides whether an answer is right.

use std::{fs, path::Path};

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A conversation up to a question, and its right answer.
#[derive(Debug, Deserialize)]
pub(super) struct Case {
    #[serde(default)]
    pub(super) id: Value,
    #[serde(default)]
    pub(super) task: String,
    pub(super) messages: Vec<Value>,
    pub(super) tools: Option<Vec<Value>>,
    pub(super) enable_thinking: Option<bool>,
    pub(super) answer: String,
}

/// Reads the cases of a file, one JSON object per line.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Case>> {
    let lines = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let parse = |(index, line): (usize, &str)| {
        serde_json::from_str(line).with_context(|| format!("{}, line {}", path.display(), index + 1))
    };
    lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(parse).collect()
}

impl Case {
    /// Variables for the chat template beside the messages.
    pub(super) fn variables(&self) -> Map<String, Value> {
        self.enable_thinking.map(|on| ("enable_thinking".to_owned(), Value::from(on))).into_iter().collect()
    }

    /// Whether `text`, without thinking and surrounding white space, equals `answer`.
    ///
    /// A story has no single right answer: it is right if its first five words ("Once there was a bear") and its last
    /// two ("were friends.") are those of `answer`.
    pub(super) fn is_right(&self, text: &str) -> bool {
        let (said, answer) = (after_thoughts(text), after_thoughts(&self.answer));
        if self.task != "story" {
            return said == answer;
        }
        let said: Vec<_> = said.split_whitespace().collect();
        let answer: Vec<_> = answer.split_whitespace().collect();
        said.len() >= 7
            && said.first_chunk::<5>() == answer.first_chunk()
            && said.last_chunk::<2>() == answer.last_chunk()
    }
}

/// The text after the last `</think>`.
fn after_thoughts(text: &str) -> &str {
    text.rsplit_once("</think>").map_or(text, |(_, rest)| rest).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(task: &str, answer: &str) -> Case {
        let json = serde_json::json!({"id": 3, "task": task, "messages": [], "answer": answer});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn an_answer_is_what_follows_the_thoughts() {
        let sum = case("add", "83");
        assert!(sum.is_right("83") && sum.is_right("<think>\n9 + 4 = 13\n</think>\n\n83\n"));
        assert!(!sum.is_right("<think>\n83") && !sum.is_right("It is 83") && !sum.is_right(""));
    }

    #[test]
    fn a_story_is_right_when_it_is_the_asked_one_to_its_end() {
        let story = case("story", "Once there was a bear named Ada. Ada and Eva were friends.");
        assert!(story.is_right("Once there was a bear named Gus. Gus and Gus were friends."));
        assert!(!story.is_right("Once there was a fox named Gus. Gus and Gus were friends."));
        assert!(!story.is_right("Once there was a bear named Gus. Gus and"));
        assert!(!story.is_right("Once there was a bear"));
    }

    #[test]
    fn a_line_that_is_no_case_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cases.jsonl");
        fs::write(&file, "{\"messages\": [], \"answer\": \"x\"}\n\nnot a case\n").unwrap();
        let error = format!("{:#}", read(&file).unwrap_err());
        assert!(error.contains("cases.jsonl, line 3: expected"), "{error}");
        assert!(read(&folder.path().join("nowhere")).is_err());
    }
}
