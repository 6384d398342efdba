//! Which forward passes a GPU runs: those of plain attention, MLPs with SiLU, and experts chosen by a softmax. Others are refused
//! in words.

use super::request::MAX_ROPES;
use crate::{
    ExpertKind,
    cpu::RopePlace,
    graph::{Heads, KvLayout, Op, PackedExperts, Program, RouterKind},
    quant::UNIT,
    simd::KvFormat,
};

/// The most experts of a layer, `MOST_EXPERTS` in `shader/shared/chosen.wgsl`.
const MAX_EXPERTS: usize = 1024;
/// The most experts of a row, as many as `shader/shared/choose.wgsl` has places for.
const MAX_CHOSEN: usize = 64;
/// The widest head, as `shader/shared/heads.wgsl` has room for.
const MAX_HEAD_WIDTH: usize = 256;

/// Why a GPU does not run `program` with these experts, and keys and values as `layout` says; none if it does.
pub(super) fn unsupported(
    program: &Program,
    experts: &dyn PackedExperts,
    layout: &KvLayout,
) -> Option<String> {
    if program.graph.ropes.len() > MAX_ROPES {
        return Some(format!("more than {MAX_ROPES} kinds of rotations"));
    }
    let mut embedded = None;
    program.ops().iter().find_map(|op| {
        if let Op::Embed { out, .. } = op {
            embedded = Some(*out);
        }
        let what = match op {
            Op::Embed { out, .. } => {
                let width = program.graph.width(*out);
                return (!width.is_multiple_of(4)).then(|| format!("rows of {width} columns"));
            }
            Op::Norm { .. }
            | Op::Linear { .. }
            | Op::Linears { .. }
            | Op::Mlp { .. }
            | Op::Add { .. }
            | Op::AddNorm { .. }
            | Op::KeepWanted { .. }
            | Op::Done(_) => return None,
            Op::Scale { x, .. } if Some(*x) == embedded => return None,
            Op::HeadsToCache { q, k, .. } => {
                return [q, k].into_iter().find_map(|heads| unsupported_heads(program, heads, layout));
            }
            Op::Attend { attention, .. } => {
                let is_plain =
                    attention.softcap.is_none() && attention.window.is_none() && attention.sinks.is_none();
                return (!is_plain).then(|| "attention with windows, caps or sinks".to_owned());
            }
            Op::Route { logits, n_chosen, router: RouterKind::Softmax, .. } => {
                let n = program.graph.width(*logits);
                let fits = n <= MAX_EXPERTS && *n_chosen <= MAX_CHOSEN;
                return (!fits).then(|| format!("{n_chosen} of {n} experts"));
            }
            Op::Route { .. } => "experts chosen in groups",
            Op::Experts { layer, .. } => match experts.shape(*layer) {
                Some(shape) if shape.format.kind == ExpertKind::Silu => return None,
                _ => "experts with clamped activations",
            },
            Op::NormInPlace { .. } => "norms of whole rows of heads, or behind a layer's halves",
            Op::Rope { .. } | Op::CacheWrite { .. } => "heads that are changed between projection and cache",
            Op::Scale { .. } | Op::Clip { .. } => "scaled or clipped values",
            Op::DeltaNet { .. } => "gated delta nets",
            Op::CopyColumns { .. } | Op::Zero { .. } => "latent attention, or gated heads",
            Op::Activate { .. } => "MLPs with GELU, or with biases",
            Op::SigmoidMul { .. } => "gated values",
            Op::SoftCap { .. } => "capped logits",
        };
        Some(what.to_owned())
    })
}

fn unsupported_heads(program: &Program, heads: &Heads, layout: &KvLayout) -> Option<String> {
    let width = heads.head_width;
    let half = program.graph.ropes[heads.rope.0 as usize].half();
    if width > MAX_HEAD_WIDTH || !width.is_multiple_of(8) {
        return Some(format!("heads of {width} columns"));
    }
    match layout.packed {
        Some(KvFormat::F16) => {}
        Some(KvFormat::Q8_0) if width.is_multiple_of(UNIT) => {}
        Some(KvFormat::Q8_0) => return Some(format!("keys and values of {width} columns in q8_0")),
        None | Some(KvFormat::F32) => return Some("keys and values in f32".to_owned()),
    }
    if heads.columns.1 == RopePlace::Last && 2 * half != width {
        return Some("heads whose last columns are rotated".to_owned());
    }
    match heads.norm {
        Some((weight, _)) if program.graph.vector(weight).len() != width => {
            Some("norms of whole rows of heads".to_owned())
        }
        _ => None,
    }
}
