//! What lies beside the groups: identity, formation, state log, meta store, quarantine, and what belongs to nobody.

use std::path::Path;

use bytes::Bytes;

use super::{
    Checker, FORMATION, Failed, Fix, GROUPS, Item, QUARANTINE, RESERVE, STATE, SUSPECT, Verdict,
    group_id,
};
use crate::identity;
use crate::meta::number_of as meta_number;
use crate::offline::small;
use crate::statelog::open::{COPIES, Examined, examine};
use crate::statelog::{NodeState, Record};

/// What a person is told to do about a file that nothing else has a copy of.
const RESTORE: &str = "restore it from a copy of this directory; without one, give this node an empty directory and a new \
                       node id";

const ASK_A_SEED: &str = "nothing: the next start asks a seed for it";

impl Checker<'_> {
    /// A whole data directory.
    pub(super) fn everything(&mut self) -> Result<(), Failed> {
        let names = self.list(self.data)?;
        let has = |name: &str| names.iter().any(|there| there == name);
        let used = has(STATE) || has(GROUPS);
        let in_cluster = self.identity(used)?;
        self.formation(in_cluster)?;
        let state = if has(STATE) || used || in_cluster {
            self.state_log()?
        } else {
            None
        };
        if has(GROUPS) {
            self.groups(state.as_ref())?;
        }
        if let Some(state) = &state {
            self.groups_without_directory(state)?;
        }
        self.meta()?;
        if has(QUARANTINE) {
            self.quarantine()?;
        }
        self.suspect()?;
        self.strangers(&names);
        Ok(())
    }

    /// The marker of a run that ended because the disk failed.
    fn suspect(&mut self) -> Result<(), Failed> {
        let path = self.data.join(SUSPECT);
        if !self.exists(&path)? {
            return Ok(());
        }
        let read = small::read_small(self.disk, &path).map_err(|e| e.to_string());
        let decoded = read.and_then(|bytes| small::suspect(bytes).map_err(|e| e.to_string()));
        let found = match decoded {
            Ok(fields) => fields
                .iter()
                .map(|(name, field)| format!("{name} {field}"))
                .collect::<Vec<_>>()
                .join(", "),
            Err(error) => format!("can't be read, so every group counts as suspect: {error}"),
        };
        let item = Item::new("suspect", None, &path, Verdict::Note, found);
        self.push(
            item.todo(
                "nothing: it goes once leaders have brought these groups past their old ends",
            ),
        );
        Ok(())
    }

    pub(super) fn list(&self, dir: &Path) -> Result<Vec<String>, Failed> {
        self.disk.list(dir).map_err(|e| (dir.to_owned(), e))
    }

    pub(super) fn exists(&self, path: &Path) -> Result<bool, Failed> {
        self.disk.exists(path).map_err(|e| (path.to_owned(), e))
    }

    pub(super) fn push(&mut self, item: Item) {
        self.items.push(item);
    }

    /// A small file, or `None` if it is not there. One that can't be read is an item.
    fn small(&mut self, area: &'static str, name: &str) -> Result<Option<Bytes>, Failed> {
        let path = self.data.join(name);
        if !self.exists(&path)? {
            return Ok(None);
        }
        match small::read_small(self.disk, &path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => {
                let found = format!("can't be read: {error}");
                self.push(Item::new(area, None, &path, Verdict::Damaged, found).todo(RESTORE));
                Ok(None)
            }
        }
    }

    /// Says whether the node belongs to a cluster.
    fn identity(&mut self, used: bool) -> Result<bool, Failed> {
        let path = self.data.join(identity::FILE_NAME);
        let there = self.exists(&path)?;
        let Some(bytes) = self.small("identity", identity::FILE_NAME)? else {
            if used && !there {
                let found = "missing, but there is data";
                let item = Item::new("identity", None, &path, Verdict::Damaged, found);
                self.push(item.todo(RESTORE));
            }
            return Ok(used);
        };
        let decoded = imprint_proto::envelope::decode_checked::<identity::Identity>(bytes);
        match decoded {
            Ok(id) => {
                let found = format!("node {}, start {}", id.node_id.0, id.incarnation);
                self.push(Item::new("identity", None, &path, Verdict::Ok, found));
                Ok(id.cluster_id.is_some())
            }
            Err(error) => {
                let item = Item::new("identity", None, &path, Verdict::Damaged, error.to_string());
                self.push(item.todo(RESTORE));
                Ok(used)
            }
        }
    }

    fn formation(&mut self, in_cluster: bool) -> Result<(), Failed> {
        let path = self.data.join(FORMATION);
        let there = self.exists(&path)?;
        let item = match self.small("formation", FORMATION)? {
            Some(bytes) => match (self.options.formation)(bytes) {
                Ok(found) => Item::new("formation", None, &path, Verdict::Ok, found),
                Err(found) if in_cluster => {
                    Item::new("formation", None, &path, Verdict::Mends, found).todo(ASK_A_SEED)
                }
                Err(found) => {
                    Item::new("formation", None, &path, Verdict::Damaged, found).todo(RESTORE)
                }
            },
            None if in_cluster && !there => {
                let found = "missing, but the node belongs to a cluster";
                Item::new("formation", None, &path, Verdict::Mends, found).todo(ASK_A_SEED)
            }
            None => return Ok(()),
        };
        self.push(item);
        Ok(())
    }

    /// Both copies, and what they add up to.
    fn state_log(&mut self) -> Result<Option<NodeState>, Failed> {
        let dir = self.data.join(STATE);
        let examined = examine(self.disk, &dir).map_err(|e| (dir.clone(), e))?;
        if examined.copies == [None, None] {
            let item = Item::new("state log", None, &dir, Verdict::Damaged, "missing");
            self.push(item.todo(RESTORE));
            return Ok(None);
        }
        let scan = match &examined.scan {
            Ok(scan) => scan,
            Err(error) => {
                let item = Item::new("state log", None, &dir, Verdict::Damaged, error.to_string());
                self.push(item.todo(RESTORE));
                return Ok(None);
            }
        };
        for (name, copy) in COPIES.iter().zip(&examined.copies) {
            let item = copy_item(
                &dir.join(name),
                copy.as_ref(),
                &examined,
                scan.records.len(),
            );
            self.items.push(item);
        }
        let mut state = NodeState::default();
        scan.records
            .iter()
            .for_each(|record: &Record| state.apply(record));
        Ok(Some(state))
    }

    fn groups(&mut self, state: Option<&NodeState>) -> Result<(), Failed> {
        let dir = self.data.join(GROUPS);
        for name in self.list(&dir)? {
            let path = dir.join(&name);
            match group_id(&name) {
                Some(group) => self.group(group, &path, state)?,
                None => self.stranger(&path),
            }
        }
        Ok(())
    }

    /// Groups that the state log expects data of, without a directory.
    fn groups_without_directory(&mut self, state: &NodeState) -> Result<(), Failed> {
        for (group, kept) in &state.groups {
            let dir = self.data.join(GROUPS).join(format!("{group:020}"));
            if kept.must_have() > kept.empty_end && !self.exists(&dir)? {
                let found = format!(
                    "missing; offsets {}..{} were synced",
                    kept.start_offset,
                    kept.must_have()
                );
                let item = Item::new("group", Some(*group), &dir, Verdict::Damaged, found);
                self.push(item.todo(super::group::FETCH));
            }
        }
        Ok(())
    }

    fn meta(&mut self) -> Result<(), Failed> {
        let names = self.list(self.data)?;
        let stores = names.iter().filter(|name| meta_number(name).is_some());
        let Some(current) = stores.max_by_key(|name| meta_number(name)) else {
            return Ok(());
        };
        let dir = self.data.join(current);
        let item = match (self.options.meta)(&dir) {
            None => Item::new("meta", None, &dir, Verdict::Note, "not opened"),
            Some(Ok(())) => Item::new("meta", None, &dir, Verdict::Ok, "opens"),
            Some(Err(found)) => Item::new(
                "meta",
                None,
                &dir,
                Verdict::Mends,
                format!("does not open: {found}"),
            )
            .todo("nothing: the next start sets it aside and rebuilds it; so does a repair")
            .fix(Fix::SetAside(dir.clone())),
        };
        self.push(item);
        Ok(())
    }

    fn quarantine(&mut self) -> Result<(), Failed> {
        let dir = self.data.join(QUARANTINE);
        for name in self.list(&dir)? {
            let path = dir.join(&name);
            let opened = self.disk.open(&path, crate::disk::OpenMode::Read);
            let bytes = opened.and_then(|file| file.len()).ok();
            let bytes = bytes.map_or(String::new(), |bytes| format!(", {bytes} bytes"));
            let found = format!("set aside: {}{bytes}", why(&name));
            let item = Item::new("quarantine", None, &path, Verdict::Note, found);
            self.push(item.todo(
                "it is removed seven days after its date; delete it earlier if nobody needs it",
            ));
        }
        Ok(())
    }

    fn strangers(&mut self, names: &[String]) {
        let known = [
            identity::FILE_NAME,
            identity::LOCK_NAME,
            FORMATION,
            STATE,
            GROUPS,
            QUARANTINE,
            SUSPECT,
            RESERVE,
        ];
        for name in names {
            if known.contains(&name.as_str()) || meta_number(name).is_some() {
                continue;
            }
            let path = self.data.join(name);
            match name.strip_suffix(".new") {
                Some(of) if known.contains(&of) => self.unfinished(None, &path),
                _ => self.stranger(&path),
            }
        }
    }

    pub(super) fn unfinished(&mut self, group: Option<u64>, path: &Path) {
        let found = "left by a write that was not finished; nothing reads it";
        let item = Item::new("leftover", group, path, Verdict::Note, found);
        self.push(item.fix(Fix::Remove(path.to_owned())));
    }

    pub(super) fn stranger(&mut self, path: &Path) {
        let item = Item::new(
            "unknown",
            None,
            path,
            Verdict::Note,
            "belongs to nothing here",
        );
        self.push(item.fix(Fix::SetAside(path.to_owned())));
    }
}

fn copy_item(path: &Path, copy: Option<&Bytes>, examined: &Examined, records: usize) -> Item {
    let good = examined.scan.as_ref().map(|scan| scan.good.clone());
    let good = good.unwrap_or_default();
    let Some(copy) = copy else {
        return mends(path, "missing; the other copy is whole".to_owned());
    };
    if *copy == good {
        let found = format!("{records} records, {} bytes", copy.len());
        return Item::new("state log", None, path, Verdict::Ok, found);
    }
    let same = copy.iter().zip(good.iter()).take_while(|(a, b)| a == b);
    let same = same.count();
    let found = match same {
        _ if same == good.len() => format!(
            "torn: {} bytes behind the last record, at byte {same}",
            copy.len() - same
        ),
        _ if same == copy.len() => format!("ends at byte {same}, the other copy goes on"),
        _ => format!("differs from byte {same} on; the other copy has the record"),
    };
    mends(path, found)
}

fn mends(path: &Path, found: String) -> Item {
    Item::new("state log", None, path, Verdict::Mends, found)
        .todo("nothing: the next start makes both copies whole; so does a repair")
        .fix(Fix::MendStateLog)
}

/// Why something was set aside, by its name.
fn why(name: &str) -> &'static str {
    let reasons = [
        ("-torn-tail-", "the torn end of a segment"),
        (
            "-damaged-",
            "damaged bytes, replaced by those of another replica",
        ),
        ("-foreign-", "content of another time or another log"),
        ("-cut-begun-", "behind a cut that a crash interrupted"),
        ("-cut-by-leader-", "cut at a leader's word"),
        (
            "-below-start-",
            "below the first offset that any replica has",
        ),
        ("-given-up-", "given up by an operator"),
        ("-formation", "a formation record that could not be read"),
        ("-meta", "a meta store that did not open"),
        ("-unknown-", "belonged to nothing"),
        ("state-", "a copy of the state log that was mended"),
        (".seg-at-", "cut off a segment"),
    ];
    let found = reasons.iter().find(|(part, _)| name.contains(part));
    found.map_or("by somebody else", |(_, why)| why)
}
