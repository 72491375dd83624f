//! The file system of the machine.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::{DirLock, Disk, DiskFile, OpenMode, Space};

/// Files of the machine, by positioned reads and writes.
#[derive(Debug, Default, Clone, Copy)]
pub struct RealDisk;

#[derive(Debug)]
struct RealFile(File);

/// The lock goes when the file is closed, also when the process dies.
#[derive(Debug)]
struct RealLock(#[expect(dead_code, reason = "held for its lock alone")] File);

impl DirLock for RealLock {}

fn named<T>(path: &Path, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(mode != OpenMode::Read);
        match mode {
            OpenMode::Read | OpenMode::Write => {}
            OpenMode::CreateNew => drop(options.create_new(true)),
            OpenMode::Truncate => drop(options.create(true).truncate(true)),
        }
        Ok(Arc::new(RealFile(named(path, options.open(path))?)))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut missing: Vec<&Path> = Vec::new();
        let mut at = Some(path);
        while let Some(dir) = at.filter(|d| !d.as_os_str().is_empty() && !d.exists()) {
            missing.push(dir);
            at = dir.parent();
        }
        named(path, fs::create_dir_all(path))?;
        for made in missing.iter().rev() {
            let above = made
                .parent()
                .filter(|p| !p.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            self.sync_dir(above)?;
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in named(path, fs::read_dir(path))? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        named(from, fs::rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        named(path, fs::remove_file(path))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        named(path, fs::remove_dir_all(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        named(path, File::open(path).and_then(|dir| dir.sync_all()))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        named(path, path.try_exists())
    }

    fn file_len(&self, path: &Path) -> io::Result<u64> {
        Ok(named(path, fs::metadata(path))?.len())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        let file = named(
            path,
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path),
        )?;
        match named(path, fs4::fs_std::FileExt::try_lock_exclusive(&file))? {
            true => {
                // For people only: whoever is refused can say who has it.
                let _ = file
                    .set_len(0)
                    .and_then(|()| file.write_all_at(std::process::id().to_string().as_bytes(), 0));
                Ok(Box::new(RealLock(file)))
            }
            false => Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                format!("{}: another process holds it", path.display()),
            )),
        }
    }

    fn lock_to_read(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        let file = named(path, File::open(path))?;
        match named(path, fs4::fs_std::FileExt::try_lock_exclusive(&file))? {
            true => Ok(Box::new(RealLock(file))),
            false => Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                format!("{}: another process holds it", path.display()),
            )),
        }
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let found = named(path, rustix::fs::statvfs(path).map_err(io::Error::from))?;
        Ok(Space {
            free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
            total_bytes: found.f_blocks.saturating_mul(found.f_frsize),
        })
    }
}

/// How many parts one system call takes; more are written by several calls.
const PARTS_PER_CALL: usize = 512;

/// Writes `parts` with as few calls as the system allows; returns the position behind them.
fn write_parts(file: &File, parts: &[&[u8]], pos: u64) -> io::Result<u64> {
    if let [single] = parts {
        file.write_all_at(single, pos)?;
        return Ok(pos + single.len() as u64);
    }
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest: &mut [IoSlice<'_>] = &mut slices;
    let mut pos = pos;
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match rustix::io::pwritev(file, rest, pos) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                pos += n as u64;
                IoSlice::advance_slices(&mut rest, n);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(pos)
}

impl DiskFile for RealFile {
    fn read_at(&self, buf: &mut [u8], pos: u64) -> io::Result<usize> {
        let mut got = 0;
        while got < buf.len() {
            match self.0.read_at(&mut buf[got..], pos + got as u64) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(got)
    }

    fn write_all_at(&self, parts: &[&[u8]], pos: u64) -> io::Result<()> {
        let mut pos = pos;
        for some in parts.chunks(PARTS_PER_CALL) {
            pos = write_parts(&self.0, some, pos)?;
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn drop_cached(&self) -> io::Result<()> {
        let whole = rustix::fs::fadvise(&self.0, 0, None, rustix::fs::Advice::DontNeed);
        whole.map_err(io::Error::from)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        Ok(fallocate(&self.0, FallocateFlags::empty(), 0, len)?)
    }
}
