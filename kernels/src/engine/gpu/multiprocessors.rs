//! How many multiprocessors a graphics card has, as its driver says.

use super::device::GpuDevice;

impl GpuDevice {
    /// Its multiprocessors (`VK_NV_shader_sm_builtins`). None where the driver does not say.
    #[cfg(any(target_os = "linux", windows))]
    pub(super) fn n_multiprocessors(&self) -> Option<u32> {
        use ash::vk;

        // SAFETY: the device is only asked, and not destroyed.
        let device = unsafe { self.wgpu().as_hal::<wgpu::hal::api::Vulkan>() }?;
        let shared = device.shared_instance();
        if shared.instance_api_version() < vk::API_VERSION_1_1 {
            return None;
        }
        let (instance, physical) = (shared.raw_instance(), device.raw_physical_device());
        // SAFETY: the physical device is the instance's.
        let extensions = unsafe { instance.enumerate_device_extension_properties(physical) }.ok()?;
        let name = Ok(ash::nv::shader_sm_builtins::NAME);
        extensions.iter().find(|extension| extension.extension_name_as_c_str() == name)?;
        let mut builtins = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut builtins);
        // SAFETY: as above, and what is written to has the types that their tags say.
        unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
        Some(builtins.shader_sm_count).filter(|n| *n > 0)
    }

    /// Its multiprocessors, where the driver says.
    #[cfg(not(any(target_os = "linux", windows)))]
    pub(super) fn n_multiprocessors(&self) -> Option<u32> {
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::gpu::tests::device;

    #[test]
    fn a_card_has_some_and_software_says_nothing() {
        let Some(device) = device() else { return };
        let said = device.n_multiprocessors();
        println!("{}: {said:?} multiprocessors", device.info().adapter);
        assert!(said.is_none_or(|n| !device.info().software && n < 10_000), "{said:?}");
    }
}
