//! Token ids to rows.

use crate::MatrixView;

/// A token id that the table has no row for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {id} is not in a vocabulary of {vocabulary}")]
pub struct OutOfVocabulary {
    /// The token.
    pub id: u32,
    /// V, the rows of the table.
    pub vocabulary: usize,
}

/// `out[t] = table[ids[t]]`: `table` (V, D), `ids` (T), `out` (T, D).
///
/// # Errors
/// [`OutOfVocabulary`] for the first id without a row; `out` is then partly written.
///
/// # Panics
/// If `out` is not T rows of D.
pub fn embed(table: &MatrixView<'_>, ids: &[u32], out: &mut [f32]) -> Result<(), OutOfVocabulary> {
    assert_eq!(out.len(), ids.len() * table.cols(), "a row for each token");
    for (&id, row) in ids.iter().zip(out.chunks_exact_mut(table.cols().max(1))) {
        if id as usize >= table.rows() {
            return Err(OutOfVocabulary { id, vocabulary: table.rows() });
        }
        table.dequantize_row(id as usize, row);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_rows_and_refuses_what_is_not_there() {
        let table = [0.0, 1.0, 10.0, 11.0, 20.0, 21.0];
        let table = MatrixView::of_f32(3, 2, &table).unwrap();
        let mut out = [f32::NAN; 4];
        assert_eq!(embed(&table, &[2, 0], &mut out), Ok(()));
        assert_eq!(out, [20.0, 21.0, 0.0, 1.0]);
        assert_eq!(embed(&table, &[0, 3], &mut out), Err(OutOfVocabulary { id: 3, vocabulary: 3 }));
    }
}
