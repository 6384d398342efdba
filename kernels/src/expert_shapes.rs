//! The shapes of all experts of a model: one width, and a format for each layer, of which there are few.

use crate::{ExpertFormat, ExpertShape};

/// The most formats that a model's layers have among them.
pub const MAX_FORMATS: usize = 8;

/// The shapes of a model's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShapes {
    /// D, the width of a row.
    pub hidden: usize,
    /// F, the width between the projections.
    pub inner: usize,
    /// First the formats, at least one, each once; then `None`.
    formats: [Option<ExpertFormat>; MAX_FORMATS],
}

/// More formats than an engine supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the experts' layers have more than {MAX_FORMATS} formats among them")]
pub struct TooManyFormats;

impl ExpertShapes {
    /// Experts of these widths whose layers have these formats, in any order and number.
    ///
    /// # Errors
    /// [`TooManyFormats`] above [`MAX_FORMATS`] different ones.
    pub fn new(
        hidden: usize,
        inner: usize,
        first: ExpertFormat,
        others: impl IntoIterator<Item = ExpertFormat>,
    ) -> Result<Self, TooManyFormats> {
        let mut shapes = Self { hidden, inner, formats: [None; MAX_FORMATS] };
        for format in std::iter::once(first).chain(others) {
            let place = shapes.formats.iter_mut().find(|place| place.is_none_or(|known| known == format));
            *place.ok_or(TooManyFormats)? = Some(format);
        }
        Ok(shapes)
    }

    /// Each shape, once.
    pub fn iter(&self) -> impl Iterator<Item = ExpertShape> + use<> {
        let Self { hidden, inner, formats } = *self;
        formats.into_iter().flatten().map(move |format| ExpertShape { hidden, inner, format })
    }

    /// The index of a format in [`Self::iter`]; `None` if no layer has it.
    pub fn position(&self, format: ExpertFormat) -> Option<usize> {
        self.iter().position(|shape| shape.format == format)
    }

    /// The shape with this format, if a layer has it.
    pub fn with(&self, format: ExpertFormat) -> Option<ExpertShape> {
        self.iter().find(|shape| shape.format == format)
    }

    /// The bytes of the largest block; every slot has room for it.
    pub fn block_bytes(&self) -> usize {
        self.iter().map(|shape| shape.block_bytes()).max().unwrap_or(0)
    }
}

impl From<ExpertShape> for ExpertShapes {
    fn from(shape: ExpertShape) -> Self {
        let mut formats = [None; MAX_FORMATS];
        formats[0] = Some(shape.format);
        Self { hidden: shape.hidden, inner: shape.inner, formats }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WeightFormat;

    #[test]
    fn each_format_is_there_once() {
        let uniform = ExpertFormat::uniform(WeightFormat::Q4K);
        let mixed = ExpertFormat::new(WeightFormat::Q4K, WeightFormat::Q6K);
        let shapes = ExpertShapes::new(512, 256, mixed, [uniform, mixed, uniform]).unwrap();
        let formats: Vec<_> = shapes.iter().map(|shape| shape.format).collect();
        assert_eq!(formats, [mixed, uniform]);
        assert_eq!((shapes.position(uniform), shapes.position(mixed)), (Some(1), Some(0)));
        assert_eq!(shapes.block_bytes(), shapes.with(mixed).unwrap().block_bytes());
        assert_eq!(shapes.with(WeightFormat::F16.into()), None);
        let all = WeightFormat::ALL.map(ExpertFormat::uniform);
        assert_eq!(ExpertShapes::new(8, 8, all[0], all), Err(TooManyFormats));
    }
}
