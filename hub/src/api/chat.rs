//! `POST /v1/chat/completions`: a request in, an answer out, whole or as it is written.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::State;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::error::ApiError;
use super::output::{OutputParser, Piece};
use super::prompts::{Room, check_length};
use super::reply::{Answer, FinishReason, Header, Timings, Usage};
use super::request::ChatRequest;
use super::state::{Api, unix_seconds};
use moex_engine::sampler::Sampling;
use moex_engine::{Event, Failure, Request, SubmitError};
use moex_model::text::{ChatInput, TextError};
use moex_model::{ExpertsError, StepError, SwarmFailure};
use moex_swarm::Readiness;

/// How long a stream may wait for its first part, to learn of a failure while that can still be the response's status;
/// after that it begins, and keep-alives are sent.
const FIRST_PART_WAIT: Duration = Duration::from_secs(5);

/// The handler.
pub(super) async fn complete(
    State(api): State<Arc<Api>>,
    request: axum::extract::Request,
) -> Result<Response, ApiError> {
    let (body, room) = api.prompts.read(request).await?;
    let request = ChatRequest::parse(&body)?;
    drop(body);
    api.check_model(request.model.as_deref())?;
    check_coverage(&api).await?;
    let (stream, include_usage) = (request.stream, request.include_usage);
    let running = Running::start(api, request, room).await?;
    if stream {
        Ok(running.stream(include_usage).await?.into_response())
    } else {
        Ok(running.whole().await?.into_response())
    }
}

/// An answer being written. Dropping it, as happens when its client goes away, ends it in the engine too.
struct Running {
    header: Header,
    events: mpsc::Receiver<Event>,
    output: OutputParser,
}

impl Running {
    async fn start(api: Arc<Api>, request: ChatRequest, room: Room) -> Result<Self, ApiError> {
        let id = random()?;
        let header = Header {
            id: format!("chatcmpl-{id:016x}"),
            created: unix_seconds(SystemTime::now()),
            model: api.model().to_owned(),
        };
        let seed = match request.seed {
            Some(seed) => seed,
            None => random()?,
        };
        let reads_calls = !request.tools.is_empty();
        let (api, request, prompt) = tokenize(api, request).await?;
        drop(room);
        let asked = Request {
            prompt_ids: prompt.ids,
            sampling: Sampling { logit_bias: request.logit_bias, ..api.sampling(&request.sampling, seed) },
            stop: request.stop,
            ignore_eos: request.ignore_eos,
            max_tokens: request.max_tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX)),
        };
        // No request has more events than this: one for each token in and out, and its end.
        let (sender, events) = mpsc::channel(2 * api.context_tokens() + 1);
        let sink = move |event| match sender.try_send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        };
        let format = api.text.output;
        api.engine.submit(asked, Box::new(sink)).map_err(refused)?;
        Ok(Self { header, events, output: OutputParser::new(format, prompt.ends_in_think, reads_calls) })
    }

    async fn whole(mut self) -> Result<Json<Value>, ApiError> {
        let mut answer = Answer::default();
        loop {
            match self.next().await? {
                Part::Pieces(pieces) => pieces.into_iter().for_each(|piece| answer.add(piece)),
                Part::End(pieces, finish) => {
                    pieces.into_iter().for_each(|piece| answer.add(piece));
                    let reason = finish_reason(finish.reason, answer.has_calls());
                    let mut body = self.header.completion(&answer, reason, usage(&finish));
                    body["timings"] = timings(&finish);
                    return Ok(Json(body));
                }
            }
        }
    }

    /// Server-sent events.
    async fn stream(mut self, include_usage: bool) -> Result<impl IntoResponse, ApiError> {
        let next = match timeout(FIRST_PART_WAIT, self.next()).await {
            Ok(first) => Some(first?),
            Err(_) => None,
        };
        let begin = vec![self.header.first_chunk()];
        let state = Streaming { running: self, n_calls: 0, include_usage, next };
        let chunks = stream::unfold(Some((state, begin)), |step| async move {
            let (mut state, mut chunks) = step?;
            let next = match state.next.take() {
                Some(first) => Ok(first),
                None => state.running.next().await,
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

    /// The next part of the answer. Progress within the prompt is none.
    async fn next(&mut self) -> Result<Part, ApiError> {
        loop {
            match self.events.recv().await {
                Some(Event::Prompt { .. }) => {}
                Some(Event::Text(text)) => match self.output.push(&text) {
                    pieces if pieces.is_empty() => {}
                    pieces => return Ok(Part::Pieces(pieces)),
                },
                Some(Event::Finished(finish)) => return Ok(Part::End(self.output.finish(), finish)),
                Some(Event::Failed(failure)) => return Err(failed(&failure)),
                None => return Err(stopping()),
            }
        }
    }
}

/// Part of an answer.
enum Part {
    Pieces(Vec<Piece>),
    End(Vec<Piece>, moex_engine::Finish),
}

/// An answer on its way out as chunks.
struct Streaming {
    running: Running,
    n_calls: usize,
    include_usage: bool,
    /// The part that came before the response began.
    next: Option<Part>,
}

impl Streaming {
    /// Adds the chunks of a part; true if it was the last.
    fn chunks(&mut self, part: Part, chunks: &mut Vec<Value>) -> bool {
        let (pieces, finish) = match part {
            Part::Pieces(pieces) => (pieces, None),
            Part::End(pieces, finish) => (pieces, Some(finish)),
        };
        let header = &self.running.header;
        for piece in pieces {
            chunks.push(header.piece_chunk(&piece, self.n_calls));
            self.n_calls += usize::from(matches!(piece, Piece::Call(_)));
        }
        let Some(finish) = finish else { return false };
        chunks.push(header.last_chunk(finish_reason(finish.reason, self.n_calls > 0)));
        if self.include_usage {
            chunks.push(header.usage_chunk(usage(&finish)));
        }
        if let Some(last) = chunks.last_mut() {
            last["timings"] = timings(&finish);
        }
        true
    }
}

/// The chunks as events, then OpenAI's closing mark.
fn events(chunks: impl Stream<Item = Vec<Value>>) -> impl Stream<Item = Result<SseEvent, Infallible>> {
    use futures_util::StreamExt;
    chunks
        .flat_map(stream::iter)
        .map(|chunk| SseEvent::default().data(chunk.to_string()))
        .chain(stream::once(async { SseEvent::default().data("[DONE]") }))
        .map(Ok)
}

/// A rendered and tokenised conversation.
struct Prompt {
    ids: Vec<u32>,
    /// The template opened `<think>` for the model.
    ends_in_think: bool,
}

/// Renders and tokenises beside the runtime, when it is this request's turn: a long conversation takes its time.
async fn tokenize(api: Arc<Api>, request: ChatRequest) -> Result<(Arc<Api>, ChatRequest, Prompt), ApiError> {
    let turn = api.prompts.turn().await?;
    let worked = tokio::task::spawn_blocking(move || {
        // Held even if the client goes away: the work goes on to its end.
        let _turn = turn;
        let prompt = render(&api, &request)?;
        Ok((api, request, prompt))
    });
    worked.await.unwrap_or_else(|_| Err(ApiError::internal("The prompt could not be rendered.")))
}

fn render(api: &Api, request: &ChatRequest) -> Result<Prompt, ApiError> {
    let mut variables = Map::new();
    if let Some(enable) = request.enable_thinking {
        variables.insert("enable_thinking".to_owned(), json!(enable));
    }
    let input = ChatInput {
        messages: &request.messages,
        tools: (!request.tools.is_empty()).then_some(request.tools.as_slice()),
        generation_prompt: true,
        variables: &variables,
        unix_seconds: unix_seconds(SystemTime::now()),
    };
    let template =
        api.text.template.as_ref().ok_or(TextError::NoTemplate).map_err(|error| no_prompt(&error))?;
    let text = template.render(&input).map_err(|error| no_prompt(&error))?;
    check_length(text.len(), api.context_tokens())?;
    let ids = api.text.tokenizer.encode(&text).map_err(|error| no_prompt(&error))?;
    Ok(Prompt { ids, ends_in_think: text.trim_end().ends_with("<think>") })
}

fn no_prompt(error: &TextError) -> ApiError {
    match error {
        TextError::Refused(words) => {
            ApiError::invalid("messages", format!("The model's chat template refuses the messages: {words}"))
        }
        // Templates fail on histories that they were not written for.
        TextError::Template(_) => {
            ApiError::invalid("messages", format!("The messages make no prompt: {error}."))
        }
        other => ApiError::internal(format!("The prompt could not be made: {other}.")),
    }
}

/// With no worker at all there is nobody to wait for; while some are there, the swarm waits for the missing experts itself.
async fn check_coverage(api: &Api) -> Result<(), ApiError> {
    let is_served = |workers, coverage| api.is_ready(coverage) || workers > 0;
    let Readiness { workers, coverage } = api.readiness();
    if is_served(workers, coverage) {
        return Ok(());
    }
    // A worker may have joined since.
    let swarm = api.swarm().await;
    if is_served(swarm.workers.len(), swarm.coverage) {
        return Ok(());
    }
    Err(ApiError::uncovered(
        "No worker has joined, and this hub does not compute experts itself: open its join address in a browser tab.",
    ))
}

fn refused(error: SubmitError) -> ApiError {
    match error {
        SubmitError::PromptTooLong { tokens, context } => ApiError::too_long(tokens, context),
        SubmitError::Busy => ApiError::queue_full(),
        SubmitError::Stopped => stopping(),
        SubmitError::EmptyPrompt => ApiError::invalid("messages", "The messages make an empty prompt."),
        SubmitError::NoTokens => ApiError::invalid("max_tokens", format!("{error}.")),
        SubmitError::Stops => ApiError::invalid("stop", format!("{error}.")),
        SubmitError::NoSuchBias { .. } => ApiError::invalid("logit_bias", format!("{error}.")),
        SubmitError::Sampling(error) => ApiError::invalid(error.field, format!("{error}.")),
        SubmitError::NoSuchToken { .. } => {
            ApiError::internal(format!("The tokenizer and the model differ: {error}."))
        }
    }
}

fn failed(failure: &Failure) -> ApiError {
    match failure {
        Failure::Step(StepError::Experts(error @ ExpertsError::NotCovered { .. })) => {
            ApiError::uncovered(format!("The answer was given up: {error}."))
        }
        Failure::Step(StepError::Experts(ExpertsError::Swarm { failure, message })) => {
            let message = format!("The answer was given up: {message}.");
            match failure {
                SwarmFailure::Busy => ApiError::swarm_busy(message),
                SwarmFailure::Uncovered => ApiError::uncovered(message),
                SwarmFailure::Stopping => stopping(),
                SwarmFailure::Failed => ApiError::swarm_failed(message),
            }
        }
        Failure::NoMemory => {
            ApiError::unavailable("no_memory", format!("The answer was given up: {failure}."))
        }
        other => ApiError::internal(format!("The answer was given up: {other}.")),
    }
}

fn stopping() -> ApiError {
    ApiError::unavailable("stopping", "The hub is stopping.")
}

fn finish_reason(reason: moex_engine::FinishReason, has_calls: bool) -> FinishReason {
    match reason {
        moex_engine::FinishReason::Length => FinishReason::Length,
        moex_engine::FinishReason::Stop if has_calls => FinishReason::ToolCalls,
        moex_engine::FinishReason::Stop => FinishReason::Stop,
    }
}

fn usage(finish: &moex_engine::Finish) -> Usage {
    let moex_engine::Usage { prompt_tokens, completion_tokens } = finish.usage;
    Usage { prompt_tokens, completion_tokens }
}

/// For the last chunk, as llama.cpp's server does it.
fn timings(finish: &moex_engine::Finish) -> Value {
    let moex_engine::Timings { prompt, generation } = finish.timings;
    Timings { usage: usage(finish), prompt, generation }.json()
}

/// From the operating system: for ids, and for the seed of a request that names none.
fn random() -> Result<u64, ApiError> {
    getrandom::u64().map_err(|_| ApiError::internal("The system gives no random bytes."))
}
