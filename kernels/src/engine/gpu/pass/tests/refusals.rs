//! What no kernel is there for, in words.

use super::*;

#[test]
fn logits_that_are_capped() {
    let Some(device) = device() else { return };
    let kind = Kind::exact(WeightFormat::F32);
    let mut pass = Pass { recorder: Recorder::default(), seed: 0 };
    let table = Matrix::noise(1, WeightFormat::F32, 4, HIDDEN);
    let table = pass.recorder.matrix(Arc::new(table), Rounding::Never);
    let x = pass.recorder.embed(table);
    let logits = pass.linear(x, "logits", WeightFormat::F32, (4, false));
    pass.recorder.soft_cap(logits, 30.0);
    let processor = Arc::new(Processor::new(Simd::detect(), 1));
    let program = Program::simd(pass.recorder.finish(logits), processor.clone(), None, || {}).unwrap();
    let experts = Packed::new(kind, &processor);
    let refused = GpuPass::new(from_ref(&device), &program, (&experts, ALL), &layout(kind)).unwrap_err();
    assert_eq!(refused, "no kernel is there for capped logits");
}

#[test]
fn keys_and_values_in_f32_or_in_narrow_units() {
    let Some(device) = device() else { return };
    for (kv, head_width, reason) in [
        (KvFormat::F32, 32, "keys and values in f32"),
        (KvFormat::Q8_0, 40, "keys and values of 40 columns in q8_0"),
    ] {
        let kind = Kind { kv, head_width, ..Kind::whole(WeightFormat::F32, WeightFormat::F32) };
        let (program, packed, _) = programs(kind);
        let refused = GpuPass::new(from_ref(&device), &program, (&packed, ALL), &layout(kind)).unwrap_err();
        assert_eq!(refused, format!("no kernel is there for {reason}"));
    }
}
