//! Opens this machine's GPUs, and names those of a pass.

use anyhow::ensure;
use moex_kernels::engine::{GpuDevice, GpuPass, GpuSelect};

/// GPUs that are alike, `wished` of them, or all there are. If they are asked for, they may share the processor's memory, or be one
/// made of software, which stands for as many as are wished for.
///
/// # Errors
/// If there are none, or fewer than wished for.
pub(super) fn open(wished: Option<usize>, is_asked_for: bool) -> anyhow::Result<Vec<GpuDevice>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let open = |select, most| runtime.block_on(GpuDevice::open_all(select, most));
    let gpus = match open(GpuSelect::Auto, wished.unwrap_or(usize::MAX)) {
        Err(_) if is_asked_for => open(GpuSelect::Software, wished.unwrap_or(1))?,
        opened => opened?,
    };
    let info = gpus[0].info();
    ensure!(
        is_asked_for || info.discrete,
        "{} shares its memory with the CPU (`--device gpu` takes it)",
        info.adapter
    );
    if let Some(wished) = wished {
        ensure!(
            gpus.len() == wished,
            "--gpus {wished} asks for more GPUs like {} than the {} of this machine: ask for fewer, or leave it out",
            info.adapter,
            gpus.len()
        );
    }
    Ok(gpus)
}

/// The GPUs of a pass, with their layers if there are several.
pub(super) fn names(pass: &GpuPass) -> String {
    let mut first = 0;
    let mut devices: Vec<(String, usize)> = Vec::new();
    for (device, n_layers) in pass.devices() {
        let info = device.info();
        devices.push((format!("{} ({})", info.adapter, info.backend), n_layers));
    }
    if let [(name, _)] = &devices[..] {
        return format!("the GPU {name}");
    }
    let mut name = |(name, n_layers): &(String, usize)| {
        let last = first + n_layers - 1;
        let layers =
            if first == last { format!("layer {first}") } else { format!("layers {first} to {last}") };
        first = last + 1;
        format!("{name} with {layers}")
    };
    let names: Vec<String> = devices.iter().map(&mut name).collect();
    format!("{} GPUs, {}", names.len(), names.join(", "))
}
