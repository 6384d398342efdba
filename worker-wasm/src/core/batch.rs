//! From the wire to the engine and back: a [`Dispatch`] becomes a [`Batch`], the engine's output becomes an [`Answer`].
//!
//! Legend: R rows of the dispatch, P pairs over all its calls, D hidden.

use moex_kernels::engine::{self, Batch, Computed};
use moex_protocol::tensor::{self, TensorError};
use moex_protocol::{Answer, AnswerPart, Dispatch, ExpertId, ProductShape, Products, Reply};

/// `dispatch` in the engine's form: rows (R, D) and gates in f32, experts as slots.
///
/// `slots` are those of `dispatch.calls`, in their order.
///
/// # Errors
/// If the rows do not have the dtype and width that the dispatch names.
pub(super) fn to_batch(dispatch: &Dispatch, slots: &[u32]) -> Result<Batch, TensorError> {
    let rows = tensor::decode_rows(dispatch.dtype, &dispatch.rows, dispatch.hidden.into())?; // (R, D)
    let calls = dispatch.calls.iter().zip(slots);
    let calls = calls.map(|(call, &slot)| {
        let pairs = call.pairs.iter();
        let pairs = pairs.map(|pair| engine::Pair { row: pair.row.into(), gate: pair.gate.to_f32() });
        engine::Call { slot, pairs: pairs.collect() }
    });
    Ok(Batch { rows, calls: calls.collect() })
}

/// The answer to `dispatch` from the engine's results, in the order of the calls' pairs, with `products` where it is to have them.
///
/// `None` if there are not P rows, if requested products are missing, or if a value is not finite in the wire's dtype:
/// the hub would reject such an answer.
pub(super) fn to_answer(
    dispatch: &Dispatch,
    products: Option<ProductShape>,
    computed: &Computed,
) -> Option<Answer> {
    let (hidden, n_pairs) = (usize::from(dispatch.hidden), dispatch.n_pairs());
    if computed.rows.len() != n_pairs * hidden {
        return None;
    }
    let products = if dispatch.reply == Reply::RowsAndProducts {
        let (shape, values) = (products?, computed.products.as_deref()?);
        if values.len() != 2 * usize::from(shape.inner) * n_pairs {
            return None;
        }
        Some(Products::new(shape, values)?)
    } else {
        None
    };
    let mut rest = computed.rows.as_slice();
    let parts = dispatch.calls.iter().map(|call| {
        let rows; // (the call's pairs, D)
        (rows, rest) = rest.split_at(call.pairs.len() * hidden);
        part(dispatch, call.expert, rows)
    });
    let parts = parts.collect();
    let Dispatch { layer, hidden, dtype, .. } = *dispatch;
    let answer = Answer { layer, hidden, dtype, parts, products };
    (!answer.has_non_finite()).then_some(answer)
}

/// `rows` (n, D) of one expert, in the dispatch's dtype.
pub(super) fn part(dispatch: &Dispatch, expert: ExpertId, rows: &[f32]) -> AnswerPart {
    let hidden = usize::from(dispatch.hidden);
    let n_rows = rows.len() / hidden;
    let mut payload = Vec::with_capacity(n_rows * dispatch.dtype.row_bytes(hidden));
    tensor::encode_rows(dispatch.dtype, rows, hidden, &mut payload);
    AnswerPart { expert, rows: n_rows as u32, payload: payload.into() }
}
