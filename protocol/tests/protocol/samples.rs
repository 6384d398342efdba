//! Values that the tests share.

use std::collections::BTreeMap;

use bytes::Bytes;
use half::f16;
use moex_protocol::{
    Accepted, Answer, AnswerPart, Block, BlockReport, Call, Compression, Dispatch, Dtype, ExpertId, Form,
    Join, LayerId, ModelSummary, Pair, ProductFormat, ProductShape, Products, Reply, SelfTest, WorkerKey,
    WorkerKind,
};

/// D of the samples.
pub(crate) const HIDDEN: u16 = 4;
/// F of the samples.
pub(crate) const INNER: usize = 8;
pub(crate) fn join() -> Join {
    Join {
        token: "secret".into(),
        key: WorkerKey(0xA11CE),
        name: String::new(),
        kind: WorkerKind::Native,
        build: "0.1.0".into(),
        adapter: "CPU".into(),
        backend: "cpu".into(),
        features: vec!["shader-f16".into()],
        limits: BTreeMap::from([("maxBufferSize".into(), 1 << 28)]),
        memory_budget_bytes: 1 << 30,
        self_test: SelfTest { passed: true, worst_nmse: 1e-9, detail: "linear".into() },
        sync_latency_micros: 470,
        gigabytes_per_second: 17.5,
        teraflops: 0.5,
        input_slots: 2,
        gives_products: true,
        gives_digests: true,
    }
}

pub(crate) fn accepted() -> Accepted {
    Accepted {
        session: 1,
        heartbeat_interval_millis: 1000,
        dispatch_timeout_millis: 500,
        model: ModelSummary {
            name: "sample".into(),
            hidden: u32::from(HIDDEN),
            inner: 8,
            n_layers: 2,
            n_experts: 8,
            n_experts_per_token: 2,
            format: "int4".into(),
            layer_formats: Vec::new(),
            activations: "f32".into(),
            block_bytes: 1024,
            max_rows: 16,
            max_pairs: 32,
        },
        wants_products: false,
    }
}

pub(crate) fn block(layer: u16, expert: u16) -> Block {
    Block { layer: LayerId(layer), expert: ExpertId(expert) }
}

/// All blocks of layer 0.
pub(crate) fn report() -> BlockReport {
    BlockReport {
        epoch: 1,
        resident: (0..8).map(|expert| block(0, expert)).collect(),
        ..BlockReport::default()
    }
}

/// Two rows for each of `experts` in layer 0.
pub(crate) fn dispatch(form: Form, experts: &[u16]) -> Dispatch {
    let dtype = Dtype::F16;
    let pairs = vec![Pair { row: 0, gate: f16::ONE }, Pair { row: 1, gate: f16::from_f32(0.5) }];
    Dispatch {
        layer: LayerId(0),
        hidden: HIDDEN,
        dtype,
        form,
        rows: vec![0x11; 2 * dtype.row_bytes(usize::from(HIDDEN))].into(),
        calls: experts
            .iter()
            .map(|&expert| Call { expert: ExpertId(expert), pairs: pairs.clone() })
            .collect(),
        reply: Reply::Rows,
    }
}

/// An answer of the shape that `dispatch` asks for, all values equal.
pub(crate) fn answer_to(dispatch: &Dispatch) -> Answer {
    let shape = dispatch.answer_shape();
    let row_bytes = dispatch.dtype.row_bytes(usize::from(dispatch.hidden));
    let part = |(expert, rows): (ExpertId, u32)| AnswerPart {
        expert,
        rows,
        payload: vec![0x22; rows as usize * row_bytes].into(),
    };
    Answer {
        layer: shape.layer,
        hidden: shape.hidden,
        dtype: shape.dtype,
        products: (shape.reply == Reply::RowsAndProducts).then(|| products(dispatch.n_pairs())),
        parts: shape.parts.into_iter().map(part).collect(),
    }
}

/// The products of an answer of so many rows, all of them 1.
pub(crate) fn products(n_rows: usize) -> Products {
    let shape = ProductShape { inner: INNER as u16, format: ProductFormat::F16 };
    Products::new(shape, &vec![1.0; n_rows * 2 * INNER]).expect("a width that can be said")
}

/// A dispatch message, uncompressed.
pub(crate) fn encoded(dispatch: &Dispatch, attempt: u32) -> Bytes {
    dispatch.encode(moex_protocol::AttemptId(attempt), Compression::Off).expect("samples are well formed")
}
