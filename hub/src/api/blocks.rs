//! An answer as a list of blocks (thinking, text, calls), opened, extended and closed one after another. The Responses
//! and the Messages API are built from it, streamed or whole.

use std::convert::Infallible;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde_json::Value;
use tokio::time::timeout;

use super::chat::{Chat, End, FIRST_PART_WAIT};
use super::error::ApiError;
use super::output::{Piece, ToolCall};

/// A block as received so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Block {
    /// The model's thinking.
    Reasoning(String),
    /// The answer's text.
    Text(String),
    /// A tool call; it arrives complete.
    Call(ToolCall),
}

/// A change to the blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// The next block begins, empty except for a call's name.
    Opened(Block),
    /// The block grows: contains only the new text.
    Grew(Block),
    /// The block is complete.
    Closed(Block),
}

/// Assembles blocks from pieces.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    open: Option<Block>,
}

impl Blocks {
    /// Adds the next piece of the answer.
    pub(super) fn push(&mut self, piece: Piece) -> Vec<Change> {
        let mut changes = Vec::new();
        let (empty, grown) = match piece {
            Piece::Reasoning(text) => (Block::Reasoning(String::new()), Block::Reasoning(text)),
            Piece::Content(text) => (Block::Text(String::new()), Block::Text(text)),
            Piece::Call(call) => {
                let empty = ToolCall { arguments: String::new(), ..call.clone() };
                (Block::Call(empty), Block::Call(call))
            }
        };
        match (&mut self.open, &grown) {
            (Some(Block::Reasoning(all)), Block::Reasoning(text))
            | (Some(Block::Text(all)), Block::Text(text)) => all.push_str(text),
            _ => {
                changes.extend(self.finish());
                changes.push(Change::Opened(empty));
                self.open = Some(grown.clone());
            }
        }
        changes.push(Change::Grew(grown));
        changes
    }

    /// Closes the last block.
    pub(super) fn finish(&mut self) -> Option<Change> {
        self.open.take().map(Change::Closed)
    }
}

/// How an API writes an answer as a stream of events.
pub(super) trait Script: Send + 'static {
    /// Events before the first piece.
    fn begin(&mut self, chat: &Chat) -> Vec<NamedEvent>;
    /// Events for a change to a block.
    fn change(&mut self, chat: &Chat, change: Change) -> Vec<NamedEvent>;
    /// Events for a complete answer.
    fn end(&mut self, chat: &Chat, end: &End) -> Vec<NamedEvent>;
    /// Events for a failed answer.
    fn fail(&mut self, error: &ApiError) -> Vec<NamedEvent>;
}

/// Name and data of an event.
pub(super) type NamedEvent = (&'static str, Value);

/// Waits for the complete answer and returns its blocks.
pub(super) async fn whole(chat: &mut Chat) -> Result<(Vec<Block>, End), ApiError> {
    let (mut blocks, mut closed) = (Blocks::default(), Vec::new());
    let mut keep = |changes: Vec<Change>| {
        closed.extend(changes.into_iter().filter_map(|change| match change {
            Change::Closed(block) => Some(block),
            _ => None,
        }));
    };
    loop {
        let part = chat.next().await?;
        part.pieces.into_iter().for_each(|piece| keep(blocks.push(piece)));
        if let Some(end) = part.end {
            keep(blocks.finish().into_iter().collect());
            return Ok((closed, end));
        }
    }
}

/// Streams the answer as events.
pub(super) async fn stream(mut chat: Chat, mut script: impl Script) -> Result<Response, ApiError> {
    let first = match timeout(FIRST_PART_WAIT, chat.next()).await {
        Ok(first) => Some(first?),
        Err(_) => None,
    };
    let begin = script.begin(&chat);
    let state = (chat, script, Blocks::default(), first, begin);
    let told = stream::unfold(Some(state), |state| async move {
        let (mut chat, mut script, mut blocks, first, mut told) = state?;
        let next = match first {
            Some(first) => Ok(first),
            None => chat.next().await,
        };
        let part = match next {
            Ok(part) => part,
            Err(error) => {
                told.extend(script.fail(&error));
                return Some((told, None));
            }
        };
        let mut changes: Vec<Change> = part.pieces.into_iter().flat_map(|piece| blocks.push(piece)).collect();
        if part.end.is_some() {
            changes.extend(blocks.finish());
        }
        told.extend(changes.into_iter().flat_map(|change| script.change(&chat, change)));
        if let Some(end) = part.end {
            told.extend(script.end(&chat, &end));
            return Some((told, None));
        }
        Some((told, Some((chat, script, blocks, None, Vec::new()))))
    });
    let events = told
        .flat_map(stream::iter)
        .map(|(name, data)| Ok::<_, Infallible>(Event::default().event(name).data(data.to_string())));
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_kind_are_one_block_and_every_call_is_its_own() {
        let call = |arguments: &str| ToolCall { name: "f".to_owned(), arguments: arguments.to_owned() };
        let text = |text: &str| text.to_owned();
        let pieces = [
            Piece::Reasoning(text("a")),
            Piece::Reasoning(text("b")),
            Piece::Call(call("{}")),
            Piece::Call(call("[]")),
            Piece::Content(text("c")),
        ];
        let mut blocks = Blocks::default();
        let mut changes: Vec<Change> = pieces.into_iter().flat_map(|piece| blocks.push(piece)).collect();
        changes.extend(blocks.finish());
        let closed: Vec<&Block> = changes
            .iter()
            .filter_map(|c| if let Change::Closed(block) = c { Some(block) } else { None })
            .collect();
        let expected = [
            Block::Reasoning(text("ab")),
            Block::Call(call("{}")),
            Block::Call(call("[]")),
            Block::Text(text("c")),
        ];
        assert_eq!(closed, expected.iter().collect::<Vec<_>>());
        assert_eq!(changes.iter().filter(|c| matches!(c, Change::Opened(_))).count(), 4);
    }
}
