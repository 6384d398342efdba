//! Holds a conversation's messages and asks the next question.

use std::future::Future;

use serde_json::{Value, json};

use crate::commands::answer_printer::AnswerPrinter;
use crate::commands::hub_client::{Ending, HubClient};

/// How the hub is to answer each question.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Maximum number of tokens in an answer.
    pub(super) max_tokens: Option<u32>,
    /// 0 always takes the most likely token.
    pub(super) temperature: Option<f64>,
    /// Think before answering.
    pub(super) thinking: bool,
}

/// A conversation with one hub.
pub(super) struct Conversation {
    client: HubClient,
    model: String,
    settings: Settings,
    system: Option<String>,
    /// Questions and answers in turn.
    messages: Vec<Value>,
}

/// How a question ended.
pub(super) enum Answered {
    /// The answer is whole.
    Whole(Ending),
    /// The user stopped it; the text so far stays part of the conversation.
    Stopped,
}

impl Conversation {
    /// Starts an empty conversation with the hub's model.
    pub(super) fn new(client: HubClient, model: String, settings: Settings) -> Self {
        Self { client, model, settings, system: None, messages: Vec::new() }
    }

    /// Name of the hub's model.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// Forgets all messages but the system prompt.
    pub(super) fn begin_anew(&mut self) {
        self.messages.clear();
    }

    /// Sets the system prompt; empty for none.
    pub(super) fn instruct(&mut self, system: &str) {
        self.system = Some(system.to_owned()).filter(|system| !system.is_empty());
    }

    /// Forgets the last question and its answer, and returns the question.
    pub(super) fn take_last_question(&mut self) -> Option<String> {
        let last = self.messages.iter().rposition(|message| message["role"] == "user")?;
        let question = self.messages[last]["content"].as_str().map(str::to_owned);
        self.messages.truncate(last);
        question
    }

    /// Asks, prints the answer as it arrives, and keeps both. A question that fails is forgotten.
    ///
    /// # Errors
    /// If the hub refuses or disconnects, or stdout is closed.
    pub(super) async fn ask(
        &mut self,
        question: &str,
        stop: impl Future<Output = ()>,
    ) -> anyhow::Result<Answered> {
        self.messages.push(json!({ "role": "user", "content": question }));
        let mut printer = AnswerPrinter::stdout();
        let asked = tokio::select! {
            asked = self.client.chat(self.request(), |delta| Ok(printer.print(&delta)?)) => asked.map(Answered::Whole),
            () = stop => Ok(Answered::Stopped),
        };
        let content = printer.finish()?;
        match asked {
            Ok(Answered::Stopped) if content.is_empty() => drop(self.messages.pop()),
            Ok(_) => self.messages.push(json!({ "role": "assistant", "content": content })),
            Err(_) => drop(self.messages.pop()),
        }
        asked
    }

    fn request(&self) -> Value {
        let system = self.system.iter().map(|system| json!({ "role": "system", "content": system }));
        json!({
            "model": self.model,
            "messages": system.chain(self.messages.iter().cloned()).collect::<Vec<_>>(),
            "max_tokens": self.settings.max_tokens,
            "temperature": self.settings.temperature,
            "chat_template_kwargs": { "enable_thinking": self.settings.thinking },
        })
    }
}

#[cfg(test)]
mod tests {
    use moex_worker::native::Trust;

    use super::*;

    fn conversation() -> Conversation {
        moex_worker::native::install_crypto();
        let settings = Settings { max_tokens: None, temperature: None, thinking: false };
        let client = HubClient::new("http://127.0.0.1:1", None, &Trust::System).unwrap();
        Conversation::new(client, "m".to_owned(), settings)
    }

    fn roles(conversation: &Conversation) -> Vec<String> {
        let request = conversation.request();
        let messages = request["messages"].as_array().unwrap();
        messages.iter().map(|message| message["role"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_system_message_comes_first_and_outlives_the_conversation() {
        let mut conversation = conversation();
        conversation.messages.push(json!({ "role": "user", "content": "a" }));
        conversation.instruct("be brief");
        assert_eq!(roles(&conversation), ["system", "user"]);
        conversation.begin_anew();
        assert_eq!(roles(&conversation), ["system"]);
        conversation.instruct("");
        assert!(roles(&conversation).is_empty());
    }

    #[test]
    fn the_last_question_is_taken_with_its_answer() {
        let mut conversation = conversation();
        assert_eq!(conversation.take_last_question(), None);
        for (role, content) in [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")] {
            conversation.messages.push(json!({ "role": role, "content": content }));
        }
        assert_eq!(conversation.take_last_question().as_deref(), Some("c"));
        assert_eq!(roles(&conversation), ["user", "assistant"]);
    }

    #[test]
    fn a_question_that_fails_is_forgotten() {
        let mut conversation = conversation();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert!(runtime.block_on(conversation.ask("a", std::future::pending())).is_err());
        assert!(roles(&conversation).is_empty());
    }
}
