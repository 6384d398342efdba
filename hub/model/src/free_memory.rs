//! How much memory the system has for this process.

use std::path::Path;

use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// Memory available to this process without swapping, within its limits; none if the system does not report it.
pub fn free_bytes() -> Option<usize> {
    let ram = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(ram).ok()?;
    // Of macOS, what counts as available includes what programs use.
    let unused = system.total_memory().checked_sub(system.used_memory()).filter(|free| *free > 0)?;
    let machine = usize::try_from(unused).ok()?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(machine.min(free_in_groups(Path::new("/sys/fs/cgroup"), &groups).unwrap_or(usize::MAX)))
}

/// Memory that control groups leave to a process: `groups` is its `/proc/self/cgroup`, and `root` their mount point.
fn free_in_groups(root: &Path, groups: &str) -> Option<usize> {
    let mut least = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, files) = match controllers {
            "" => (root.to_owned(), ["memory.max", "memory.current", ""]),
            list if list.split(',').any(|name| name == "memory") => {
                (root.join("memory"), ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_"])
            }
            _ => continue,
        };
        // Limits of parent groups apply too. In a container the path may be the host's; then the root is its own.
        let mut folder = root.join(path.trim_start_matches('/'));
        loop {
            least = [least, free_in_group(&folder, files)].into_iter().flatten().min();
            if folder == root || !folder.pop() {
                break;
            }
        }
    }
    least
}

/// Memory that one group leaves: its limit minus its use, without reclaimable file pages.
fn free_in_group(folder: &Path, [limit, used, prefix]: [&str; 3]) -> Option<usize> {
    let number = |file: &str| std::fs::read_to_string(folder.join(file)).ok()?.trim().parse::<usize>().ok();
    let limit = number(limit)?; // "max" is none
    let used = number(used)?;
    let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let files = ["inactive_file", "active_file"].map(|name| {
        let name = format!("{prefix}{name} ");
        stat.lines().find_map(|line| line.strip_prefix(&name)?.trim().parse::<usize>().ok()).unwrap_or(0)
    });
    Some(limit.saturating_sub(used.saturating_sub(files[0] + files[1])))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Other programs take and return memory meanwhile.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_free_is_about_what_the_kernel_says() {
        let said = fs::read_to_string("/proc/meminfo").unwrap();
        let line = said.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
        let kib: usize = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        let available = 1024 * kib;
        let free = free_bytes().unwrap();
        assert!(free < available * 3 / 2, "{free} of {available}");
        let is_limited = fs::read_to_string("/proc/self/cgroup")
            .is_ok_and(|groups| free_in_groups(Path::new("/sys/fs/cgroup"), &groups).is_some());
        assert!(is_limited || free > available / 2, "{free} of {available}");
    }

    #[test]
    fn limits_of_control_groups_count_in_both_versions_and_from_every_level() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(free_in_groups(root.path(), "0::/a/b"), None);
        put("a/b/memory.max", "max\n");
        put("a/b/memory.current", "100\n");
        assert_eq!(free_in_groups(root.path(), "0::/a/b"), None, "no limit");
        put("a/memory.max", "1000\n");
        put("a/memory.current", "700\n");
        put("a/memory.stat", "anon 400\ninactive_file 50\nactive_file 250\n");
        assert_eq!(free_in_groups(root.path(), "0::/a/b"), Some(600), "files can be read again");
        put("memory/memory.limit_in_bytes", "900\n");
        put("memory/memory.usage_in_bytes", "500\n");
        let both = "4:cpu,memory:/of/the/host\n0::/a/b\n";
        assert_eq!(free_in_groups(root.path(), both), Some(400), "the smallest counts");
    }
}
