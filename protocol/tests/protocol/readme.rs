//! The README's bytes are the ones that the encoders make.

use bytes::Bytes;
use half::f16;
use moex_protocol::header::HEADER_BYTES;
use moex_protocol::{
    Answer, AnswerPart, AttemptId, Call, Compression, Dispatch, Dtype, ErrorCode, ExpertId, Form, Heartbeat,
    LayerId, Pair, Ping, ProductFormat, ProductShape, Products, Reply, WeightSync, WeightSyncFrame,
    WireError, cancel, digests,
};

use crate::samples::block;

const README: &str = include_str!("../../README.md");

/// The examples, in the README's order.
fn messages() -> Vec<Bytes> {
    let attempt = AttemptId(7);
    let rows = Bytes::from_static(&[0x00, 0x3C, 0x00, 0xC0]);
    let dispatch = |form| Dispatch {
        layer: LayerId(3),
        hidden: 2,
        dtype: Dtype::F16,
        form,
        rows: rows.clone(),
        calls: vec![Call { expert: ExpertId(42), pairs: vec![Pair { row: 0, gate: f16::ONE }] }],
        reply: Reply::Rows,
    };
    let dispatched = |form| dispatch(form).encode(attempt, Compression::Off).expect("well formed");
    let answered = |has_products: bool| {
        let parts = vec![AnswerPart { expert: ExpertId(42), rows: 1, payload: rows.clone() }];
        let shape = ProductShape { inner: 1, format: ProductFormat::F16 };
        let products = has_products.then(|| Products::new(shape, &[1.0, -2.0]).expect("a width"));
        let answer = Answer { layer: LayerId(3), hidden: 2, dtype: Dtype::F16, parts, products };
        answer.encode(attempt, Compression::Off).expect("well formed")
    };
    let part = AnswerPart { expert: ExpertId(42), rows: 1, payload: rows.clone() };
    let (layer, dtype, parts) = (LayerId(3), Dtype::F16, vec![part]);
    let of = Answer { layer, hidden: 2, dtype, parts, products: None };
    let digested = digests::encode(attempt, &of.digests(attempt));
    let sync = WeightSync { epoch: 1, hold: Vec::new(), drop: vec![block(3, 42)] };
    let error =
        WireError { code: ErrorCode::Preempted, message: "newer work".into(), attempt: Some(attempt) };
    vec![
        dispatched(Form::Plain),
        answered(false),
        dispatched(Form::RowsOnce),
        answered(true),
        digested,
        cancel::encode(attempt),
        Heartbeat::Ping(Ping { hub_micros: 15, ..Ping::default() }).encode(Compression::Off),
        WeightSyncFrame::Sync(sync).encode(Compression::Off),
        error.encode(Compression::Off),
    ]
}

/// The README's lines of bytes, one a frame: hex up to the payload, which may be JSON.
fn lines() -> Vec<Vec<u8>> {
    let line = |line: &str| {
        let (hex, json) = match line.split_once(" | {") {
            Some((hex, json)) => (hex, format!("{{{json}")),
            None => (line, String::new()),
        };
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| {
            let text = std::str::from_utf8(pair).expect("hex digits are text");
            u8::from_str_radix(text, 16).expect("hex digits are a byte")
        };
        let mut bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
        bytes.extend_from_slice(json.as_bytes());
        bytes
    };
    README.lines().filter(|line| line.starts_with("4D6F4578")).map(line).collect()
}

#[test]
fn golden_bytes_are_the_encoders() {
    let encoded = messages();
    let mut encoded: &[u8] = &encoded.concat();
    for (index, line) in lines().iter().enumerate() {
        let header = HEADER_BYTES.min(line.len());
        assert_eq!(
            format!("{:02X?}", &encoded[..header]),
            format!("{:02X?}", &line[..header]),
            "line {index}"
        );
        assert_eq!(&encoded[header..line.len()], &line[header..], "line {index}");
        encoded = &encoded[line.len()..];
    }
    assert!(encoded.is_empty(), "every example is in the README");
}

#[test]
fn every_error_code_is_named() {
    let codes = [
        ErrorCode::Version,
        ErrorCode::Unauthorized,
        ErrorCode::BadFrame,
        ErrorCode::TooLarge,
        ErrorCode::NotResident,
        ErrorCode::Preempted,
        ErrorCode::DeviceLost,
        ErrorCode::OutOfMemory,
        ErrorCode::SelfTest,
        ErrorCode::Draining,
    ];
    for code in codes {
        assert!(README.contains(&format!("`{code}`")), "{code}");
    }
}
