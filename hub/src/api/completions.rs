//! `POST /v1/completions`: continues prompts without a chat template.

mod request;

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::extract::State;
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use moex_engine::Request;
use moex_engine::sampler::Sampling;
use moex_model::text::Special;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::chat::{FIRST_PART_WAIT, events};
use super::error::ApiError;
use super::generate::{Generation, Next, random, seed_of};
use super::headers::with_ignored;
use super::logprobs::{self, CompletionLogprobs};
use super::prompts::{Room, check_length};
use super::reply::{FinishReason, Header, Usage};
use super::state::{Api, unix_seconds};
pub(super) use request::CompletionRequest;
use request::Prompt;

/// Maximum log probabilities of prompts in one answer: each takes some hundred bytes while the answer is built.
const MAX_TOLD: usize = 1 << 19;

/// The handler.
pub(super) async fn complete(
    State(api): State<Arc<Api>>,
    request: axum::extract::Request,
) -> Result<Response, ApiError> {
    let (request, room) = api.prompts.read(request, CompletionRequest::parse).await?;
    let (stream, include_usage) = (request.stream, request.include_usage);
    let ignored = request.ignored.clone();
    let completion = Completion::start(api, request, room).await?;
    let response = if stream {
        completion.stream(include_usage).await?.into_response()
    } else {
        Json(completion.whole().await?).into_response()
    };
    Ok(with_ignored(response, &ignored))
}

/// A request's completions being generated.
struct Completion {
    header: Header,
    api: Arc<Api>,
    generation: Generation,
    texts: Vec<Text>,
    tells_logprobs: bool,
}

/// One completion.
struct Text {
    /// Text sent before it: the prompt with `echo`.
    echo: String,
    /// Log probabilities sent with the next part.
    logprobs: CompletionLogprobs,
    /// Number of characters before the next token.
    offset: usize,
    /// Whether usage counts the prompt here: only for the first completion of each prompt.
    counts_prompt: bool,
    end: Option<End>,
}

/// How a completion ended.
#[derive(Clone, Copy)]
struct End {
    reason: FinishReason,
    usage: Usage,
}

/// Part of a completion.
struct Part {
    index: usize,
    text: String,
    logprobs: Value,
    end: Option<End>,
}

impl Completion {
    async fn start(api: Arc<Api>, request: CompletionRequest, room: Room) -> Result<Self, ApiError> {
        api.check_model(request.model.as_deref())?;
        api.check_coverage().await?;
        let id = random()?;
        let header = Header {
            id: format!("cmpl-{id:016x}"),
            created: unix_seconds(SystemTime::now()),
            model: api.model().to_owned(),
            fingerprint: api.fingerprint().to_owned(),
        };
        let seed = match request.seed {
            Some(seed) => seed,
            None => random()?,
        };
        let (request, prompts) = tokenize(&api, request, &room).await?;
        let client = room.client;
        drop(room);
        let tells_prompts = request.echo && request.logprobs.is_some();
        if tells_prompts {
            check_told(&prompts, &request)?;
        }
        let mut asked = Vec::new();
        let mut texts = Vec::new();
        for (ids, echo) in prompts {
            for index in 0..request.n {
                let sampling = api.sampling(&request.sampling, seed_of(seed, index));
                texts.push(Text {
                    echo: echo.clone(),
                    logprobs: CompletionLogprobs {
                        first: ids.first().copied().filter(|_| tells_prompts),
                        tokens: Vec::new(),
                    },
                    offset: 0,
                    counts_prompt: index == 0,
                    end: None,
                });
                asked.push(Request {
                    client,
                    prompt_ids: ids.clone(),
                    sampling: Sampling { logit_bias: request.logit_bias.clone(), ..sampling },
                    stop: request.stop.clone(),
                    ignore_eos: request.ignore_eos,
                    min_tokens: request.min_tokens,
                    max_tokens: Some(request.max_tokens),
                    top_logprobs: request.logprobs,
                    prompt_logprobs: request.logprobs.filter(|_| tells_prompts),
                    grammar: None,
                    prediction_ids: Vec::new(),
                });
            }
        }
        let generation = Generation::start(&api, asked, request.stream, "prompt")?;
        Ok(Self { header, api, generation, texts, tells_logprobs: request.logprobs.is_some() })
    }

    async fn whole(mut self) -> Result<Value, ApiError> {
        let mut said: Vec<(String, Vec<Value>)> = vec![Default::default(); self.texts.len()];
        while !self.is_complete() {
            let part = self.next().await?;
            let (text, logprobs) = &mut said[part.index];
            text.push_str(&part.text);
            if !part.logprobs.is_null() {
                logprobs.push(part.logprobs);
            }
        }
        let choices = said.into_iter().zip(&self.texts).enumerate().map(|(index, ((text, told), of))| {
            let logprobs = if self.tells_logprobs { joined(&told) } else { Value::Null };
            let reason = of.end.map(|end| end.reason.name());
            json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason })
        });
        let choices: Vec<Value> = choices.collect();
        Ok(self.header.body("text_completion", json!({ "choices": choices, "usage": self.usage().json() })))
    }

    async fn stream(mut self, include_usage: bool) -> Result<impl IntoResponse, ApiError> {
        let first = match timeout(FIRST_PART_WAIT, self.next()).await {
            Ok(first) => Some(first?),
            Err(_) => None,
        };
        let chunks = stream::unfold(Some((self, first)), move |step| async move {
            let (mut this, first) = step?;
            let next = match first {
                Some(first) => Ok(first),
                None => this.next().await,
            };
            let (mut chunks, mut last) = (Vec::new(), this.is_complete());
            match next {
                Ok(part) => chunks.push(this.chunk(part)),
                Err(error) => {
                    chunks.push(error.body());
                    return Some((chunks, None));
                }
            }
            last |= this.is_complete();
            if last && include_usage {
                let usage = json!({ "choices": [], "usage": this.usage().json() });
                chunks.push(this.header.body("text_completion", usage));
            }
            Some((chunks, (!last).then_some((this, None))))
        });
        Ok(Sse::new(events(chunks)).keep_alive(KeepAlive::default()))
    }

    fn chunk(&self, part: Part) -> Value {
        let Part { index, text, logprobs, end } = part;
        let reason = end.map(|end| end.reason.name());
        let choice = json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason });
        self.header.body("text_completion", json!({ "choices": [choice] }))
    }

    async fn next(&mut self) -> Result<Part, ApiError> {
        loop {
            let (index, next) = self.generation.next().await?;
            let of = &mut self.texts[index];
            let (text, end) = match next {
                // Includes the token that ends the text, as OpenAI and vLLM do: clients that sum up prompts expect it.
                Next::Logprobs(told) => {
                    of.logprobs.tokens.push(told);
                    continue;
                }
                Next::Text(text) => (text, None),
                Next::Finished(finish) => {
                    let usage = Usage::of(finish.usage, 0);
                    let usage = if of.counts_prompt { usage } else { usage.of_answer() };
                    (String::new(), Some(End { reason: FinishReason::of(finish.reason, false), usage }))
                }
            };
            of.end = end;
            let told = std::mem::take(&mut of.logprobs);
            let logprobs = match told.tokens.is_empty() && told.first.is_none() {
                true => Value::Null,
                false => logprobs::of_completion(&self.api.text.tokenizer, &told, &mut of.offset),
            };
            return Ok(Part { index, text: std::mem::take(&mut of.echo) + &text, logprobs, end });
        }
    }

    fn is_complete(&self) -> bool {
        self.texts.iter().all(|text| text.end.is_some())
    }

    fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        for end in self.texts.iter().filter_map(|text| text.end) {
            sum.prompt_tokens += end.usage.prompt_tokens;
            sum.completion_tokens += end.usage.completion_tokens;
        }
        sum
    }
}

/// Joins parts of a completion's log probabilities: every field is a list.
fn joined(parts: &[Value]) -> Value {
    let list = |field: &str| -> Value {
        parts.iter().flat_map(|part| part[field].as_array().into_iter().flatten()).cloned().collect()
    };
    json!({
        "tokens": list("tokens"), "token_logprobs": list("token_logprobs"),
        "top_logprobs": list("top_logprobs"), "text_offset": list("text_offset"),
    })
}

/// Refuses requests for more log probabilities of prompts than an answer may hold.
fn check_told(prompts: &Tokenized, request: &CompletionRequest) -> Result<(), ApiError> {
    let n_tokens: usize = prompts.iter().map(|(ids, _)| ids.len()).sum();
    let n = n_tokens * request.n * (1 + usize::from(request.logprobs.unwrap_or_default()));
    match n <= MAX_TOLD {
        true => Ok(()),
        false => Err(ApiError::invalid(
            "logprobs",
            format!(
                "\"logprobs\" with \"echo\" asks for {n} log probabilities of prompts, and an answer has room for \
                 {MAX_TOLD}: send fewer prompts at a time, or a smaller \"logprobs\"."
            ),
        )),
    }
}

type Tokenized = Vec<(Vec<u32>, String)>;

/// Tokenises the prompts once it is this request's turn; also returns the request, and the text to echo.
async fn tokenize(
    api: &Arc<Api>,
    request: CompletionRequest,
    room: &Room,
) -> Result<(CompletionRequest, Tokenized), ApiError> {
    let own = api.clone();
    let work = move || {
        let tokenizer = &own.text.tokenizer;
        let one = |prompt: &Prompt| {
            let (ids, text) = match prompt {
                Prompt::Ids(ids) => (ids.clone(), tokenizer.decode(ids, Special::Keep)),
                Prompt::Text(text) => {
                    check_length(text.len(), own.context_tokens()).map_err(|error| error.about("prompt"))?;
                    let ids = tokenizer.encode_plain(text);
                    (ids.map_err(|error| ApiError::invalid("prompt", format!("{error}.")))?, text.clone())
                }
            };
            Ok((ids, if request.echo { text } else { String::new() }))
        };
        let prompts = request.prompts.iter().map(one).collect::<Result<_, ApiError>>()?;
        Ok((request, prompts))
    };
    api.prompts.work(room, work).await
}
