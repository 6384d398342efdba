//! How much of a graphics card's own memory is free, as its driver says.

use super::device::GpuDevice;

impl GpuDevice {
    /// Bytes of the device's own memory that this process may still take (`VK_EXT_memory_budget`). None where its memory is the
    /// processor's, or the driver does not say.
    pub fn free_bytes(&self) -> Option<u64> {
        if self.info().discrete { free_bytes(self.wgpu()) } else { None }
    }
}

#[cfg(any(target_os = "linux", windows))]
fn free_bytes(device: &wgpu::Device) -> Option<u64> {
    use ash::vk;

    // SAFETY: the device is only asked, and not destroyed.
    let device = unsafe { device.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = device.shared_instance();
    let says = device.enabled_device_extensions().contains(&ash::ext::memory_budget::NAME);
    if !says || instance.instance_api_version() < vk::API_VERSION_1_1 {
        return None;
    }
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut memory = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
    let (instance, physical) = (instance.raw_instance(), device.raw_physical_device());
    // SAFETY: the physical device is the instance's, and what is written to has the types that their tags say.
    unsafe { instance.get_physical_device_memory_properties2(physical, &mut memory) };
    let memory = memory.memory_properties;
    let of_heaps = budget.heap_budget.into_iter().zip(budget.heap_usage);
    memory.memory_heaps[..memory.memory_heap_count as usize]
        .iter()
        .zip(of_heaps)
        .filter(|(heap, _)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
        .map(|(_, (budget, used))| budget.saturating_sub(used))
        .max()
        .filter(|free| *free > 0)
}

#[cfg(not(any(target_os = "linux", windows)))]
fn free_bytes(_: &wgpu::Device) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::gpu::tests::device;

    /// One of software has the processor's, whatever its driver says.
    #[test]
    fn only_a_card_has_memory_of_its_own() {
        let Some(device) = device() else { return };
        let said = free_bytes(device.wgpu());
        assert_eq!(device.free_bytes(), said.filter(|_| device.info().discrete));
        println!("{}: {said:?} bytes are free", device.info().adapter);
        assert!(said.is_none_or(|free| free > 64 << 20), "{said:?}");
    }
}
