//! `MOEX_SIMD` chooses the instructions of a whole program, and no choice changes a bit of what it answers.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use moex_kernels::simd::{SIMD_VARIABLE, Simd};

/// `moex logits` of the tiny model with int8 activations, on these instructions.
fn logits(simd: &str, experts: &str, out: &Path) -> Output {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tiny-qwen3-moe");
    Command::new(env!("CARGO_BIN_EXE_moex"))
        .args(["logits", "--ids", "5,17,300,2,9,44,44,101", "--activations", "int8", "--weights", experts])
        .args(["--experts", experts, "--threads", "2"])
        .args([Path::new("--model"), &model, Path::new("--out"), out])
        .env(SIMD_VARIABLE, simd)
        // Where packed experts go.
        .env("XDG_CACHE_HOME", out.with_file_name("cache"))
        .output()
        .expect("the program starts")
}

#[test]
fn logits_are_the_same_bytes_on_every_instruction_set() {
    let folder = tempfile::tempdir().unwrap();
    for experts in ["int4", "q8_0", "q5_1", "bf16"] {
        let files: Vec<(&str, PathBuf)> = Simd::available()
            .map(|simd| (simd.name(), folder.path().join(format!("{experts}-{simd}.safetensors"))))
            .collect();
        let mut expected = None;
        for (simd, file) in &files {
            let output = logits(simd, experts, file);
            assert!(output.status.success(), "{simd}: {}", String::from_utf8_lossy(&output.stderr));
            let bytes = std::fs::read(file).unwrap();
            assert!(*expected.get_or_insert_with(|| bytes.clone()) == bytes, "{experts}: {simd} differs");
        }
        assert!(files.iter().any(|(simd, _)| *simd == Simd::SCALAR.name()), "the twin is among them");
    }
}

#[test]
fn instructions_that_are_not_there_are_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let output = logits("sse9", "int4", &folder.path().join("out.safetensors"));
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("sse9") && message.contains("scalar"), "{message}");
}
