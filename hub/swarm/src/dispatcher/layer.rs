//! Encodes a layer's rows and routing in the wire's number format as work items (an expert with its rows), and combines
//! work items into one [`Dispatch`] per worker.
//!
//! `candidates` chooses the workers; `parts` holds their answers.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use moex_protocol::header::TensorFields;
use moex_protocol::{
    Answer, AnswerPart, AttemptId, Block, Call, Digest, Dispatch, Dtype, ExpertId, Form, LayerId, Pair,
    ProductShape, Reply, Routing, digests, header::HEADER_BYTES, limits, tensor,
};

use super::error::JobError;
use super::parts::{AttemptDigest, Part, wire_gate};
use crate::SwarmConfig;

/// A row index and a gate.
const PAIR_BYTES: usize = 4;

/// (row, expert) pairs whose answer fits into a message, with these products or without.
pub fn max_pairs_a_message(dtype: Dtype, hidden: usize, products: Option<ProductShape>) -> usize {
    let pair_bytes = dtype.row_bytes(hidden) + HEADER_BYTES + products.map_or(0, ProductShape::row_bytes);
    limits::MAX_MESSAGE_BYTES / pair_bytes
}

/// How layers are encoded for a swarm.
#[derive(Clone, Copy, Debug)]
pub struct LayerEncoding {
    /// D.
    pub(crate) hidden: usize,
    /// Of the products that answers are to come with.
    pub(crate) products: Option<ProductShape>,
    /// The number format on the wire.
    pub(crate) dtype: Dtype,
    /// Rows that workers have planned memory for.
    pub(crate) max_rows: usize,
    /// (row, expert) pairs that workers have planned memory for.
    pub(crate) max_pairs: usize,
}

impl LayerEncoding {
    /// The encoding for a swarm with this config.
    pub fn new(config: &SwarmConfig) -> Self {
        Self {
            hidden: config.model.hidden as usize,
            products: config.model.product_shape().filter(|_| config.wants_products()),
            dtype: config.wire,
            max_rows: config.model.max_rows as usize,
            max_pairs: config.model.max_pairs as usize,
        }
    }
}

/// A layer's work in the wire's format: its rows, and for each chosen expert its rows and gates. Created on the
/// caller's thread, so that the swarm's thread encodes nothing.
#[derive(Clone, Debug)]
pub struct EncodedLayer {
    pub(crate) layer: LayerId,
    /// T.
    pub(crate) n_rows: usize,
    /// D.
    pub(crate) hidden: usize,
    /// Of the products that answers come with.
    pub(super) products: Option<ProductShape>,
    pub(crate) dtype: Dtype,
    /// (T, D) in `dtype`.
    pub(crate) rows: Bytes,
    /// (T, K), each row's experts.
    pub(crate) experts: Vec<u16>,
    /// The work items, ascending by expert; `row` counts the layer's rows.
    pub(crate) items: Vec<Call>,
}

impl EncodedLayer {
    /// Encodes (T, D) normed `rows` with their routing.
    ///
    /// # Errors
    /// If rows, experts and gates do not fit together, or one expert's rows not into a message.
    pub fn encode(
        layer: LayerId,
        rows: &[f32],
        routing: &Routing,
        encoding: LayerEncoding,
    ) -> Result<Self, JobError> {
        let LayerEncoding { hidden, products, dtype, max_rows, max_pairs } = encoding;
        let k = routing.k;
        let n_rows = rows.len() / hidden.max(1);
        let n_pairs = n_rows * k;
        if n_rows * hidden != rows.len() || routing.experts.len() != n_pairs || routing.gates.len() != n_pairs
        {
            return Err(JobError::Shape { layer });
        }
        let max = max_rows.min(max_pairs / k.max(1));
        let max = max.min(limits::MAX_ROWS as usize).min(max_pairs_a_message(dtype, hidden, products));
        if n_rows > max {
            return Err(JobError::TooManyRows { rows: n_rows, max });
        }
        let mut pairs: BTreeMap<u16, Vec<Pair>> = BTreeMap::new();
        for (at, (expert, gate)) in routing.experts.iter().zip(&routing.gates).enumerate() {
            let pair = Pair { row: (at / k) as u16, gate: wire_gate(*gate) };
            pairs.entry(*expert).or_default().push(pair);
        }
        let items =
            pairs.into_iter().map(|(expert, pairs)| Call { expert: ExpertId(expert), pairs }).collect();
        let mut encoded = BytesMut::with_capacity(n_rows * dtype.row_bytes(hidden));
        tensor::encode_rows(dtype, rows, hidden, &mut encoded);
        let (rows, experts) = (encoded.freeze(), routing.experts.clone());
        Ok(Self { layer, n_rows, hidden, products, dtype, rows, experts, items })
    }

    /// The message that requests these items, ascending, from one worker: only the rows they need, each once.
    pub(crate) fn dispatch(&self, items: &[usize]) -> Dispatch {
        const UNUSED: u16 = u16::MAX;
        let mut place = vec![UNUSED; self.n_rows];
        for pair in items.iter().flat_map(|item| &self.items[*item].pairs) {
            place[usize::from(pair.row)] = 0;
        }
        let mut n_rows = 0;
        for place in place.iter_mut().filter(|place| **place != UNUSED) {
            *place = n_rows;
            n_rows += 1;
        }
        let row_bytes = self.dtype.row_bytes(self.hidden);
        let rows = if usize::from(n_rows) == self.n_rows {
            self.rows.clone()
        } else {
            let used = place.iter().enumerate().filter(|(_, place)| **place != UNUSED);
            let mut rows = BytesMut::with_capacity(usize::from(n_rows) * row_bytes);
            used.for_each(|(row, _)| rows.extend_from_slice(&self.rows[row * row_bytes..][..row_bytes]));
            rows.freeze()
        };
        let here = |call: &Call| Call {
            expert: call.expert,
            pairs: call.pairs.iter().map(|p| Pair { row: place[usize::from(p.row)], gate: p.gate }).collect(),
        };
        let calls: Vec<Call> = items.iter().map(|item| here(&self.items[*item])).collect();
        let form = shorter_form(row_bytes, usize::from(n_rows), &calls);
        let (layer, hidden, dtype) = (self.layer, self.hidden as u16, self.dtype);
        Dispatch { layer, hidden, dtype, form, rows, calls, reply: self.reply() }
    }

    /// What its rows come with.
    pub(super) fn reply(&self) -> Reply {
        if self.products.is_some() { Reply::RowsAndProducts } else { Reply::Rows }
    }

    /// Divides items, in their order, so that each part's answer fits into a message.
    pub(super) fn by_message(&self, items: &[usize]) -> Vec<Vec<usize>> {
        let max = max_pairs_a_message(self.dtype, self.hidden, self.products);
        let mut n_pairs = 0;
        let mut messages: Vec<Vec<usize>> = Vec::new();
        for item in items {
            let more = self.items[*item].pairs.len();
            n_pairs += more;
            match messages.last_mut() {
                Some(message) if n_pairs <= max => message.push(*item),
                _ => {
                    messages.push(vec![*item]);
                    n_pairs = more;
                }
            }
        }
        messages
    }

    /// Splits an answer to `items` into one part per item. None if its shape differs from the request. Does not read
    /// the values.
    pub(crate) fn read(&self, items: &[usize], answer: &Answer) -> Option<Vec<Part>> {
        let is_of_shape = answer.parts.len() == items.len()
            && (answer.layer, answer.dtype, usize::from(answer.hidden))
                == (self.layer, self.dtype, self.hidden);
        if !is_of_shape {
            return None;
        }
        let mut products = match &answer.products {
            // The hub's own answers have none.
            None => None,
            Some(products) if Some(products.shape) == self.products => Some(products.payload.clone()),
            Some(_) => return None,
        };
        let product_bytes = self.product_bytes();
        let mut read = |(&item, part): (&usize, &AnswerPart)| {
            let call = &self.items[item];
            let rows: Vec<u16> = call.pairs.iter().map(|pair| pair.row).collect();
            let n_bytes = rows.len() * product_bytes;
            let its = match &mut products {
                Some(all) if all.len() < n_bytes => return None,
                Some(all) => Some(all.split_to(n_bytes)),
                None => None,
            };
            let read = Part::read(item, rows, part, its, answer.dtype, self.hidden);
            read.filter(|_| part.expert == call.expert)
        };
        items.iter().zip(&answer.parts).map(&mut read).collect()
    }

    /// The digests that one worker sent for `items`, as one part per item. None if their number differs from the request.
    pub(super) fn read_digests(
        &self,
        items: &[usize],
        digests: &[Digest],
        attempt: AttemptId,
    ) -> Option<Vec<Part>> {
        let part = |(&item, &digest): (&usize, &Digest)| {
            let Call { expert, pairs } = &self.items[item];
            let (layer, hidden, dtype) = (self.layer, self.hidden as u16, self.dtype);
            let tensor = TensorFields { layer, expert: *expert, rows: pairs.len() as u32, hidden, dtype };
            Part::of_digest(item, AttemptDigest { digest, attempt, tensor })
        };
        (digests.len() == items.len()).then(|| items.iter().zip(digests).map(part).collect())
    }

    /// The block that a work item needs.
    pub(crate) fn block(&self, item: usize) -> Block {
        Block { layer: self.layer, expert: self.items[item].expert }
    }

    /// The blocks that the work items need, each with its (row, expert) pairs.
    pub(crate) fn load(&self) -> impl Iterator<Item = (Block, usize)> {
        let block = |call: &Call| Block { layer: self.layer, expert: call.expert };
        self.items.iter().map(move |call| (block(call), call.pairs.len()))
    }

    /// (row, expert) pairs of these items.
    pub(crate) fn n_pairs(&self, items: &[usize]) -> usize {
        items.iter().map(|item| self.items[*item].pairs.len()).sum()
    }

    /// Bytes of these items' request and answer: the cost of a copy.
    pub(super) fn message_bytes(&self, items: &[usize], reply: Reply) -> u64 {
        let row_bytes = self.dtype.row_bytes(self.hidden);
        let n_pairs = self.n_pairs(items);
        let there = self.rows_of(items).len() * row_bytes + n_pairs * PAIR_BYTES;
        let back = match reply {
            Reply::Rows => n_pairs * row_bytes,
            Reply::RowsAndProducts => n_pairs * (row_bytes + self.product_bytes()),
            Reply::Digests => items.len() * digests::DIGEST_BYTES,
        };
        (there + back + 2 * items.len() * HEADER_BYTES) as u64
    }

    /// Bytes of a row's products.
    fn product_bytes(&self) -> usize {
        self.products.map_or(0, ProductShape::row_bytes)
    }

    /// The rows that any of these items touches, ascending.
    pub(super) fn rows_of(&self, items: &[usize]) -> Vec<u16> {
        let mut rows: Vec<u16> =
            items.iter().flat_map(|item| &self.items[*item].pairs).map(|pair| pair.row).collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }
}

/// Rows once, if shared rows save more than the extra frame and the row indices cost.
fn shorter_form(row_bytes: usize, n_rows: usize, calls: &[Call]) -> Form {
    let n_pairs: usize = calls.iter().map(|call| call.pairs.len()).sum();
    let plain = n_pairs * (row_bytes + 2);
    let rows_once = HEADER_BYTES + n_rows * row_bytes + n_pairs * PAIR_BYTES;
    if rows_once < plain { Form::RowsOnce } else { Form::Plain }
}

/// The items for one worker in one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Indices of work items, ascending.
    pub items: Vec<usize>,
    /// Those of the items that another worker is asked for at the same time, and before this one.
    pub copies: Vec<usize>,
}

/// Groups ascending work items by worker, or by worker and what it is to answer: one message for each.
pub(super) fn group_by_worker<To: Ord>(
    items: impl IntoIterator<Item = (usize, Vec<To>)>,
) -> BTreeMap<To, Share> {
    let mut shares: BTreeMap<To, Share> = BTreeMap::new();
    for (item, workers) in items {
        for (copy, worker) in workers.into_iter().enumerate() {
            let share = shares.entry(worker).or_default();
            share.items.push(item);
            if copy > 0 {
                share.copies.push(item);
            }
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::super::LayerJob;
    use super::*;
    use crate::ConnectionId;

    /// Up to eight rows of `hidden` values.
    fn encoding(hidden: usize) -> LayerEncoding {
        LayerEncoding { hidden, products: None, dtype: Dtype::F16, max_rows: 8, max_pairs: 32 }
    }

    /// Three rows of two values; experts 5 and 9, row 1 goes to both.
    fn job() -> LayerJob {
        let routing = Routing { k: 2, experts: vec![9, 7, 5, 9, 7, 1], gates: vec![0.5; 6] };
        LayerJob { layer: LayerId(4), rows: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], routing }
    }

    fn values(dispatch: &Dispatch) -> Vec<f32> {
        tensor::decode_rows(dispatch.dtype, &dispatch.rows, usize::from(dispatch.hidden)).unwrap()
    }

    #[test]
    fn calls_ascend_by_expert_and_name_their_rows() {
        let wire = job().encode(encoding(2)).unwrap();
        let shape: Vec<(u16, Vec<u16>)> =
            wire.items.iter().map(|c| (c.expert.0, c.pairs.iter().map(|p| p.row).collect())).collect();
        assert_eq!(shape, [(1, vec![2]), (5, vec![1]), (7, vec![0, 2]), (9, vec![0, 1])]);
        assert_eq!(wire.n_pairs(&[2, 3]), 4);
        assert_eq!(wire.rows_of(&[0, 2]), [0, 2]);
    }

    #[test]
    fn a_dispatch_carries_only_the_rows_it_needs() {
        let wire = job().encode(encoding(2)).unwrap();
        let dispatch = wire.dispatch(&[0, 1]);
        assert_eq!(values(&dispatch), [3.0, 4.0, 5.0, 6.0]);
        assert_eq!(dispatch.calls[0].pairs[0].row, 1);
        assert_eq!(dispatch.calls[1].pairs[0].row, 0);
        assert_eq!(dispatch.form, Form::Plain);
        let all = wire.dispatch(&[0, 1, 2, 3]);
        assert_eq!(all.rows.as_ptr(), wire.rows.as_ptr(), "nothing is copied where all rows are needed");
    }

    #[test]
    fn rows_go_once_when_that_is_shorter() {
        let routing = Routing { k: 4, experts: vec![0, 1, 2, 3], gates: vec![0.25; 4] };
        let job = LayerJob { layer: LayerId(0), rows: vec![0.5; 64], routing };
        let wire = job.encode(encoding(64)).unwrap();
        assert_eq!(wire.dispatch(&[0, 1, 2, 3]).form, Form::RowsOnce);
        assert_eq!(wire.dispatch(&[0]).form, Form::Plain);
    }

    #[test]
    fn a_job_of_the_wrong_shape_or_too_long_is_refused() {
        let encode = |job: &LayerJob| job.encode(encoding(2)).map(|_| ());
        assert_eq!(encode(&job()), Ok(()));
        let mut torn = job();
        torn.rows.pop();
        assert_eq!(encode(&torn), Err(JobError::Shape { layer: LayerId(4) }));
        let mut torn = job();
        torn.routing.gates.pop();
        assert_eq!(encode(&torn), Err(JobError::Shape { layer: LayerId(4) }));
        let too_many = Err(JobError::TooManyRows { rows: 3, max: 2 });
        assert_eq!(job().encode(LayerEncoding { max_rows: 2, ..encoding(2) }).map(|_| ()), too_many);
        assert_eq!(job().encode(LayerEncoding { max_pairs: 5, ..encoding(2) }).map(|_| ()), too_many);
    }

    #[test]
    fn an_answer_too_long_for_a_message_is_asked_for_in_several() {
        let hidden = usize::from(u16::MAX);
        let routing = Routing { k: 40, experts: (0..8).flat_map(|_| 0..40).collect(), gates: vec![0.5; 320] };
        let job = LayerJob { layer: LayerId(0), rows: vec![1.0; 8 * hidden], routing };
        let wire = job.encode(LayerEncoding { max_pairs: 320, ..encoding(hidden) }).unwrap();
        let messages = wire.by_message(&(0..40).collect::<Vec<_>>());
        assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), [31, 9]);
        assert_eq!(messages.concat(), (0..40).collect::<Vec<_>>());
        let bytes = |items: &[usize]| wire.n_pairs(items) * (Dtype::F16.row_bytes(hidden) + HEADER_BYTES);
        assert!(messages.iter().all(|items| bytes(items) <= limits::MAX_MESSAGE_BYTES));
        assert_eq!(wire.by_message(&[]), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn copies_go_to_different_workers_and_a_worker_gets_one_message() {
        let (a, b, c) = (ConnectionId(1), ConnectionId(2), ConnectionId(3));
        let shares = group_by_worker([(0, vec![a, b]), (1, vec![b, c]), (2, vec![]), (3, vec![a])]);
        let share =
            |items: &[usize], copies: &[usize]| Share { items: items.to_vec(), copies: copies.to_vec() };
        let expected = [(a, share(&[0, 3], &[])), (b, share(&[0, 1], &[0])), (c, share(&[1], &[1]))];
        assert_eq!(shares, BTreeMap::from(expected));
    }
}
