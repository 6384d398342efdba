//! A GGUF of every family, with the keys, names and values that llama.cpp's converter gives it, made of the folder among the
//! data: it has the folder's spec and its logits, to the bit.

use std::{path::Path, sync::Arc};

use moex_kernels::{WeightFormat, cpu::RopeScaling, nmse};

use crate::{
    checkpoint::{inventory, names},
    families::{Change, Family, GgufForm},
    gguf::{Header, MetaValue, padding},
    gguf_tests::open,
    reference_tests::{Reference, all_logits},
    spec::{Mixer, Scoring, default_scale},
    *,
};

const FAMILIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/families");

/// A tensor as the converter writes it.
struct Written {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// `folder` as a GGUF of this form, its matrices in `format`.
fn export(folder: &Checkpoint, form: &GgufForm, format: WeightFormat) -> Vec<u8> {
    export_with(folder, form, format, Header::default(), None)
}

/// The same, with further keys and a tensor of another name.
fn export_with(
    folder: &Checkpoint,
    form: &GgufForm,
    format: WeightFormat,
    mut header: Header,
    further: Option<&str>,
) -> Vec<u8> {
    let spec = &folder.spec;
    keys(spec, form.architecture, &mut header);
    let mut tensors: Vec<Written> =
        inventory::names(spec).iter().flat_map(|name| written(folder, form, name)).collect();
    if let Some(RopeScaling::Llama3(llama3)) = &spec.cached().rope.scaling {
        tensors.push(llama3_factors(spec, llama3));
    }
    tensors.extend(further.map(|name| Written { name: name.to_owned(), shape: vec![1], values: vec![0.0] }));
    let mut data = Vec::new();
    for Written { name, shape, values } in &tensors {
        let (cols, rows) = (shape[shape.len() - 1], shape[..shape.len() - 1].iter().product());
        let is_small = shape.len() == 1 || name.ends_with(".bias") || name.contains("ssm_conv1d");
        let format = if is_small || name.contains("_inp") { WeightFormat::F32 } else { format };
        header.tensor(name.as_str(), format, shape);
        data.extend(format.quantize(rows, cols, values));
        data.resize(data.len() + padding(data.len()), 0);
    }
    [header.encode(), data].concat()
}

/// What stands for the tensor called `name`.
fn written(folder: &Checkpoint, form: &GgufForm, name: &str) -> Vec<Written> {
    let spec = &folder.spec;
    let (own, _) = names::of_gguf(form, name).unwrap();
    let one = |shape: Vec<usize>, values: Vec<f32>| vec![Written { name: own.clone(), shape, values }];
    if let Some((layer, part)) = name.split_once(".mlp.experts.0.") {
        return experts(folder, &format!("{layer}.mlp.experts"), part, own);
    }
    let stored = folder.tensor(name).unwrap();
    let n: usize = stored.shape.iter().product();
    let checkpoint::Stored::Weights(format) = stored.stored else { panic!("{name}") };
    let mut values = moex_kernels::MatrixView::new(format, 1, n, &stored.bytes).unwrap().dequantize();
    let is_norm = name.ends_with("norm.weight") && !name.contains("linear_attn");
    if is_norm && spec.norm_weights == spec::NormWeights::OnePlus {
        values.iter_mut().for_each(|value| *value += 1.0);
    }
    let Some(names::InLayer { layer, part, suffix, .. }) = names::InLayer::of(name) else {
        return one(stored.shape, values);
    };
    let change = form.change(&part).or_else(|| form.change(&format!("{part}.{suffix}")));
    let (rows, cols) = (stored.shape[0], n / stored.shape[0]);
    let named = |name: &str, shape: &[usize], values: Vec<f32>| Written {
        name: format!("blk.{layer}.{name}.weight"),
        shape: shape.to_vec(),
        values,
    };
    let row = |row: usize| values[row * cols..(row + 1) * cols].iter().copied();
    match change {
        None if name.contains("conv1d") => one(vec![rows, cols], values),
        None => one(stored.shape, values),
        Some(Change::MinusExp) => one(stored.shape, values.iter().map(|value| -value.exp()).collect()),
        Some(Change::PairedRows) => {
            let (width, half) = (spec.cached().head_width, spec.cached().head_width / 2);
            let heads = (0..rows / width)
                .flat_map(|head| (0..half).flat_map(move |i| [head * width + i, head * width + half + i]));
            let values = heads.flat_map(row).collect();
            one(stored.shape, values)
        }
        Some(Change::KeysAndValues([keys, values_of])) => {
            let attention = spec.cached();
            let (own, wide) = (attention.head_width - attention.rope.width, attention.value_width);
            let heads = || (0..attention.n_heads).map(move |head| head * (own + wide));
            let value = |row: usize, col: usize| values[row * cols + col];
            let transposed = heads().flat_map(|first| {
                (0..cols).flat_map(move |col| (0..own).map(move |row| value(first + row, col)))
            });
            let kept = heads().flat_map(|first| (first + own..first + own + wide).flat_map(row));
            vec![
                named(keys, &[attention.n_heads, cols, own], transposed.collect()),
                named(values_of, &[attention.n_heads, wide, cols], kept.collect()),
            ]
        }
        Some(Change::ByKind([qkv, gates])) => {
            let shape = delta_net(spec);
            let (keys, wide) = (shape.key_width, shape.n_value_heads / shape.n_key_heads * shape.value_width);
            let each = 2 * keys + 2 * wide;
            let kind = |start: usize, width: usize| -> Vec<f32> {
                let heads =
                    (0..shape.n_key_heads).flat_map(|head| (0..width).map(move |i| head * each + start + i));
                heads.flat_map(row).collect()
            };
            let (q, k, v) = (kind(0, keys), kind(keys, keys), kind(2 * keys, wide));
            let z = kind(2 * keys + wide, wide);
            vec![
                named(qkv, &[shape.conv_width(), cols], [q, k, v].concat()),
                named(gates, &[z.len() / cols, cols], z),
            ]
        }
    }
}

/// One tensor of all experts.
fn experts(folder: &Checkpoint, layer: &str, part: &str, name: String) -> Vec<Written> {
    let n = folder.spec.moe.n_experts;
    let mut shape = vec![n];
    let mut values = Vec::new();
    for expert in 0..n {
        let expert = folder.expert(&format!("{layer}.{expert}")).unwrap();
        let view = expert.view();
        let (which, suffix) = part.split_once('.').unwrap();
        let at = ["gate_proj", "up_proj", "down_proj"].iter().position(|known| *known == which).unwrap();
        let matrix = match suffix {
            "weight" => [view.gate, view.up, view.down][at],
            _ => view.biases.map(|biases| [biases.gate, biases.up, biases.down]).unwrap()[at],
        };
        shape.truncate(1);
        shape.extend((suffix == "weight").then_some(matrix.rows()));
        shape.push(matrix.cols());
        values.extend(matrix.dequantize());
    }
    vec![Written { name, shape, values }]
}

fn llama3_factors(spec: &ModelSpec, llama3: &moex_kernels::cpu::Llama3) -> Written {
    let rope = &spec.cached().rope;
    let factors: Vec<f32> = (0..rope.width / 2)
        .map(|pair| {
            let frequency = f64::from(rope.theta).powf(-2.0 * pair as f64 / rope.width as f64);
            let wavelength = std::f64::consts::TAU / frequency;
            let turns = llama3.original_max_positions / wavelength;
            let smooth = (turns - llama3.low) / (llama3.high - llama3.low);
            let factor = match smooth {
                below if below < 0.0 => llama3.factor,
                above if above > 1.0 => 1.0,
                smooth => 1.0 / ((1.0 - smooth) / llama3.factor + smooth),
            };
            factor as f32
        })
        .collect();
    Written { name: names::ROPE_FACTORS.to_owned(), shape: vec![factors.len()], values: factors }
}

fn delta_net(spec: &ModelSpec) -> moex_kernels::cpu::DeltaNetShape {
    let shape = spec.layers.iter().find_map(|layer| match layer.mixer {
        Mixer::DeltaNet(shape) => Some(shape),
        Mixer::Attention(_) => None,
    });
    shape.unwrap()
}

/// The keys that the converter writes for a model of this spec, and those that only others write: `attention.scale`,
/// `attention.clamp_kqv`.
fn keys(spec: &ModelSpec, architecture: &str, header: &mut Header) {
    header.key("general.architecture", MetaValue::Text(architecture.to_owned()));
    let mut add = |key: &str, value: MetaValue| {
        header.key(format!("{architecture}.{key}"), value);
    };
    let n = |n: usize| MetaValue::U32(n as u32);
    let last = spec.attentions().last().unwrap();
    let (heads, kv_heads) = (last.n_heads, last.n_kv_heads);
    add("block_count", n(spec.layers.len()));
    add("context_length", n(spec.max_positions));
    add("embedding_length", n(spec.hidden));
    add("feed_forward_length", n(spec.dense_inner));
    add("attention.head_count", n(heads));
    add("attention.layer_norm_rms_epsilon", MetaValue::F32(spec.rms_eps));
    add("rope.freq_base", MetaValue::F32(last.rope.theta));
    add("rope.dimension_count", n(last.rope.width));
    match last.projection {
        spec::Projection::Separate => {
            add("attention.head_count_kv", n(kv_heads));
            add("attention.key_length", n(last.head_width));
            add("attention.value_length", n(last.value_width));
        }
        spec::Projection::Latent { q_rank, kv_rank } => {
            add("attention.head_count_kv", n(1));
            add("attention.key_length", n(kv_rank + last.rope.width));
            add("attention.value_length", n(kv_rank));
            add("attention.key_length_mla", n(last.head_width));
            add("attention.value_length_mla", n(last.value_width));
            add("attention.q_lora_rank", n(q_rank.unwrap()));
            add("attention.kv_lora_rank", n(kv_rank));
            add("leading_dense_block_count", n(spec.sparse_layers().next().unwrap()));
            add("expert_shared_count", n(1));
        }
    }
    if let Some(RopeScaling::Yarn(yarn)) = &last.rope.scaling {
        add("rope.scaling.type", MetaValue::Text("yarn".to_owned()));
        add("rope.scaling.factor", MetaValue::F32(yarn.factor as f32));
        add("rope.scaling.original_context_length", n(yarn.original_max_positions as usize));
        add("rope.scaling.yarn_beta_fast", MetaValue::F32(yarn.beta_fast as f32));
        add("rope.scaling.yarn_beta_slow", MetaValue::F32(yarn.beta_slow as f32));
        if let Some(mscale) = yarn.mscale_all_dim {
            add("rope.scaling.yarn_log_multiplier", MetaValue::F32((0.1 * mscale) as f32));
        }
    }
    if let Some(window) = spec.attentions().find_map(|attention| attention.window) {
        add("attention.sliding_window", n(window));
        add("rope.freq_base_swa", MetaValue::F32(spec.cached().rope.theta));
    }
    if matches!(last.projection, spec::Projection::Separate) && last.scale != default_scale(last.head_width) {
        add("attention.scale", MetaValue::F32(last.scale));
    }
    for (key, value) in [
        ("attn_logit_softcapping", last.score_softcap),
        ("final_logit_softcapping", spec.logit_softcap),
        ("attention.clamp_kqv", last.clip),
    ] {
        value.into_iter().for_each(|value| add(key, MetaValue::F32(value)));
    }
    let moe = &spec.moe;
    if moe.n_experts > 0 {
        add("expert_count", n(moe.n_experts));
        add("expert_used_count", n(moe.n_chosen));
        add("expert_feed_forward_length", n(moe.inner));
    }
    if let (Some(shared), Scoring::Softmax) = (moe.shared, moe.scoring) {
        add("expert_shared_feed_forward_length", n(shared.inner));
    }
    if let Scoring::SigmoidInGroups { n_groups, n_chosen_groups } = moe.scoring {
        add("expert_group_count", n(n_groups));
        add("expert_group_used_count", n(n_chosen_groups));
        add("expert_gating_func", n(2));
        add("expert_weights_scale", MetaValue::F32(moe.gate_scale));
        add("expert_weights_norm", MetaValue::Bool(true));
    }
    if architecture == "qwen3next" {
        let shape = delta_net(spec);
        add("ssm.conv_kernel", n(shape.kernel));
        add("ssm.state_size", n(shape.key_width));
        add("ssm.group_count", n(shape.n_key_heads));
        add("ssm.time_step_rank", n(shape.n_value_heads));
        add("ssm.inner_size", n(shape.n_value_heads * shape.value_width));
        add("full_attention_interval", n(2));
    }
}

fn form_of(model_type: &str) -> &'static GgufForm {
    Family::gguf_forms().find(|(_, form)| form.model_type == model_type).unwrap().1
}

/// The folder, and its GGUF opened.
fn both(family: &str, model_type: &str, format: WeightFormat) -> (Checkpoint, Checkpoint) {
    let folder = Checkpoint::open(&Path::new(FAMILIES).join(family)).unwrap();
    let file = export(&folder, form_of(model_type), format);
    let (_keep, gguf) = open(&file);
    (folder, gguf)
}

/// Checks one family.
fn check(family: &str, model_type: &str) {
    // What mxfp4 decodes to is in bf16 to the bit.
    let format = WeightFormat::Bf16;
    let (folder, gguf) = both(family, model_type, format);
    let mut spec = ModelSpec { eos: folder.spec.eos.clone(), ..gguf.spec.clone() };
    for (ours, folder) in spec.attentions_mut().zip(folder.spec.attentions()) {
        // Llama 3's scaling is a table there.
        if let Some(RopeScaling::Factors(_)) = ours.rope.scaling {
            ours.rope.scaling = folder.rope.scaling.clone();
        }
    }
    assert_eq!(spec, folder.spec, "{family}");
    let reference = Reference::read(&format!("{FAMILIES}/{family}/expected.safetensors"));
    let ids: Vec<u32> = reference.i32("input_ids")[..48].iter().map(|id| *id as u32).collect();
    let run = |checkpoint: &Checkpoint| all_logits(&Arc::new(Model::load(checkpoint).unwrap()), &ids).0;
    let (ours, folder) = (run(&gguf), run(&folder));
    let expected = &reference.f32("logits")[..ours.len()];
    assert!(nmse(&ours, expected) <= 1e-9, "{family}: NMSE {:e}", nmse(&ours, expected));
    // Logarithms of `A_log`'s exponentials, and Llama 3's table, are rounded.
    match family {
        "qwen3-next" | "llama" => assert!(nmse(&ours, &folder) <= 1e-10, "{:e}", nmse(&ours, &folder)),
        _ => assert!(ours == folder, "{family}: NMSE {:e}", nmse(&ours, &folder)),
    }
}

#[test]
fn every_family_is_its_folder() {
    for (family, model_type) in [
        ("qwen3", "qwen3"),
        ("llama", "llama"),
        ("mixtral", "mixtral"),
        ("qwen2-moe", "qwen2_moe"),
        ("olmoe", "olmoe"),
        ("gemma2", "gemma2"),
        ("gemma3", "gemma3_text"),
        ("gpt-oss", "gpt_oss"),
        ("gpt-oss-mxfp4", "gpt_oss"),
        ("deepseek-v3", "deepseek_v3"),
        ("qwen3-next", "qwen3_next"),
    ] {
        check(family, model_type);
    }
}

#[test]
fn quantised_rows_are_put_back_as_they_are() {
    let q8 = WeightFormat::Q8_0;
    for (family, model_type, name, (rows, cols)) in [
        ("llama", "llama", "self_attn.q_proj", (64, 64)),
        ("qwen3-next", "qwen3_next", "linear_attn.in_proj_qkvz", (192, 64)),
    ] {
        let (folder, gguf) = both(family, model_type, q8);
        let name = format!("model.layers.0.{name}.weight");
        let exact = folder.matrix(&name, rows, cols).unwrap().view().dequantize();
        let ours = gguf.matrix(&name, rows, cols).unwrap();
        assert!(ours.view().bytes() == q8.quantize(rows, cols, &exact), "{family}");
    }
}

#[test]
fn what_would_be_computed_wrongly_is_refused() {
    let folder = Checkpoint::open(&Path::new(FAMILIES).join("llama")).unwrap();
    let form = form_of("llama");
    let kept = tempfile::tempdir().unwrap();
    let path = kept.path().join("q.gguf");
    let error = |extra: &[(&str, MetaValue)], tensor: Option<&str>| {
        let mut header = Header::default();
        for (key, value) in extra {
            header.key(*key, value.clone());
        }
        std::fs::write(&path, export_with(&folder, form, WeightFormat::F32, header, tensor)).unwrap();
        Checkpoint::open(&path).err().unwrap().to_string()
    };
    assert_eq!(
        error(&[], Some("blk.0.ffn_gate.bias")),
        "q.gguf holds blk.0.ffn_gate.bias, which is not supported in a GGUF of \"llama\""
    );
    for (key, value, sentence) in [
        ("logit_scale", MetaValue::F32(0.5), "is 0.5, which is not supported for this architecture"),
        ("attention.sliding_window", MetaValue::U32(7), "is 7, which is not supported for this architecture"),
        ("attention.causal", MetaValue::Bool(false), "is false, but only causal models are supported"),
        ("rope.scaling.type", MetaValue::Text("yarn".to_owned()), "is not alone, but there are factors"),
        ("expert_used_count", MetaValue::Text("two".to_owned()), "is \"two\", which is of another type"),
        ("nextn_predict_layers", MetaValue::U32(3), "is 0, not between 1 and 1024"),
    ] {
        let error = error(&[(&format!("llama.{key}"), value)], None);
        assert!(error.starts_with("q.gguf: the field llama.") && error.contains(sentence), "{error}");
    }
}
