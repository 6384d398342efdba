//! A GGUF against the folder that it was made of: the same tensors, the same logits, the same text.

use std::{fs, path::Path, sync::Arc};

use moex_kernels::{MatrixView, WeightFormat, nmse};
use tempfile::TempDir;

use super::{
    llama_cpp::{GgufTensor, tensors, write_keys},
    local_experts::{Blocks, LocalExperts, MemoryBlocks},
    reference_tests::all_logits,
    *,
};
use crate::gguf::{Gguf, Header, MetaValue, TensorInfo, Vocabulary, padding};
use crate::text::{ChatInput, Special, Text};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny-qwen3-moe");

/// `checkpoint` as a GGUF whose tensors are in what `format` gives them.
pub(crate) fn export(checkpoint: &Checkpoint, format: impl Fn(&GgufTensor) -> WeightFormat) -> Vec<u8> {
    let config = &checkpoint.spec;
    let mut header = Header::default();
    write_keys(config, "test", &mut header);
    if let Some(TokenizerSource::Json(json)) = &checkpoint.text.tokenizer {
        let mut vocabulary = Vocabulary::from_tokenizer_json(json, config.vocab).unwrap();
        vocabulary.eos = vocabulary.id("<|im_end|>");
        vocabulary.pad = vocabulary.id("<|endoftext|>");
        vocabulary.write(&mut header);
        let template = Text::template_source(&checkpoint.text).unwrap().unwrap();
        header.key("tokenizer.chat_template", MetaValue::Text(template));
    }
    let tensors = tensors(config);
    let mut data = Vec::new();
    for tensor in &tensors {
        let format = format(tensor);
        header.tensor(tensor.name.as_str(), format, &tensor.shape);
        for part in &tensor.parts {
            let stored = checkpoint.tensor(part).unwrap();
            let checkpoint::Stored::Weights(from) = stored.stored else { panic!("{part}") };
            let cols = *stored.shape.last().unwrap();
            let rows = stored.shape.iter().product::<usize>() / cols;
            let values = MatrixView::new(from, rows, cols, &stored.bytes).unwrap().dequantize();
            data.extend(format.quantize(rows, cols, &values));
        }
        data.resize(data.len() + padding(data.len()), 0);
    }
    let mut file = header.encode();
    file.extend(data);
    file
}

/// Matrices in `format`, everything else in f32.
pub(super) fn matrices(format: WeightFormat) -> impl Fn(&GgufTensor) -> WeightFormat {
    move |tensor| match tensor.shape.len() {
        1 => WeightFormat::F32,
        _ if tensor.name.contains("ffn_gate_inp") => WeightFormat::F32,
        _ => format,
    }
}

pub(super) fn open(file: &[u8]) -> (TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("q.gguf");
    fs::write(&path, file).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    (folder, checkpoint)
}

/// `checkpoint` through such a file.
pub(super) fn through_gguf(
    checkpoint: &Checkpoint,
    format: impl Fn(&GgufTensor) -> WeightFormat,
) -> (TempDir, Checkpoint) {
    open(&export(checkpoint, format))
}

fn logits(checkpoint: &Checkpoint) -> Vec<f32> {
    let model = Arc::new(Model::load(checkpoint).unwrap());
    all_logits(&model, &[5, 17, 300, 2, 9]).0
}

fn tiny() -> Checkpoint {
    Checkpoint::open(Path::new(TINY)).unwrap()
}

#[test]
fn in_bf16_it_is_the_folder_to_the_bit() {
    for folder in [tiny(), Checkpoint::demo().unwrap()] {
        let (_keep, gguf) = open(&export(&folder, matrices(WeightFormat::Bf16)));
        assert_eq!(gguf.name, "q");
        assert_eq!(logits(&gguf), logits(&folder));
        // A GGUF names one end of a text, Qwen's other one is known by its name.
        let ends = |checkpoint: &Checkpoint| {
            let mut eos = Text::load(checkpoint).unwrap().eos;
            eos.sort_unstable();
            eos
        };
        assert_eq!(ends(&gguf), ends(&folder));
        let spec = ModelSpec { eos: folder.spec.eos.clone(), ..gguf.spec.clone() };
        assert_eq!(spec, folder.spec);
    }
}

#[test]
fn a_quantised_model_is_its_dequantised_values() {
    // Blocks of 256 need rows of that: D of the demo model; F is 128.
    let folder = Checkpoint::demo().unwrap();
    for (format, down) in [
        (WeightFormat::Q8_0, WeightFormat::Q8_0),
        (WeightFormat::Q4_0, WeightFormat::Q4_0),
        (WeightFormat::Q4_1, WeightFormat::Q5_1),
        (WeightFormat::Q5_0, WeightFormat::F16),
        (WeightFormat::Q4K, WeightFormat::Q5_0),
        (WeightFormat::Q5K, WeightFormat::Q8_0),
        (WeightFormat::Q6K, WeightFormat::Bf16),
        (WeightFormat::Mxfp4, WeightFormat::Mxfp4),
        (WeightFormat::Iq4Xs, WeightFormat::Iq4Nl),
        (WeightFormat::Q2K, WeightFormat::Q4_0),
        (WeightFormat::Q3K, WeightFormat::Q4_0),
    ] {
        let mix = |tensor: &GgufTensor| {
            if tensor.name.contains("ffn_down_exps") { down } else { matrices(format)(tensor) }
        };
        let (_keep, quantised) = open(&export(&folder, mix));
        let dequantised = {
            let exact = export_of_gguf(&quantised);
            logits(&open(&exact).1)
        };
        let error = nmse(&logits(&quantised), &dequantised);
        assert!(error <= 1e-6, "{format}, {down}: NMSE {error:e}");
        let lost = nmse(&dequantised, &logits(&folder));
        assert!(lost > 1e-9, "{format}: quantised values are others than the folder's");
    }
}

/// All values of a GGUF as they decode, in f32.
fn export_of_gguf(checkpoint: &Checkpoint) -> Vec<u8> {
    export(checkpoint, |_| WeightFormat::F32)
}

/// The tiny model with formats that differ between a layer's matrices and between layers, but not within the experts of one.
fn mixed(tensor: &GgufTensor) -> WeightFormat {
    let name = tensor.name.as_str();
    match tensor.shape.len() {
        1 => WeightFormat::F32,
        3 if name.starts_with("blk.0.ffn_down") => WeightFormat::Q8_0,
        3 if name.starts_with("blk.0.") => WeightFormat::Q4_0,
        3 => WeightFormat::Q5_1,
        _ => WeightFormat::F16,
    }
}

/// The tiny model, so mixed.
pub(super) fn mixed_tiny() -> Checkpoint {
    open(&export(&tiny(), mixed)).1
}

/// Other crates' tests read it.
#[test]
fn the_mixed_file_among_the_data_is_as_it_is_made_here() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny-mixed.gguf");
    let made = export(&tiny(), mixed);
    assert!(fs::read(path).unwrap() == made, "make {path} anew");
}

#[test]
fn experts_are_packed_as_they_are() {
    let checkpoint = mixed_tiny();
    let model = Arc::new(Model::load(&checkpoint).unwrap());
    let packing = Packing::or_default(None, &model);
    assert_eq!(packing, Packing::Native, "of a quantised model");
    assert_eq!(
        Packing::or_default(Some(WeightFormat::F16.into()), &model),
        Packing::To(WeightFormat::F16.into())
    );
    let formats = [0, 1].map(|layer| packing.shape(&model, layer).unwrap().format.to_string());
    assert_eq!(formats, ["q4_0+q8_0", "q5_1"]);

    let blocks = MemoryBlocks::new(model.clone(), packing);
    let block = moex_protocol::Block { layer: moex_protocol::LayerId(0), expert: moex_protocol::ExpertId(3) };
    let view = model.experts(0)[3].view();
    let bytes = blocks.block(block).unwrap();
    for matrix in [view.gate, view.up, view.down] {
        let n = matrix.bytes().len();
        assert!(bytes.windows(n).step_by(16).any(|part| part == matrix.bytes()), "not a bit is changed");
    }
    let mut packed =
        LocalExperts::exact(MemoryBlocks::new(model.clone(), packing), moex_protocol::Dtype::F16);
    let ids = [5, 17, 300, 2, 9];
    let exact = all_logits(&model, &ids).0;
    let mut kv = model.kv_pool(usize::MAX, 1);
    let mut table = KvTable::default();
    assert!(kv.reserve(&mut table, ids.len()));
    let span = Span { ids: &ids, start: 0, table: &table, wanted: WantedLogits::All };
    let logits = model.forward(&[span], &mut kv, &mut packed).unwrap();
    let error = nmse(&logits, &exact);
    // What f16 on the wire costs; another format of the experts would cost more than 1e-3.
    assert!(error < 1e-5, "NMSE {error:e}");
}

#[test]
fn experts_of_unlike_formats_are_packed_only_when_told_to_what() {
    let unlike = |tensor: &GgufTensor| match tensor.name.as_str() {
        "blk.1.ffn_up_exps.weight" => WeightFormat::Q8_0,
        _ => mixed(tensor),
    };
    let model = Model::load(&open(&export(&tiny(), unlike)).1).unwrap();
    assert!(Packing::Native.shape(&model, 0).is_ok());
    let error = Packing::Native.shape(&model, 1).unwrap_err();
    assert!(error.contains("layer 1") && error.contains("--experts"), "{error}");
    assert!(Packing::To(WeightFormat::Int4G128.into()).shape(&model, 1).is_ok());
}

#[test]
fn a_split_model_is_one_model() {
    let demo = Checkpoint::demo().unwrap();
    let whole = export(&demo, matrices(WeightFormat::Q8_0));
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = split(&whole);
    fs::write(folder.path().join("d-00001-of-00002.gguf"), first).unwrap();
    let second_path = folder.path().join("d-00002-of-00002.gguf");
    fs::write(&second_path, second).unwrap();
    for name in ["d-00001-of-00002.gguf", "d-00002-of-00002.gguf"] {
        let checkpoint = Checkpoint::open(&folder.path().join(name)).unwrap();
        assert_eq!(checkpoint.name, "d");
        assert_eq!(logits(&checkpoint), logits(&open(&whole).1));
    }
    fs::remove_file(&second_path).unwrap();
    let error = Checkpoint::open(&folder.path().join("d-00001-of-00002.gguf")).err().unwrap().to_string();
    assert!(error.contains("d-00002-of-00002.gguf"), "{error}");
}

/// A file in two, as llama.cpp splits: all keys in the first, some of the tensors in each.
fn split(whole: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let parsed = Gguf::parse(whole).unwrap();
    let (first, second) = parsed.tensors().split_at(20);
    let part = |with_keys: bool, tensors: &[TensorInfo<'_>]| {
        let mut header = Header::default();
        if with_keys {
            let demo = Checkpoint::demo().unwrap();
            write_keys(&demo.spec, "demo", &mut header);
        }
        header.key("split.count", MetaValue::U16(2));
        let mut data = Vec::new();
        for tensor in tensors {
            header.tensor(tensor.name, tensor.format, &tensor.shape);
            data.extend_from_slice(&whole[tensor.bytes.clone()]);
            data.resize(data.len() + padding(data.len()), 0);
        }
        [header.encode(), data].concat()
    };
    (part(true, first), part(false, second))
}

/// Everything that tokenizers treat apart: scripts, digits, spaces, contractions, marks, special tokens and near misses.
const TEXTS: [&str; 24] = [
    "",
    " ",
    "Hello, world!",
    "don't we'll I'M they'Re 's",
    "1234567890 12 3.14 1,000,000",
    "   leading and trailing   ",
    "tabs\tand\nnew\r\nlines\n\n\n  x",
    "naïve café Ünïcödé",
    "cafe\u{301} decomposed A\u{30a}",
    "你好，世界。中文字符",
    "こんにちは 안녕하세요",
    "Привет мир",
    "🙂🙂‍↔️ 👨‍👩‍👧 🏳️‍🌈",
    "مرحبا بالعالم",
    "\u{200b}zero\u{a0}width\u{2003}spaces",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_start|><|im_start|><|endoftext|>x",
    "<think>\nthought\n</think>\n\nanswer",
    "<tool_call>{\"a\": 1}</tool_call><tool_response>",
    "<|im_start <|im_end| > <think <| think>",
    " <think> </think> ",
    "[PAD500] [PAD1020]",
    "fn main() { println!(\"{}\", 1 + 2); } // ok",
    "ﬁ ligature Å ångström Ω ohm ½",
];

#[test]
fn its_tokenizer_is_the_one_of_tokenizer_json() {
    for folder in [tiny(), Checkpoint::demo().unwrap()] {
        let (_keep, gguf) = open(&export(&folder, |_| WeightFormat::F32));
        let (one, other) = (Text::load(&folder).unwrap(), Text::load(&gguf).unwrap());
        let joined = TEXTS.concat();
        for text in TEXTS.into_iter().chain([joined.as_str()]) {
            let ids = one.tokenizer.encode(text).unwrap();
            assert_eq!(other.tokenizer.encode(text).unwrap(), ids, "{text:?}");
            for special in [Special::Keep, Special::Skip] {
                assert_eq!(
                    other.tokenizer.decode(&ids, special),
                    one.tokenizer.decode(&ids, special),
                    "{text:?}"
                );
            }
        }
        for id in 0..folder.spec.vocab as u32 {
            let decode = |text: &Text| text.tokenizer.decode(&[id], Special::Keep);
            assert_eq!(decode(&other), decode(&one), "{id}");
        }
        let messages = [serde_json::json!({"role": "user", "content": "What is 2 + 2?"})];
        let prompt = |text: &Text| {
            text.prompt(&ChatInput {
                messages: &messages,
                tools: None,
                generation_prompt: true,
                variables: &serde_json::Map::new(),
                unix_seconds: 0,
            })
        };
        assert_eq!(prompt(&other).unwrap(), prompt(&one).unwrap());
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(256))]
    #[test]
    fn its_tokenizer_agrees_on_any_text(text in r"(\PC|[\s'a-z0-9<>|]|<think>|<\|im_end\|>){0,40}") {
        use std::sync::OnceLock;
        static BOTH: OnceLock<[Text; 2]> = OnceLock::new();
        let [one, other] = BOTH.get_or_init(|| {
            let folder = tiny();
            let (_keep, gguf) = open(&export(&folder, |_| WeightFormat::F32));
            [Text::load(&folder).unwrap(), Text::load(&gguf).unwrap()]
        });
        proptest::prop_assert_eq!(other.tokenizer.encode(&text).unwrap(), one.tokenizer.encode(&text).unwrap());
    }
}

#[test]
fn what_cannot_be_run_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("q.gguf");
    let demo = Checkpoint::demo().unwrap();
    let whole = export(&demo, matrices(WeightFormat::Bf16));
    let error = |file: &[u8]| {
        fs::write(&path, file).unwrap();
        let opened = Checkpoint::open(&path).and_then(|checkpoint| Model::load(&checkpoint));
        opened.err().unwrap().to_string()
    };
    let at = |text: &[u8]| whole.windows(text.len()).position(|window| window == text).unwrap();
    let replaced = |from: &[u8], to: &[u8]| {
        let mut file = whole.clone();
        file[at(from)..][..to.len()].copy_from_slice(to);
        file
    };
    assert_eq!(
        error(&replaced(b"qwen3moe", b"qwen9moe")),
        "q.gguf: its general.architecture is \"qwen9moe\", but moex supports only qwen3moe, qwen3, qwen2moe, qwen3next, \
         gpt-oss, llama, olmoe, deepseek2, gemma2, gemma3"
    );
    assert_eq!(
        error(&replaced(b"qwen3moe.block_count", b"qwen3moe.block_cOunt")),
        "q.gguf: the field qwen3moe.block_count is missing"
    );
    assert_eq!(
        error(&replaced(b"blk.1.attn_q.weight", b"blk.1.attn_Q.weight")),
        "q.gguf holds blk.1.attn_Q.weight, which is not supported in a GGUF of \"qwen3moe\""
    );
    assert_eq!(
        error(&replaced(b"blk.1.attn_q.weight", b"blk.9.attn_q.weight")),
        "no shard holds the tensor blk.1.attn_q.weight"
    );
    let cut = error(&whole[..whole.len() - 64]);
    assert!(cut.starts_with("q.gguf: truncated: output.weight ends at byte "), "{cut}");
    fs::write(folder.path().join("q.bin"), b"").unwrap();
    let other = Checkpoint::open(&folder.path().join("q.bin")).err().unwrap().to_string();
    assert!(other.contains("q.bin") && other.contains(".gguf"), "{other}");
}
