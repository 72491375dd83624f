//! Memory and open files of this process, as the kernel tells; nothing where it doesn't.

/// Bytes of memory that the process holds.
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Open file descriptors.
pub fn open_files() -> Option<u64> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count();
    u64::try_from(open).ok()
}

/// How many files it may open; `None`: no limit.
pub fn max_open_files() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}
