//! A disk in memory that forgets what was not synced.
//!
//! # What does it model?
//!
//! * A file has its contents as the running system sees them and a durable state; writes and cuts are pending between the
//!   two until the file is synced. A sync of one file says nothing of another.
//! * A directory's names are durable after `sync_dir` of that directory. Changes of names are kept in order: after a crash
//!   a prefix of them is there, as on a journalling file system. Making a directory is durable at once.
//! * [`SimDisk::crash`] is a power cut: [`Loss`] says what happens to what was pending. Handles and locks from before are
//!   dead, every call on them fails.
//! * [`SimDisk::power_off_at`] makes every change from the n-th on fail, so that a test can stop a program between any two
//!   of them. Reads go on: a dead machine's reads tell nobody anything.
//!
//! Everything is kept in ordered maps and drawn from the caller's seed: the same calls give the same disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{DirLock, Disk, DiskFile, OpenMode, Space};

/// What a power cut does to changes that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// All of them are gone.
    DropAll,
    /// Any of them may have reached the disk, each by itself.
    KeepSome,
    /// As `KeepSome`, and a write may have reached it in part, by sectors.
    Tear,
    /// All of them reached the disk: the process died, the machine did not.
    KeepAll,
}

/// The kinds of calls that a fault hook sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// `open`, in a mode that makes or empties the file.
    Create,
    /// `open` of what is there.
    Open,
    /// `file_len`: the length alone, without opening.
    Stat,
    /// A positioned read.
    Read,
    /// A positioned write.
    Write,
    /// `set_len`.
    SetLen,
    /// `sync_data` or `sync_all`.
    Sync,
    /// `rename`; the path is the old one.
    Rename,
    /// `remove_file` or `remove_dir_all`.
    Remove,
    /// `sync_dir`.
    SyncDir,
}

impl Call {
    fn is_change(self) -> bool {
        !matches!(self, Self::Open | Self::Stat | Self::Read)
    }
}

/// Decides whether a call fails.
pub type FaultHook = Box<dyn FnMut(Call, &Path) -> Option<io::Error> + Send>;

/// The disk; clones are the same disk.
#[derive(Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimDisk")
    }
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<u64, Node>,
    next_node: u64,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    pending_names: Vec<NameChange>,
    dirs: BTreeSet<PathBuf>,
    locks: BTreeSet<PathBuf>,
    boots: u64,
    changes: u64,
    power_off_at: Option<u64>,
    syncs: BTreeMap<PathBuf, u64>,
    fault: Option<FaultHook>,
    lies: bool,
    open_files: usize,
    space: Option<Space>,
}

#[derive(Default)]
struct Node {
    path: PathBuf,
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
    /// Room taken up without contents.
    allocated: u64,
}

#[derive(Clone)]
enum Change {
    Write { pos: usize, bytes: Vec<u8> },
    SetLen(usize),
}

#[derive(Clone)]
enum NameChange {
    Set(PathBuf, u64),
    Rename(PathBuf, PathBuf),
    RenameTree(PathBuf, PathBuf),
    Remove(PathBuf),
    RemoveTree(PathBuf),
}

impl NameChange {
    fn touches(&self, dir: &Path) -> bool {
        match self {
            Self::Set(path, _) | Self::Remove(path) | Self::RemoveTree(path) => {
                path.parent() == Some(dir)
            }
            Self::Rename(from, to) | Self::RenameTree(from, to) => {
                from.parent() == Some(dir) || to.parent() == Some(dir)
            }
        }
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            Self::Set(path, node) => drop(names.insert(path.clone(), *node)),
            Self::Remove(path) => drop(names.remove(path)),
            Self::RemoveTree(dir) => names.retain(|path, _| !path.starts_with(dir)),
            Self::Rename(from, to) => {
                if let Some(node) = names.remove(from) {
                    names.insert(to.clone(), node);
                }
            }
            Self::RenameTree(from, to) => {
                let moved = std::mem::take(names).into_iter().map(|(path, node)| {
                    let below = path.strip_prefix(from).map(|rest| to.join(rest));
                    (below.unwrap_or(path), node)
                });
                *names = moved.collect();
            }
        }
    }
}

const SECTOR: usize = 512;

fn apply_change(contents: &mut Vec<u8>, change: &Change) {
    match change {
        Change::SetLen(len) => contents.resize(*len, 0),
        Change::Write { pos, bytes } => {
            let end = pos + bytes.len();
            if contents.len() < end {
                contents.resize(end, 0);
            }
            contents[*pos..end].copy_from_slice(bytes);
        }
    }
}

/// A small generator of its own, so that a seed gives the same crash for ever.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    /// Below `bound`, which is not zero.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap_or(0)
    }
}

fn survivors(pending: &[Change], loss: Loss, draw: &mut Draw) -> Vec<Change> {
    match loss {
        Loss::DropAll => Vec::new(),
        Loss::KeepAll => pending.to_vec(),
        Loss::KeepSome => pending.iter().filter(|_| draw.coin()).cloned().collect(),
        Loss::Tear => pending
            .iter()
            .flat_map(|change| tear(change, draw))
            .collect(),
    }
}

/// What is left of one change: all, nothing, or some sectors of a write.
fn tear(change: &Change, draw: &mut Draw) -> Vec<Change> {
    match (draw.below(3), change) {
        (0, _) => Vec::new(),
        (1, Change::Write { pos, bytes }) => sectors(*pos, bytes)
            .into_iter()
            .filter(|_| draw.coin())
            .collect(),
        (_, whole) => vec![whole.clone()],
    }
}

fn sectors(pos: usize, bytes: &[u8]) -> Vec<Change> {
    let mut parts = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let end = bytes.len().min(at + SECTOR - (pos + at) % SECTOR);
        parts.push(Change::Write {
            pos: pos + at,
            bytes: bytes[at..end].to_vec(),
        });
        at = end;
    }
    parts
}

impl State {
    fn enter(&mut self, call: Call, path: &Path) -> io::Result<()> {
        if call.is_change() {
            self.changes += 1;
            if self.power_off_at.is_some_and(|at| self.changes >= at) {
                return Err(io::Error::other("the power is off"));
            }
        }
        match self.fault.as_mut().and_then(|hook| hook(call, path)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.pending_names.push(change);
    }

    fn node(&mut self, id: u64) -> io::Result<&mut Node> {
        self.nodes
            .get_mut(&id)
            .ok_or_else(|| io::Error::other("the file is gone"))
    }

    fn cut_power(&mut self, loss: Loss, draw: &mut Draw) {
        let kept = match loss {
            Loss::DropAll => 0,
            Loss::KeepAll => self.pending_names.len(),
            Loss::KeepSome | Loss::Tear => draw.below(self.pending_names.len() + 1),
        };
        let pending = std::mem::take(&mut self.pending_names);
        for change in &pending[..kept] {
            change.apply(&mut self.durable_names);
        }
        self.names = self.durable_names.clone();
        for path in self.names.keys() {
            self.dirs
                .extend(path.ancestors().skip(1).map(Path::to_owned));
        }
        for node in self.nodes.values_mut() {
            for change in survivors(&node.pending, loss, draw) {
                apply_change(&mut node.durable, &change);
            }
            node.pending.clear();
            node.now = node.durable.clone();
        }
        let reachable: BTreeSet<u64> = self.names.values().copied().collect();
        self.nodes.retain(|id, _| reachable.contains(id));
        self.locks.clear();
        self.power_off_at = None;
        self.boots += 1;
    }
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("{}: not found", path.display()),
    )
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// A power cut and the machine's return. Files and locks that were open are dead.
    pub fn crash(&self, seed: u64, loss: Loss) {
        self.state.lock().cut_power(loss, &mut Draw(seed));
    }

    /// How many changes (creates, writes, cuts, syncs, renames, removals) were asked for so far.
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// From the `n`-th change on, counted as by [`SimDisk::changes`], every change fails until [`SimDisk::crash`].
    pub fn power_off_at(&self, n: u64) {
        self.state.lock().power_off_at = Some(n);
    }

    /// Lets `hook` decide on each call whether it fails.
    pub fn set_fault(&self, hook: Option<FaultHook>) {
        self.state.lock().fault = hook;
    }

    /// How often this file or directory was synced.
    pub fn syncs(&self, path: &Path) -> u64 {
        self.state.lock().syncs.get(path).copied().unwrap_or(0)
    }

    /// How many files are held open.
    pub fn open_files(&self) -> usize {
        self.state.lock().open_files
    }

    /// A disk that lies: syncs succeed and make nothing durable. For positive controls.
    pub fn ignore_syncs(&self, lies: bool) {
        self.state.lock().lies = lies;
    }

    /// What [`Disk::space`] says from now on. Writes fail for want of room only if a fault hook makes them.
    pub fn set_space(&self, space: Space) {
        self.state.lock().space = Some(space);
    }

    /// The contents that a power cut now would leave, if every unsynced change were lost.
    pub fn durable_contents(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut state = self.state.lock();
        let id = *state
            .durable_names
            .get(path)
            .ok_or_else(|| not_found(path))?;
        Ok(state.node(id)?.durable.clone())
    }

    /// Flips all bits of one byte, on the medium and in the cache.
    pub fn rot(&self, path: &Path, pos: u64) -> io::Result<()> {
        self.rewrite(path, |bytes| {
            let byte = usize::try_from(pos).ok().and_then(|pos| bytes.get_mut(pos));
            if let Some(byte) = byte {
                *byte = !*byte;
            }
        })
    }

    /// Changes a file's contents behind everybody's back, on the medium and in the cache.
    pub fn rewrite(&self, path: &Path, change: impl Fn(&mut Vec<u8>)) -> io::Result<()> {
        let mut state = self.state.lock();
        let id = *state.names.get(path).ok_or_else(|| not_found(path))?;
        let node = state.node(id)?;
        change(&mut node.now);
        change(&mut node.durable);
        Ok(())
    }

    /// The contents as the running system sees them.
    pub fn contents(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut state = self.state.lock();
        let id = *state.names.get(path).ok_or_else(|| not_found(path))?;
        Ok(state.node(id)?.now.clone())
    }

    /// All files.
    pub fn files(&self) -> Vec<PathBuf> {
        self.state.lock().names.keys().cloned().collect()
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state.lock();
        let makes = matches!(mode, OpenMode::CreateNew | OpenMode::Truncate);
        state.enter(if makes { Call::Create } else { Call::Open }, path)?;
        let there = state.names.get(path).copied();
        let node = match (there, mode) {
            (Some(_), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (None, OpenMode::Read | OpenMode::Write) => return Err(not_found(path)),
            (Some(node), OpenMode::Truncate) => {
                let file = state.node(node)?;
                file.now.clear();
                file.pending.push(Change::SetLen(0));
                node
            }
            (Some(node), _) => node,
            (None, _) => {
                if !path.parent().is_some_and(|dir| state.dirs.contains(dir)) {
                    return Err(not_found(path));
                }
                let node = state.next_node;
                state.next_node += 1;
                state.nodes.insert(
                    node,
                    Node {
                        path: path.to_owned(),
                        ..Node::default()
                    },
                );
                state.change_name(NameChange::Set(path.to_owned(), node));
                node
            }
        };
        state.open_files += 1;
        Ok(Arc::new(SimFile {
            disk: self.clone(),
            node,
            boot: state.boots,
        }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut at = Some(path);
        while let Some(dir) = at {
            state.dirs.insert(dir.to_owned());
            at = dir.parent();
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut state = self.state.lock();
        state.enter(Call::Open, path)?;
        if !state.dirs.contains(path) {
            return Err(not_found(path));
        }
        let all = state
            .names
            .keys()
            .chain(state.dirs.iter())
            .filter(|p| p.parent() == Some(path));
        let names: BTreeSet<String> = all
            .filter_map(|p| p.file_name())
            .map(|n| n.to_string_lossy().into_owned())
            .collect();
        Ok(names.into_iter().collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.enter(Call::Rename, from)?;
        if let Some(node) = state.names.get(from).copied() {
            state.change_name(NameChange::Rename(from.to_owned(), to.to_owned()));
            state.node(node)?.path = to.to_owned();
            return Ok(());
        }
        if !state.dirs.remove(from) {
            return Err(not_found(from));
        }
        state.dirs.insert(to.to_owned());
        state.change_name(NameChange::RenameTree(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.enter(Call::Remove, path)?;
        if !state.names.contains_key(path) {
            return Err(not_found(path));
        }
        state.change_name(NameChange::Remove(path.to_owned()));
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.enter(Call::Remove, path)?;
        state.change_name(NameChange::RemoveTree(path.to_owned()));
        state.dirs.retain(|dir| !dir.starts_with(path));
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.enter(Call::SyncDir, path)?;
        *state.syncs.entry(path.to_owned()).or_default() += 1;
        if state.lies {
            return Ok(());
        }
        let pending = std::mem::take(&mut state.pending_names);
        let (done, left): (Vec<_>, Vec<_>) =
            pending.into_iter().partition(|change| change.touches(path));
        for change in &done {
            change.apply(&mut state.durable_names);
        }
        state.pending_names = left;
        Ok(())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let mut state = self.state.lock();
        state.enter(Call::Open, path)?;
        Ok(state.names.contains_key(path) || state.dirs.contains(path))
    }

    fn file_len(&self, path: &Path) -> io::Result<u64> {
        let mut state = self.state.lock();
        state.enter(Call::Stat, path)?;
        let id = *state.names.get(path).ok_or_else(|| not_found(path))?;
        Ok(state.node(id)?.now.len() as u64)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        let mut state = self.state.lock();
        if !state.locks.insert(path.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(SimLock {
            disk: self.clone(),
            path: path.to_owned(),
            boot: state.boots,
        }))
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let mut state = self.state.lock();
        state.enter(Call::Open, path)?;
        Ok(state.space.unwrap_or(Space {
            free_bytes: 1 << 40,
            total_bytes: 1 << 40,
        }))
    }
}

#[derive(Debug)]
struct SimLock {
    disk: SimDisk,
    path: PathBuf,
    boot: u64,
}

impl DirLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.disk.state.lock();
        if state.boots == self.boot {
            state.locks.remove(&self.path);
        }
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    node: u64,
    boot: u64,
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut state = self.disk.state.lock();
        state.open_files = state.open_files.saturating_sub(1);
    }
}

impl SimFile {
    fn with<T>(&self, call: Call, act: impl FnOnce(&mut Node) -> T) -> io::Result<T> {
        let mut state = self.disk.state.lock();
        if state.boots != self.boot {
            return Err(io::Error::other("opened before the power cut"));
        }
        let path = state.node(self.node)?.path.clone();
        state.enter(call, &path)?;
        if call == Call::Sync {
            *state.syncs.entry(path).or_default() += 1;
        }
        Ok(act(state.node(self.node)?))
    }

    fn sync(&self) -> io::Result<()> {
        let lies = self.disk.state.lock().lies;
        self.with(Call::Sync, |node| {
            if lies {
                return;
            }
            for change in node.pending.drain(..) {
                apply_change(&mut node.durable, &change);
            }
        })
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buf: &mut [u8], pos: u64) -> io::Result<usize> {
        let pos = usize::try_from(pos).map_err(io::Error::other)?;
        self.with(Call::Read, |node| {
            let there = node.now.get(pos..).unwrap_or_default();
            let n = there.len().min(buf.len());
            buf[..n].copy_from_slice(&there[..n]);
            n
        })
    }

    fn write_all_at(&self, parts: &[&[u8]], pos: u64) -> io::Result<()> {
        let pos = usize::try_from(pos).map_err(io::Error::other)?;
        let change = Change::Write {
            pos,
            bytes: parts.concat(),
        };
        self.with(Call::Write, |node| {
            apply_change(&mut node.now, &change);
            node.pending.push(change);
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        self.with(Call::SetLen, |node| {
            apply_change(&mut node.now, &Change::SetLen(len));
            node.pending.push(Change::SetLen(len));
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.with(Call::Read, |node| node.allocated.max(node.now.len() as u64))
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.with(Call::SetLen, |node| node.allocated = len)
    }
}
