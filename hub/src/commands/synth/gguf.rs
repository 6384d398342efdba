//! Writes the same random model as a GGUF, with llama.cpp's choice of formats, so that both programs can run it.

use std::{io, path::Path};

use anyhow::Context;
use indicatif::ProgressBar;
use moex_kernels::WeightFormat;

use super::{
    Geometry, tokenizer_json,
    weights::{SpokenTokens, Weights},
};
use crate::commands::part_file::PartFile;
use moex_model::gguf::{Header, MetaValue, Vocabulary, padding};
use moex_model::text::Text;
use moex_model::{
    Checkpoint, ModelSpec,
    llama_cpp::{GgufTensor, tensors, write_keys},
};

/// Values quantised at a time, approximately: enough for every thread.
const BATCH: usize = 1 << 20;

/// Format of each tensor, by llama.cpp's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Mix {
    /// All matrices in bf16.
    #[value(name = "bf16")]
    Bf16,
    /// All matrices in q8_0.
    #[value(name = "q8_0")]
    Q8_0,
    /// Matrices in q4_0, the head in q6_K.
    #[value(name = "q4_0")]
    Q4_0,
    /// Matrices in q4_K; the head, and half of attn_v and of ffn_down, in q6_K.
    #[value(name = "q4_K_M", alias = "q4_k_m")]
    Q4KM,
}

/// Writes the file. It is named `.part` until complete.
pub(super) fn write(
    path: &Path,
    geometry: &Geometry,
    mix: Mix,
    seed: u64,
    progress: &ProgressBar,
) -> anyhow::Result<()> {
    let spec = ModelSpec::from_json(&serde_json::to_vec(&geometry.config())?)
        .context("the geometry is not a valid model")?;
    let tensors = tensors(&spec);
    let formats: Vec<WeightFormat> =
        tensors.iter().map(|tensor| mix.format(tensor, spec.layers.len())).collect();
    let mut demo = Checkpoint::demo()?;
    let template = Text::template_source(&demo.text)?.unwrap_or_default();
    let tokenizer = tokenizer_json(demo.text.tokenizer.take())?;
    let vocabulary = Vocabulary::from_tokenizer_json(&tokenizer, spec.vocab)?;
    let spoken = SpokenTokens::of(&vocabulary);
    let header = header(&spec, &tensors, &formats, vocabulary, template);
    let context = || path.display().to_string();
    let mut file = PartFile::create(path).with_context(context)?;
    file.write(&header.encode()).with_context(context)?;
    for (tensor, format) in tensors.iter().zip(formats) {
        let mut out = Quantizer::new(format, tensor, &mut file);
        for part in &tensor.parts {
            Weights::new(seed, part, tensor.part_shape(), &spoken)
                .for_each(|values| {
                    progress.inc(2 * values.len() as u64);
                    out.push(values.iter().map(|value| value.to_f32()))
                })
                .with_context(context)?;
        }
        out.finish().with_context(context)?;
    }
    file.finish().with_context(context)
}

impl Mix {
    fn format(self, tensor: &GgufTensor, n_layers: usize) -> WeightFormat {
        let cols = *tensor.shape.last().unwrap_or(&1);
        if tensor.shape.len() == 1 || tensor.name.contains("ffn_gate_inp") {
            return WeightFormat::F32;
        }
        let is_head = tensor.name == "output.weight";
        let wanted = match self {
            Self::Bf16 => WeightFormat::Bf16,
            Self::Q8_0 => WeightFormat::Q8_0,
            Self::Q4_0 if is_head => WeightFormat::Q6K,
            Self::Q4_0 => WeightFormat::Q4_0,
            Self::Q4KM if is_head || has_more_bits(&tensor.name, n_layers) => WeightFormat::Q6K,
            Self::Q4KM => WeightFormat::Q4K,
        };
        // If rows are not whole blocks, llama.cpp falls back to the next format with blocks of 32.
        match wanted {
            format if cols.is_multiple_of(format.block_cols()) => format,
            WeightFormat::Q4K if cols.is_multiple_of(32) => WeightFormat::Q5_0,
            WeightFormat::Q6K if cols.is_multiple_of(32) => WeightFormat::Q8_0,
            _ => WeightFormat::F16,
        }
    }
}

/// Whether q4_K_M stores this tensor in q6_K: attn_v and ffn_down of the first and last eighth of the layers, and of
/// every third layer between.
fn has_more_bits(name: &str, n_layers: usize) -> bool {
    let part = |part: &str| name.ends_with(&format!(".{part}.weight"));
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    let eighth = n_layers / 8;
    let is_chosen = |layer: usize| layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2;
    (part("attn_v") || part("ffn_down") || part("ffn_down_exps")) && layer.is_some_and(is_chosen)
}

fn header(
    spec: &ModelSpec,
    tensors: &[GgufTensor],
    formats: &[WeightFormat],
    mut vocabulary: Vocabulary,
    template: String,
) -> Header {
    vocabulary.eos = vocabulary.id("<|im_end|>");
    vocabulary.bos = vocabulary.id("<|endoftext|>");
    vocabulary.pad = vocabulary.bos;

    let mut header = Header::default();
    write_keys(spec, "moex-synth", &mut header);
    vocabulary.write(&mut header);
    header.key("tokenizer.chat_template", MetaValue::Text(template));
    for (tensor, format) in tensors.iter().zip(formats) {
        header.tensor(tensor.name.as_str(), *format, &tensor.shape);
    }
    header
}

/// Takes a tensor's values in order, and quantises and writes whole rows on all threads.
struct Quantizer<'a> {
    format: WeightFormat,
    cols: usize,
    pending: Vec<f32>,
    n_written: usize,
    file: &'a mut PartFile,
}

impl<'a> Quantizer<'a> {
    fn new(format: WeightFormat, tensor: &GgufTensor, file: &'a mut PartFile) -> Self {
        let cols = *tensor.shape.last().unwrap_or(&1);
        Self { format, cols, pending: Vec::new(), n_written: 0, file }
    }

    fn push(&mut self, values: impl Iterator<Item = f32>) -> io::Result<()> {
        self.pending.extend(values);
        if self.pending.len() >= BATCH { self.write() } else { Ok(()) }
    }

    /// Writes the complete rows.
    fn write(&mut self) -> io::Result<()> {
        let n_rows = self.pending.len() / self.cols;
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        let rows_each = n_rows.div_ceil(n_threads).max(1);
        let (format, cols) = (self.format, self.cols);
        let quantize = move |values: &[f32]| format.quantize(values.len() / cols, cols, values);
        let whole = &self.pending[..n_rows * cols];
        let written: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                whole.chunks(rows_each * cols).map(|values| scope.spawn(move || quantize(values))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().map_err(|_| io::Error::other("quantising panicked"))
            };
            threads.into_iter().map(join).collect::<io::Result<_>>()
        })?;
        for bytes in &written {
            self.file.write(bytes)?;
            self.n_written += bytes.len();
        }
        self.pending.drain(..n_rows * cols);
        Ok(())
    }

    /// Writes the rest and the padding after the tensor.
    fn finish(mut self) -> io::Result<()> {
        self.write()?;
        if !self.pending.is_empty() {
            return Err(io::Error::other("a tensor of whole rows"));
        }
        self.file.write(&vec![0; padding(self.n_written)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q4_k_m_mixes_as_llama_cpp_does() {
        let chosen = |n: usize| -> Vec<usize> {
            (0..n).filter(|layer| has_more_bits(&format!("blk.{layer}.ffn_down_exps.weight"), n)).collect()
        };
        assert_eq!(chosen(4), [2, 3]);
        let of_48 = chosen(48);
        assert_eq!(of_48.len(), 24);
        assert_eq!(of_48[..9], [0, 1, 2, 3, 4, 5, 8, 11, 14]);
        assert!(!has_more_bits("blk.0.ffn_up_exps.weight", 48) && !has_more_bits("output.weight", 48));
    }
}
