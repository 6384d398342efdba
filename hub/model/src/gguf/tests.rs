//! What is written is read, and what is broken is named.

use moex_kernels::WeightFormat;

use super::*;
use crate::fuzzing;

/// A small file: keys of every kind that is written, two tensors.
fn header() -> Header {
    let mut header = Header::default();
    header
        .key("a.text", MetaValue::Text("héllo".to_owned()))
        .key("a.u32", MetaValue::U32(7))
        .key("a.u16", MetaValue::U16(3))
        .key("a.f32", MetaValue::F32(0.5))
        .key("a.bool", MetaValue::Bool(true))
        .key("a.texts", MetaValue::Texts(vec!["x".to_owned(), String::new(), "yz".to_owned()]))
        .key("a.i32s", MetaValue::I32s(vec![1, -2]))
        .tensor("first", WeightFormat::F32, &[2, 3])
        .tensor("second", WeightFormat::Q4_0, &[2, 3, 32]);
    header
}

fn file() -> Vec<u8> {
    let mut file = header().encode();
    file.extend([1; 24]);
    file.extend([0; 8]);
    file.extend([2; 6 * 18]);
    file
}

/// The file with what follows `name` by `skip` bytes replaced.
fn with(name: &str, skip: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = file();
    let at = file.windows(name.len()).position(|window| window == name.as_bytes()).unwrap();
    file[at + name.len() + skip..][..bytes.len()].copy_from_slice(bytes);
    file
}

fn error(file: &[u8]) -> String {
    Gguf::parse(file).unwrap_err().to_string()
}

#[test]
fn what_is_written_is_read() {
    let file = file();
    let gguf = Gguf::parse(&file).unwrap();
    assert_eq!(gguf.text("a.text"), Ok(Some("héllo")));
    assert_eq!((gguf.integer("a.u32"), gguf.integer("a.u16")), (Ok(Some(7)), Ok(Some(3))));
    assert_eq!((gguf.number("a.f32"), gguf.get("a.bool")), (Ok(Some(0.5)), Some(Value::Bool(true))));
    let texts: Vec<_> = gguf.get("a.texts").unwrap().as_array().unwrap().iter().collect();
    assert_eq!(texts, ["x", "", "yz"].map(Value::Text));
    let numbers: Vec<_> = gguf.get("a.i32s").unwrap().as_array().unwrap().iter().collect();
    assert_eq!(numbers, [1, -2].map(Value::Signed));
    assert_eq!(gguf.text("none"), Ok(None));
    assert_eq!(gguf.text("a.u32").unwrap_err().to_string(), "the key a.u32 is not a text");

    let [first, second] = gguf.tensors() else { panic!("two tensors") };
    assert_eq!((first.name, first.format, first.shape.as_slice()), ("first", WeightFormat::F32, &[2, 3][..]));
    assert_eq!(file[first.bytes.clone()], [1; 24]);
    assert_eq!(
        (second.name, second.format, second.shape.as_slice()),
        ("second", WeightFormat::Q4_0, &[2, 3, 32][..])
    );
    assert_eq!(file[second.bytes.clone()], [2; 108]);
}

#[test]
fn the_bytes_of_the_smallest_file() {
    let mut header = Header::default();
    header.key("k", MetaValue::U32(5)).tensor("t", WeightFormat::F16, &[1, 2]);
    let expected = [
        &b"GGUF"[..],
        &[3, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        b"k",
        &[4, 0, 0, 0],
        &[5, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        b"t",
        &[2, 0, 0, 0],
        &[2, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0],
        &[0; 8],
        &[0; 14],
    ]
    .concat();
    assert_eq!(header.encode(), expected);
}

#[test]
fn every_truncation_is_named() {
    let file = file();
    for n in 0..file.len() {
        let error = error(&file[..n]);
        match n {
            0..4 => assert!(error.starts_with("not a GGUF file"), "{n}: {error}"),
            _ => assert!(error.starts_with("truncated: ") && error.ends_with(&n.to_string()), "{n}: {error}"),
        }
    }
    let short = error(&file[..file.len() - 1]);
    assert_eq!(
        short,
        format!("truncated: second ends at byte {} and the file at byte {}", file.len(), file.len() - 1)
    );
}

#[test]
fn what_is_wrong_is_named() {
    let u64s = |n: u64| n.to_le_bytes();
    let replaced = |at: usize, bytes: &[u8]| {
        let mut file = file();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    // After a tensor's name: dimensions u32, each u64, type u32, offset u64.
    for (file, expected) in [
        (replaced(0, b"GGML"), "not a GGUF file: it does not begin with \"GGUF\""),
        (replaced(4, &[1, 0, 0, 0]), "GGUF version 1, but only versions 2 and 3 are supported"),
        (replaced(4, &[0, 0, 0, 3]), "a big-endian GGUF, but only little-endian ones are supported"),
        (
            replaced(8, &u64s(u64::MAX)),
            "the tensors are 18446744073709551615, but at most 65536 are supported",
        ),
        (replaced(16, &u64s(1 << 40)), "the keys are 1099511627776, but at most 65536 are supported"),
        (
            replaced(24, &u64s(1 << 40)),
            "the bytes of a key are 1099511627776, but at most 1024 are supported",
        ),
        (with("a.text", 0, &[99, 0, 0, 0]), "a.text has the unknown value type 99"),
        (
            with("a.text", 4, &u64s(1 << 60)),
            "the bytes of a.text are 1152921504606846976, but at most 16777216 are supported",
        ),
        (with("a.text", 12, &[0xff]), "a.text is no UTF-8"),
        (with("a.texts", 0, &[9, 0, 0, 0, 9]), "the key a.texts is not an array of plain values"),
        (
            with("a.texts", 8, &u64s(1 << 50)),
            "the elements of a.texts are 1125899906842624, but at most 8388608 are supported",
        ),
        (with("first", 0, &[0]), "first has 0 dimensions, but only 1 to 4 are supported"),
        (with("first", 0, &[9]), "first has 9 dimensions, but only 1 to 4 are supported"),
        (with("first", 20, &[77, 0, 0, 0]), "first has the type 77, but only f32, f16, q4_0,"),
        (with("first", 20, &[16, 0, 0, 0]), "first has the type iq2_xxs, but only f32, f16, q4_0,"),
        (
            with("first", 4, &u64s(1 << 62)),
            "the size of first overflows: its dimensions are [4611686018427387904, 2]",
        ),
        (
            with("first", 12, &u64s(u64::MAX)),
            "the size of first overflows: its dimensions are [3, 18446744073709551615]",
        ),
        (with("first", 24, &u64s(8)), "first starts at byte 8 of the data, which is not a multiple of 32"),
        (with("first", 24, &u64s(1 << 40)), "truncated: first ends at byte 1099511628"),
        (with("first", 24, &u64s(u64::MAX - 31)), "truncated: first ends at byte 18446744073709551615"),
        (with("second", 4, &u64s(33)), "second has rows of 33, which are not whole blocks of q4_0"),
        (with("second", 4, &u64s(1 << 63)), "the size of second overflows"),
    ] {
        let error = error(&file);
        assert!(error.starts_with(expected), "{error}, not {expected}");
    }
}

#[test]
fn names_stand_there_once() {
    let twice = |header: &mut Header| error(&[header.encode(), vec![0; 64]].concat());
    let mut keys = Header::default();
    assert_eq!(twice(keys.key("k", MetaValue::U32(1)).key("k", MetaValue::U32(2))), "k occurs twice");
    let mut tensors = Header::default();
    tensors.tensor("t", WeightFormat::F32, &[1]).tensor("t", WeightFormat::F32, &[1]);
    assert_eq!(twice(&mut tensors), "t occurs twice");
}

#[test]
fn another_alignment_moves_the_data() {
    let file = |alignment: u32| {
        let mut header = Header::default();
        header.key("general.alignment", MetaValue::U32(alignment)).tensor("t", WeightFormat::F32, &[1]);
        [header.encode(), vec![0; 256]].concat()
    };
    for (alignment, start) in [(1, 90), (128, 128), (32, 96)] {
        let file = file(alignment);
        assert_eq!(Gguf::parse(&file).unwrap().tensors()[0].bytes.start, start, "{alignment}");
    }
    for alignment in [0, 3, 1 << 17] {
        let expected = format!("general.alignment is {alignment}, not a power of two up to 65536");
        assert_eq!(error(&file(alignment)), expected);
    }
}

fn a_and_b() -> Merges {
    Merges::Listed { words: Words::default(), pairs: vec![("a".to_owned(), "b".to_owned())] }
}

#[test]
fn scores_come_back_as_they_were_written_and_one_for_each_token() {
    let vocabulary = |scores| Vocabulary {
        tokens: ["<unk>", "<0x0A>", "▁", "a", "▁a"].map(str::to_owned).to_vec(),
        kinds: vec![
            TokenKind::Unknown,
            TokenKind::Byte,
            TokenKind::Normal,
            TokenKind::Normal,
            TokenKind::Normal,
        ],
        merges: Merges::Scored { scores, adds_space: false },
        add_bos: true,
        ..Vocabulary::default()
    };
    let read = |vocabulary: Vocabulary| {
        let mut header = Header::default();
        vocabulary.write(&mut header);
        Vocabulary::read(&Gguf::parse(&header.encode()).unwrap())
    };
    let whole = vocabulary(vec![0.0, 0.0, -3.0, -2.0, -1.5]);
    assert_eq!(read(whole.clone()), Ok(Some(whole)));
    assert!(read(vocabulary(vec![0.0])).unwrap_err().to_string().contains("scores is not as many numbers"));
}

#[test]
fn a_vocabulary_must_fit_together() {
    let vocabulary = Vocabulary {
        tokens: ["a", "b", "ab", "<end>", "[PAD4]"].map(str::to_owned).to_vec(),
        kinds: vec![
            TokenKind::Normal,
            TokenKind::Normal,
            TokenKind::Normal,
            TokenKind::Control,
            TokenKind::Unused,
        ],
        merges: a_and_b(),
        eos: Some(3),
        ..Vocabulary::default()
    };
    let file = |change: fn(&mut Vocabulary)| {
        let (mut vocabulary, mut header) = (vocabulary.clone(), Header::default());
        change(&mut vocabulary);
        vocabulary.write(&mut header);
        header.encode()
    };
    let read = |file: &[u8]| Vocabulary::read(&Gguf::parse(file).unwrap());
    assert_eq!(read(&file(|_| {})), Ok(Some(vocabulary.clone())));
    let error = |change| read(&file(change)).unwrap_err().to_string();
    assert!(error(|vocabulary| vocabulary.eos = Some(5)).contains("eos_token_id is not the id of a token"));
    assert!(error(|vocabulary| vocabulary.kinds.truncate(4)).contains("token_type is not as long as"));
    let mut other = Header::default();
    other.key("tokenizer.ggml.model", MetaValue::Text("t5".to_owned()));
    other.key("tokenizer.ggml.tokens", MetaValue::Texts(Vec::new()));
    assert!(read(&other.encode()).unwrap_err().to_string().contains("\"gpt2\" or \"llama\""));
    assert_eq!(read(&Header::default().encode()), Ok(None));
}

/// The seeds of the fuzz target. `MOEX_BLESS=1 cargo test -p moex-hub seeds` writes them anew.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut model = Header::default();
    let spec = crate::Checkpoint::demo().unwrap().spec;
    crate::llama_cpp::write_keys(&spec, "seed", &mut model);
    let vocabulary = Vocabulary {
        tokens: ["a", "b", "ab", "<|im_end|>"].map(str::to_owned).to_vec(),
        kinds: vec![TokenKind::Normal, TokenKind::Normal, TokenKind::Normal, TokenKind::Control],
        merges: a_and_b(),
        eos: Some(3),
        ..Vocabulary::default()
    };
    vocabulary.write(&mut model);
    vec![
        ("kinds", file()),
        ("model", model.encode()),
        ("empty", Header::default().encode()),
        ("truncated", file()[..200].to_vec()),
        ("overflow", with("second", 4, &(1_u64 << 63).to_le_bytes())),
        ("past-the-end", with("first", 24, &(1_u64 << 40).to_le_bytes())),
    ]
}

#[test]
fn the_fuzz_target_holds_on_its_seeds() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/gguf");
    for (name, bytes) in seeds() {
        let path = folder.join(name);
        if std::env::var_os("MOEX_BLESS").is_some() {
            std::fs::write(&path, &bytes).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name}: the format that is written has changed");
        fuzzing::gguf(&bytes);
    }
}

proptest::proptest! {
    #[test]
    fn bytes_changed_anywhere_do_no_harm(
        seed in 0_usize..6,
        changes in proptest::collection::vec((proptest::prelude::any::<proptest::sample::Index>(), proptest::prelude::any::<u8>()), 1..8),
    ) {
        let mut bytes = seeds().swap_remove(seed).1;
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        fuzzing::gguf(&bytes);
    }
}
