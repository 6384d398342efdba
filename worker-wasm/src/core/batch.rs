//! From the wire to the engine and back: a [`Dispatch`] becomes a [`Batch`], the engine's output becomes an [`Answer`].
//!
//! Legend: R rows of the dispatch, P pairs over all its calls, D hidden.

use bytes::Bytes;
use moex_kernels::engine::{self, Batch, Computed, Halves, Output, Wanted};
use moex_protocol::tensor::{self, TensorError};
use moex_protocol::{Answer, AnswerPart, Dispatch, Dtype, ProductFormat, ProductShape, Products, Reply};

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

/// What the answer to `dispatch` is to have, with products of this shape where it is to have them.
pub(super) fn wanted(dispatch: &Dispatch, products_shape: Option<ProductShape>) -> Wanted {
    let products = dispatch.reply == Reply::RowsAndProducts;
    let are_halves = !products || products_shape.is_some_and(|shape| shape.format == ProductFormat::F16);
    Wanted { products, halves: dispatch.dtype == Dtype::F16 && are_halves }
}

/// The answer to `dispatch` from the engine's output, in the order of the calls' pairs, with products where it is to have them.
///
/// `None` if there are not P rows, if requested products are missing, or if a value is not finite in the wire's dtype:
/// the hub would reject such an answer.
pub(super) fn to_answer(
    dispatch: &Dispatch,
    products_shape: Option<ProductShape>,
    output: Output,
) -> Option<Answer> {
    let (hidden, n_pairs) = (usize::from(dispatch.hidden), dispatch.n_pairs());
    let (rows, its) = match output {
        Output::Floats(Computed { rows, products }) if rows.len() == n_pairs * hidden => {
            let mut payload = Vec::with_capacity(n_pairs * dispatch.dtype.row_bytes(hidden));
            tensor::encode_rows(dispatch.dtype, &rows, hidden, &mut payload);
            (payload, products.and_then(|values| Products::new(products_shape?, &values)))
        }
        // These are the wire's already.
        Output::Halves(Halves { rows, products }) if dispatch.dtype == Dtype::F16 => {
            let shape = products_shape.filter(|shape| shape.format == ProductFormat::F16);
            (rows, products.and_then(|payload| Some(Products { shape: shape?, payload: payload.into() })))
        }
        _ => return None,
    };
    let products = match dispatch.reply {
        Reply::RowsAndProducts => {
            Some(its.filter(|its| its.payload.len() == n_pairs * its.shape.row_bytes())?)
        }
        _ => None,
    };
    let row_bytes = dispatch.dtype.row_bytes(hidden);
    if rows.len() != n_pairs * row_bytes {
        return None;
    }
    let mut rest = Bytes::from(rows);
    let parts = dispatch.calls.iter().map(|call| {
        let rows = call.pairs.len();
        AnswerPart { expert: call.expert, rows: rows as u32, payload: rest.split_to(rows * row_bytes) }
    });
    let parts = parts.collect();
    let Dispatch { layer, hidden, dtype, .. } = *dispatch;
    let answer = Answer { layer, hidden, dtype, parts, products };
    (!answer.has_non_finite()).then_some(answer)
}
