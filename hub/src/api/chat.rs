//! `POST /v1/chat/completions`: runs a request and returns the answer, whole or streamed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::State;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use moex_engine::sampler::{Sampling, TokenLogprobs};
use moex_engine::{Finish, Request};
use moex_model::text::Detokenizer;
use serde_json::Value;
use tokio::time::timeout;

use super::error::ApiError;
use super::generate::{Generation, Next, random, seed_of};
use super::headers::with_ignored;
use super::logprobs;
use super::output::{OutputParser, Piece};
use super::prompts::Room;
use super::render;
use super::reply::{Answer, FinishReason, Header, Timings, Usage};
use super::request::ChatRequest;
use super::state::{Api, unix_seconds};

/// How long a stream waits for its first part, so that an early failure can still set the HTTP status; after that the
/// stream begins and sends keep-alives.
pub(super) const FIRST_PART_WAIT: Duration = Duration::from_secs(5);

/// The handler.
pub(super) async fn complete(
    State(api): State<Arc<Api>>,
    request: axum::extract::Request,
) -> Result<Response, ApiError> {
    let (request, room) = api.prompts.read(request, ChatRequest::parse).await?;
    let (stream, include_usage) = (request.stream, request.include_usage);
    let ignored = request.ignored.clone();
    let chat = Chat::start(api, request, room).await?;
    let response = if stream {
        chat.stream(include_usage).await?.into_response()
    } else {
        chat.whole().await?.into_response()
    };
    Ok(with_ignored(response, &ignored))
}

/// An answer being generated, with one or several choices. Dropping it, as when the client disconnects, ends it in the
/// engine too.
pub(super) struct Chat {
    pub(super) header: Header,
    /// Tokens of the prompt.
    pub(super) n_prompt: usize,
    api: Arc<Api>,
    generation: Generation,
    choices: Vec<Choice>,
    ends_in_think: bool,
    reads_calls: bool,
    tells_logprobs: bool,
}

/// One choice.
struct Choice {
    output: OutputParser,
    /// Sent with the next part.
    logprobs: Vec<TokenLogprobs>,
    has_reasoned: bool,
}

/// Part of a choice.
pub(super) struct Part {
    pub(super) index: usize,
    pub(super) pieces: Vec<Piece>,
    /// Log probabilities of the tokens since the last part; null if not requested.
    logprobs: Vec<TokenLogprobs>,
    /// How the choice ended; set in its last part.
    pub(super) end: Option<End>,
}

/// How a choice ended.
pub(super) struct End {
    pub(super) finish: Finish,
    pub(super) usage: Usage,
}

impl Chat {
    /// Submits one sequence per choice to the engine.
    pub(super) async fn start(api: Arc<Api>, request: ChatRequest, room: Room) -> Result<Self, ApiError> {
        api.check_model(request.model.as_deref())?;
        api.check_coverage().await?;
        let id = random()?;
        let header = Header {
            id: format!("chatcmpl-{id:016x}"),
            created: unix_seconds(SystemTime::now()),
            model: api.model().to_owned(),
            fingerprint: api.fingerprint().to_owned(),
        };
        let seed = match request.seed {
            Some(seed) => seed,
            None => random()?,
        };
        let reads_calls = !request.tools.is_empty();
        let (request, prompt) = render::prompt(&api, request, &room).await?;
        let client = room.client;
        drop(room);
        let n_prompt = prompt.ids.len();
        let asked = Request {
            client,
            prompt_ids: prompt.ids,
            prediction_ids: prompt.prediction_ids,
            sampling: Sampling { logit_bias: request.logit_bias, ..api.sampling(&request.sampling, seed) },
            stop: request.stop,
            ignore_eos: request.ignore_eos,
            min_tokens: request.min_tokens,
            max_tokens: request.max_tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX)),
            top_logprobs: request.logprobs,
            prompt_logprobs: None,
            grammar: prompt.grammar,
        };
        let texts = (0..request.n).map(|index| {
            let sampling = Sampling { seed: seed_of(seed, index), ..asked.sampling.clone() };
            Request { sampling, ..asked.clone() }
        });
        let generation = Generation::start(&api, texts.collect(), request.stream, "messages")?;
        let (format, ends_in_think) = (api.text.output, prompt.ends_in_think);
        let choice = || Choice {
            output: OutputParser::new(format, ends_in_think, reads_calls),
            logprobs: Vec::new(),
            has_reasoned: false,
        };
        let choices = (0..request.n).map(|_| choice()).collect();
        let tells_logprobs = request.logprobs.is_some();
        Ok(Self { header, n_prompt, api, generation, choices, ends_in_think, reads_calls, tells_logprobs })
    }

    /// Waits until all choices are complete.
    pub(super) async fn answers(&mut self) -> Result<(Vec<Answer>, Vec<End>), ApiError> {
        let mut answers = vec![Answer::default(); self.choices.len()];
        let mut ends: Vec<Option<End>> = self.choices.iter().map(|_| None).collect();
        while ends.iter().any(Option::is_none) {
            let part = self.next().await?;
            part.pieces.into_iter().for_each(|piece| answers[part.index].add(piece));
            answers[part.index].logprobs.extend(part.logprobs);
            if let Some(end) = part.end {
                ends[part.index] = Some(end);
            }
        }
        Ok((answers, ends.into_iter().flatten().collect()))
    }

    async fn whole(mut self) -> Result<Json<Value>, ApiError> {
        let (answers, ends) = self.answers().await?;
        let usage = Usage::sum(ends.iter().map(|end| end.usage));
        let choices = answers.iter().zip(&ends).enumerate().map(|(index, (answer, end))| {
            let reason = FinishReason::of(end.finish.reason, answer.has_calls());
            self.header.choice(index, answer, self.logprobs(&answer.logprobs), reason)
        });
        let mut body = self.header.completion(choices.collect(), usage);
        if let [end] = ends.as_slice() {
            body["timings"] = timings(end);
        }
        Ok(Json(body))
    }

    /// Streams the answer as server-sent events.
    async fn stream(mut self, include_usage: bool) -> Result<impl IntoResponse, ApiError> {
        let next = match timeout(FIRST_PART_WAIT, self.next()).await {
            Ok(first) => Some(first?),
            Err(_) => None,
        };
        let n = self.choices.len();
        let begin = (0..n).map(|index| self.header.first_chunk(index)).collect();
        let state = Streaming { chat: self, n_calls: vec![0; n], ends: Vec::new(), include_usage, next };
        let chunks = stream::unfold(Some((state, begin)), |step| async move {
            let (mut state, mut chunks): (Streaming, Vec<Value>) = step?;
            let next = match state.next.take() {
                Some(first) => Ok(first),
                None => state.chat.next().await,
            };
            let last = match next {
                Ok(part) => state.chunks(part, &mut chunks),
                Err(error) => {
                    chunks.push(error.body());
                    true
                }
            };
            Some((chunks, (!last).then(|| (state, Vec::new()))))
        });
        Ok(Sse::new(events(chunks)).keep_alive(KeepAlive::default()))
    }

    /// Returns the next part of the answer. Prefill progress is not a part.
    pub(super) async fn next(&mut self) -> Result<Part, ApiError> {
        loop {
            let (index, next) = self.generation.next().await?;
            let choice = &mut self.choices[index];
            let (pieces, finish) = match next {
                // Only tokens of the content are reported.
                Next::Logprobs(told) if self.generation.is_end(told.token) => continue,
                Next::Logprobs(told) => {
                    choice.logprobs.push(told);
                    continue;
                }
                Next::Text(text) => (choice.output.push(&text), None),
                Next::Finished(finish) => (choice.output.finish(), Some(finish)),
            };
            choice.has_reasoned |= pieces.iter().any(|piece| matches!(piece, Piece::Reasoning(_)));
            if pieces.is_empty() && finish.is_none() {
                continue;
            }
            let logprobs = std::mem::take(&mut choice.logprobs);
            let has_reasoned = choice.has_reasoned;
            let end = finish.map(|finish| End {
                usage: Usage::of(
                    finish.usage,
                    if has_reasoned { self.reasoning_tokens(&finish.ids) } else { 0 },
                ),
                finish,
            });
            return Ok(Part { index, pieces, logprobs, end });
        }
    }

    /// Number of thinking tokens: those up to the last that produced a piece of thinking.
    fn reasoning_tokens(&self, ids: &[u32]) -> usize {
        let mut output = OutputParser::new(self.api.text.output, self.ends_in_think, self.reads_calls);
        let mut detokenizer = Detokenizer::new(self.api.text.output.special());
        let is_reasoning =
            |pieces: Vec<Piece>| pieces.iter().any(|piece| matches!(piece, Piece::Reasoning(_)));
        let mut last = 0;
        for (i, id) in ids.iter().enumerate() {
            if is_reasoning(output.push(&detokenizer.push(&self.api.text.tokenizer, *id))) {
                last = i + 1;
            }
        }
        if is_reasoning(output.finish()) { ids.len() } else { last }
    }

    fn logprobs(&self, told: &[TokenLogprobs]) -> Value {
        match self.tells_logprobs {
            true => logprobs::of_chat(&self.api.text.tokenizer, told),
            false => Value::Null,
        }
    }
}

/// An answer being sent as chunks.
struct Streaming {
    chat: Chat,
    /// Number of tool calls in each choice.
    n_calls: Vec<usize>,
    ends: Vec<End>,
    include_usage: bool,
    /// The part that arrived before the response began.
    next: Option<Part>,
}

impl Streaming {
    /// Adds the chunks of a part; returns true after the last.
    fn chunks(&mut self, part: Part, chunks: &mut Vec<Value>) -> bool {
        let Part { index, pieces, logprobs, end } = part;
        let header = &self.chat.header;
        // Only the first chunk of a part carries its log probabilities.
        let mut told = (!logprobs.is_empty()).then(|| self.chat.logprobs(&logprobs));
        let n_calls = &mut self.n_calls[index];
        for piece in pieces {
            let told = told.take().unwrap_or_default();
            chunks.push(header.piece_chunk(index, &piece, *n_calls, told));
            *n_calls += usize::from(matches!(piece, Piece::Call(_)));
        }
        let Some(end) = end else { return false };
        let reason = FinishReason::of(end.finish.reason, *n_calls > 0);
        chunks.push(header.last_chunk(index, reason, told.unwrap_or_default()));
        self.ends.push(end);
        if self.ends.len() < self.n_calls.len() {
            return false;
        }
        if self.include_usage {
            chunks.push(header.usage_chunk(Usage::sum(self.ends.iter().map(|end| end.usage))));
        }
        if let (Some(last), [end]) = (chunks.last_mut(), self.ends.as_slice()) {
            last["timings"] = timings(end);
        }
        true
    }
}

/// Sends the chunks as events, then OpenAI's `[DONE]`.
pub(super) fn events(
    chunks: impl Stream<Item = Vec<Value>>,
) -> impl Stream<Item = Result<SseEvent, Infallible>> {
    use futures_util::StreamExt;
    chunks
        .flat_map(stream::iter)
        .map(|chunk| SseEvent::default().data(chunk.to_string()))
        .chain(stream::once(async { SseEvent::default().data("[DONE]") }))
        .map(Ok)
}

fn timings(end: &End) -> Value {
    let timings = end.finish.timings;
    Timings { usage: end.usage, prompt: timings.prompt, generation: timings.generation }.json()
}
