//! The files of the demo model, inside the binary.

pub(super) const NAME: &str = "moex-demo";
pub(super) const CONFIG: &[u8] = include_bytes!("../../demo-model/config.json");
pub(super) const GENERATION_CONFIG: &[u8] = include_bytes!("../../demo-model/generation_config.json");
pub(super) const TOKENIZER: &[u8] = include_bytes!("../../demo-model/tokenizer.json");
pub(super) const TOKENIZER_CONFIG: &[u8] = include_bytes!("../../demo-model/tokenizer_config.json");
pub(super) const SHARDS: [(&str, &[u8]); 2] = [
    ("model-00001-of-00002.safetensors", include_bytes!("../../demo-model/model-00001-of-00002.safetensors")),
    ("model-00002-of-00002.safetensors", include_bytes!("../../demo-model/model-00002-of-00002.safetensors")),
];
