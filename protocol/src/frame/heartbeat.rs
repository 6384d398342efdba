//! HEARTBEAT: joining, and staying.
//!
//! ```text
//! header   type 4, sequence id 0, tensor fields 0
//! payload  {"type": "join", ...}      worker, first: who it is and what it can do
//!          {"type": "accepted", ...}  hub: the terms
//!          {"type": "ping", ...}      hub, every interval: its clock
//!          {"type": "beat", ...}      worker: that clock back, and how it is
//! ```
//!
//! Unknown fields are ignored. Numbers that may be NaN are written as null.
//!
//! In wasm32, where a worker is all there is, what only a hub reads is not decoded and what only a hub sends not encoded:
//! the code for it would be a fiftieth of a tab's bundle.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::compression::{Compression, CompressionMode};
use crate::error::DecodeError;
use crate::frame::products::{ProductFormat, ProductShape};
use crate::frame::{decode_control, decode_type, encode_control, unknown_type};
use crate::header::FrameType;
use crate::id::{AttemptId, WorkerKey};
#[cfg(not(target_arch = "wasm32"))]
use crate::limits::{MAX_JOIN_ENTRIES, MAX_JOIN_TEXT_BYTES, MAX_NAME_BYTES, MAX_SLOTS};

/// The body of a HEARTBEAT.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Heartbeat {
    /// From a worker, its first frame.
    Join(Join),
    /// From the hub, the answer to a join.
    #[cfg_attr(target_arch = "wasm32", serde(skip_serializing))]
    Accepted(Accepted),
    /// From the hub, every interval.
    #[cfg_attr(target_arch = "wasm32", serde(skip_serializing))]
    Ping(Ping),
    /// From a worker: the answer to a ping, and at once when its visibility changes.
    Beat(Beat),
}

/// Who a worker is and what it can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Join {
    /// The secret of the join URL.
    pub token: String,
    /// Says, and proves, who it is across reconnects.
    pub key: WorkerKey,
    /// What its owner calls it, for people; empty if nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Where it runs.
    pub kind: WorkerKind,
    /// Which build of the worker it is.
    pub build: String,
    /// What computes, for people: `CPU (AVX2)`, `NVIDIA ...`.
    pub adapter: String,
    /// `webgpu`, `vulkan`, `metal`, `dx12`, `cpu` or `wasm-simd`.
    pub backend: String,
    /// The adapter's features in use.
    #[serde(default)]
    pub features: Vec<String>,
    /// The adapter's limits, by name.
    #[serde(default)]
    pub limits: BTreeMap<String, u64>,
    /// How much memory it gives for experts.
    pub memory_budget_bytes: u64,
    /// Whether its kernels agree with their CPU twins.
    pub self_test: SelfTest,
    /// What waiting for the adapter costs, at the median.
    #[serde(default)]
    pub sync_latency_micros: u64,
    /// Measured weight bandwidth; NaN when not measured.
    #[serde(default = "f32_nan", with = "nan_as_null_f32")]
    pub gigabytes_per_second: f32,
    /// Measured arithmetic; NaN when not measured.
    #[serde(default = "f32_nan", with = "nan_as_null_f32")]
    pub teraflops: f32,
    /// How many dispatches it queues: 1 to [`MAX_SLOTS`].
    pub input_slots: u8,
    /// Whether it answers with products where a dispatch asks for them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gives_products: bool,
    /// Whether it answers with digests where a dispatch asks for them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gives_digests: bool,
}

/// The feature of a GPU whose answers with int8 activations are the CPU's to the bit.
pub const INT8_EXACT: &str = "int8-exact";

impl Join {
    /// Whether its answers with int8 activations are the hub's to the bit: a CPU's always are.
    pub fn is_exact(&self) -> bool {
        matches!(self.backend.as_str(), "cpu" | "wasm-simd") || self.features.iter().any(|f| f == INT8_EXACT)
    }
}

/// Where a worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerKind {
    /// In a tab.
    Browser,
    /// In a process.
    Native,
}

/// The outcome of a worker's check of its kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfTest {
    /// Whether every kernel was within its tolerance.
    pub passed: bool,
    /// The largest normalised mean square error met; NaN when a kernel gave one.
    #[serde(default = "f64_nan", with = "nan_as_null_f64")]
    pub worst_nmse: f64,
    /// Which kernel that was, or why it failed.
    #[serde(default)]
    pub detail: String,
}

/// The terms on which the hub takes a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// This connection, in the hub's logs.
    pub session: u64,
    /// How often the hub pings.
    pub heartbeat_interval_millis: u64,
    /// How long the hub waits for an answer at first.
    pub dispatch_timeout_millis: u64,
    /// What is served.
    pub model: ModelSummary,
    /// Whether dispatches ask for products: who cannot give them is not asked.
    #[serde(default, skip_serializing_if = "is_false")]
    pub wants_products: bool,
}

/// What a worker must know of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSummary {
    /// Its name, for people.
    pub name: String,
    /// D, the width of an activation row.
    pub hidden: u32,
    /// F, an expert's inner width.
    pub inner: u32,
    /// Layers, dense ones included.
    pub n_layers: u32,
    /// E, routed experts in a layer.
    pub n_experts: u32,
    /// K, experts chosen for a token.
    pub n_experts_per_token: u32,
    /// The format of the experts' weights: `int4`, `q8_0`, ...; or `q4_K+q6_K`, gate and up's, then down's.
    pub format: String,
    /// The same for each layer, dense ones included, where layers differ; empty where all are as `format` says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layer_formats: Vec<String>,
    /// What rows are when they meet weights: `f32`, or `int8` if they are rounded to blocks of it. Empty is `f32`.
    #[serde(default)]
    pub activations: String,
    /// Bytes of one expert's block; of the largest where layers differ.
    pub block_bytes: u64,
    /// Most rows in a dispatch.
    pub max_rows: u32,
    /// Most (row, expert) pairs in a dispatch.
    pub max_pairs: u32,
}

impl ModelSummary {
    /// The form of an answer's products: f16 where the gate and up of all experts meet rows in int8, else f32. None if F is
    /// beyond the limits.
    pub fn product_shape(&self) -> Option<ProductShape> {
        const FLOATS: [&str; 3] = ["f32", "f16", "bf16"];
        let inner = u16::try_from(self.inner).ok()?;
        let is_float = |format: &String| FLOATS.iter().any(|float| format.starts_with(float));
        let has_floats = is_float(&self.format) || self.layer_formats.iter().any(is_float);
        let is_f16 = self.activations == "int8" && !has_floats;
        Some(ProductShape { inner, format: if is_f16 { ProductFormat::F16 } else { ProductFormat::F32 } })
    }
}

/// The hub's clock, to measure the round trip with, and what it knows of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {
    /// Microseconds since the hub's start.
    pub hub_micros: u64,
    /// When payloads are compressed, if the worker takes such.
    #[serde(default, skip_serializing_if = "CompressionMode::is_off")]
    pub compression: CompressionMode,
    /// Bytes that the link carries in a second from the worker, as measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// How much padding is to come with the answer, to measure that.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub padding_bytes: u32,
}

/// How a worker is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// The ping's clock; `None` when no ping asked.
    #[serde(default)]
    pub echo: Option<u64>,
    /// Whether its page is seen.
    #[serde(default)]
    pub visibility: Visibility,
    /// Dispatches it has and has not answered.
    #[serde(default)]
    pub queue_depth: u32,
    /// Memory its experts take.
    #[serde(default)]
    pub memory_used_bytes: u64,
    /// Blocks it serves.
    #[serde(default)]
    pub blocks_resident: u32,
    /// Whether it takes compressed payloads; said where the hub asked.
    #[serde(default, skip_serializing_if = "is_false")]
    pub takes_lz4: bool,
}

/// Whether a worker's page is seen. A native worker's is, until it leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// It runs at full speed.
    #[default]
    Visible,
    /// It may be slowed down.
    Hidden,
    /// It is about to be stopped, and may be resumed.
    Frozen,
    /// It goes away.
    Leaving,
}

impl Heartbeat {
    /// The message that says it.
    pub fn encode(&self, compression: Compression) -> Bytes {
        encode_control(FrameType::Heartbeat, AttemptId::default(), self, compression)
    }

    pub(crate) fn from_payload(payload: &[u8]) -> Result<Self, DecodeError> {
        match decode_type(payload)?.as_str() {
            #[cfg(not(target_arch = "wasm32"))]
            "join" => {
                let join: Join = decode_control(payload)?;
                join.check()?;
                Ok(Self::Join(join))
            }
            "accepted" => Ok(Self::Accepted(decode_control(payload)?)),
            "ping" => Ok(Self::Ping(decode_control(payload)?)),
            #[cfg(not(target_arch = "wasm32"))]
            "beat" => Ok(Self::Beat(decode_control(payload)?)),
            _ => Err(unknown_type()),
        }
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Join {
    /// Checks what JSON alone does not: that it is bounded, since the hub keeps it as long as the connection.
    fn check(&self) -> Result<(), DecodeError> {
        let texts = [
            ("token", &self.token),
            ("build", &self.build),
            ("adapter", &self.adapter),
            ("backend", &self.backend),
            ("self_test.detail", &self.self_test.detail),
        ];
        let features = self.features.iter().map(|feature| ("features", feature));
        let limits = self.limits.keys().map(|name| ("limits", name));
        for (field, text) in texts.into_iter().chain(features).chain(limits) {
            if text.len() > MAX_JOIN_TEXT_BYTES {
                return Err(DecodeError::JoinField { field });
            }
        }
        let field = if self.name.len() > MAX_NAME_BYTES {
            "name"
        } else if self.features.len() > MAX_JOIN_ENTRIES {
            "features"
        } else if self.limits.len() > MAX_JOIN_ENTRIES {
            "limits"
        } else if !(1..=MAX_SLOTS).contains(&self.input_slots) {
            "input_slots"
        } else {
            return Ok(());
        };
        Err(DecodeError::JoinField { field })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

fn f32_nan() -> f32 {
    f32::NAN
}

fn f64_nan() -> f64 {
    f64::NAN
}

/// JSON has no NaN: serde_json writes it as null, and would not read that back.
macro_rules! nan_as_null {
    ($module:ident, $float:ty) => {
        mod $module {
            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            pub(super) fn serialize<S: Serializer>(value: &$float, serializer: S) -> Result<S::Ok, S::Error> {
                value.is_finite().then_some(*value).serialize(serializer)
            }

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<$float, D::Error> {
                Ok(Option::deserialize(deserializer)?.unwrap_or(<$float>::NAN))
            }
        }
    };
}

nan_as_null!(nan_as_null_f32, f32);
nan_as_null!(nan_as_null_f64, f64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, decode_message};

    #[test]
    fn golden_bytes() {
        let ping = Heartbeat::Ping(Ping { hub_micros: 1_500_000, ..Ping::default() });
        let message = ping.encode(Compression::Off);
        #[rustfmt::skip]
        let header: [u8; 28] = [
            0x4D, 0x6F, 0x45, 0x78,  0x02, 0x00,  0x04, 0x00,  0x24, 0x00, 0x00, 0x00,  0x00, 0x00, 0x00, 0x00,
            0x00, 0x00,  0x00, 0x00,  0x00, 0x00, 0x00, 0x00,  0x00, 0x00,  0x00,  0x00,
        ];
        assert_eq!(message[..28], header);
        assert_eq!(&message[28..], br#"{"type":"ping","hub_micros":1500000}"#);
        assert_eq!(decode_message(&message), Ok(vec![Frame::Heartbeat(ping)]));
    }

    #[test]
    fn join_reads_as_documented_and_ignores_unknown_fields() {
        let json = br#"{"type":"join","token":"t","key":"000000000000000000000000000000ff","kind":"browser",
            "build":"0.1.0","adapter":"CPU","backend":"cpu","features":["shader-f16"],"limits":{"buffers":8},
            "memory_budget_bytes":1024,"self_test":{"passed":true,"worst_nmse":null},"sync_latency_micros":470,
            "gigabytes_per_second":17.5,"teraflops":null,"input_slots":1,"of_a_later_version":[]}"#;
        let Ok(Heartbeat::Join(join)) = Heartbeat::from_payload(json) else { panic!("a join") };
        assert_eq!(join.key, WorkerKey(255));
        assert_eq!(join.kind, WorkerKind::Browser);
        assert_eq!(join.limits["buffers"], 8);
        assert!(join.self_test.worst_nmse.is_nan() && join.teraflops.is_nan());
        let message = Heartbeat::Join(join.clone()).encode(Compression::Lz4);
        let frames = decode_message(&message).unwrap();
        let [Frame::Heartbeat(Heartbeat::Join(back))] = frames.as_slice() else { panic!("a join") };
        assert_eq!(format!("{back:?}"), format!("{join:?}"), "NaN comes back");
    }

    #[test]
    fn products_are_f16_where_gate_and_up_of_all_experts_meet_rows_in_int8() {
        let format = |activations: &str, format: &str, layers: &[&str]| {
            let layer_formats = layers.iter().map(|format| (*format).to_owned()).collect();
            let of = |inner| ModelSummary {
                inner,
                format: format.to_owned(),
                layer_formats: Vec::clone(&layer_formats),
                activations: activations.to_owned(),
                ..ModelSummary::default()
            };
            assert_eq!(of(65_536).product_shape(), None);
            of(768).product_shape().unwrap().format
        };
        assert_eq!(format("int8", "int4", &[]), ProductFormat::F16);
        assert_eq!(format("int8", "q4_K+q6_K", &["q4_K+q6_K", "q8_0"]), ProductFormat::F16);
        for floats in ["f32", "f16", "bf16", "bf16+q8_0"] {
            assert_eq!(format("int8", floats, &[]), ProductFormat::F32, "{floats}");
            assert_eq!(format("int8", "int4", &["int4", floats]), ProductFormat::F32, "{floats}");
        }
        assert_eq!(format("int8", "q8_0+bf16", &[]), ProductFormat::F16, "only gate and up give products");
        assert_eq!(format("f32", "int4", &[]), ProductFormat::F32);
        assert_eq!(format("", "int4", &[]), ProductFormat::F32);
    }
}
