//! What `check` and `repair` share: the directory, its lock, how long things take, and the report on stdout.

use super::super::args::Format;
use super::super::exit::CliError;
use super::super::output::{self, Table, say};
use super::inspect::formation;
use super::show::inline;
use bytes::Bytes;
use imprint_raft::disk::{DirLock, RealDisk};
use imprint_raft::identity::IdentityError;
use imprint_raft::meta;
use imprint_raft::offline::check::{
    self, CheckError, Item, Options, Place, Range, Report, Verdict,
};
use serde_json::{Value, json};
use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// A meta store above this is not copied to see whether it opens. Bytes.
const META_COPY_MAX: u64 = 1 << 30;
/// Between two looks at the clock for the progress line.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// A directory that no node uses meanwhile.
pub struct Directory {
    pub place: Place,
    _lock: Option<Box<dyn DirLock>>,
}

impl Directory {
    /// Finds out what was named and locks it; beside a running node only if that is allowed.
    pub fn open(dir: &Path, while_running: bool) -> Result<Directory, CliError> {
        // "." has no name, and a group is known by its directory's.
        let full = std::fs::canonicalize(dir).map_err(|e| super::show::file_error(dir, e))?;
        let place = check::locate(&RealDisk, &full).map_err(said)?;
        let lock = match check::lock(&RealDisk, &place) {
            Err(CheckError::Lock(IdentityError::InUse { path, .. })) if while_running => {
                say(&format!(
                    "note: a running node has {}: ends of logs and the newest records of the state log may move meanwhile, and \
                     look torn or behind",
                    path.display()
                ));
                None
            }
            other => other.map_err(said)?,
        };
        Ok(Directory { place, _lock: lock })
    }

    /// Looks at everything.
    pub fn check(&self, quick: bool) -> Result<Report, CliError> {
        let progress = Progress::new();
        let options = Options {
            quick,
            formation: &|bytes: Bytes| match formation(bytes) {
                Ok(fields) => Ok(inline(&fields)),
                Err(error) => Err(error.to_string()),
            },
            meta: &|dir| (!quick).then(|| opens(dir)).flatten(),
            progress: &|bytes| progress.add(bytes),
        };
        let report = check::check(&RealDisk, &self.place, &options).map_err(said);
        progress.finish();
        report
    }
}

/// An error of a directory in words of the command line.
pub fn said(error: CheckError) -> CliError {
    match error {
        CheckError::NotThere(path) => CliError::NoSuchFile {
            path: path.display().to_string(),
        },
        CheckError::Io { path, source } => super::show::file_error(&path, source),
        other => CliError::Usage(other.to_string()),
    }
}

/// Whether a copy of a meta store opens: opening writes.
fn opens(dir: &Path) -> Option<Result<(), String>> {
    let copy = std::env::temp_dir().join(format!("imprint-meta-{}", std::process::id()));
    let copied = copy_flat(dir, &copy);
    let opened = match copied {
        Ok(true) => Some(meta::opens(&copy).map_err(|error| chain(&error))),
        // Too large, or it can't be read: not told.
        Ok(false) | Err(_) => None,
    };
    let _ = std::fs::remove_dir_all(&copy);
    opened
}

fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |&error| error.source());
    sources.fold(error.to_string(), |text, source| {
        format!("{text}: {source}")
    })
}

/// Copies files and one level of directories; says whether it did.
fn copy_flat(from: &Path, to: &Path) -> io::Result<bool> {
    let mut bytes = 0;
    let mut pending = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = pending.pop() {
        std::fs::create_dir_all(&to)?;
        for entry in std::fs::read_dir(&from)? {
            let entry = entry?;
            let target = to.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                pending.push((entry.path(), target));
                continue;
            }
            bytes += entry.metadata()?.len();
            if bytes > META_COPY_MAX {
                return Ok(false);
            }
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(true)
}

/// A line on a terminal that says how far a long check is.
struct Progress {
    shown: bool,
    began: Instant,
    last: Cell<Instant>,
    bytes: Cell<u64>,
}

impl Progress {
    fn new() -> Progress {
        let now = Instant::now();
        Progress {
            shown: io::stderr().is_terminal(),
            began: now,
            last: Cell::new(now),
            bytes: Cell::new(0),
        }
    }

    fn add(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
        if self.shown && self.last.get().elapsed() >= PROGRESS_EVERY {
            self.last.set(Instant::now());
            self.draw();
        }
    }

    fn draw(&self) {
        let mib = self.bytes.get() as f64 / (1 << 20) as f64;
        let rate = mib / self.began.elapsed().as_secs_f64().max(0.001);
        let _ = write!(
            io::stderr(),
            "\r{mib:.0} MiB checked, {rate:.0} MiB/s\x1b[K"
        );
    }

    fn finish(&self) {
        if self.shown && self.last.get() != self.began {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// Writes a report. `all` shows also what is as it should be.
pub fn show(format: Format, place: &Place, report: &Report, all: bool) -> Result<(), CliError> {
    let value = report_value(place, report);
    output::document(format, &value, || table(place, report, all))
}

pub fn report_value(place: &Place, report: &Report) -> Value {
    json!({
        "directory": place.data.display().to_string(),
        "damaged": report.of(Verdict::Damaged).count(),
        "mends": report.of(Verdict::Mends).count(),
        "notes": report.of(Verdict::Note).count(),
        "items": report.items.iter().map(|item| item_value(place, item)).collect::<Value>(),
    })
}

fn item_value(place: &Place, item: &Item) -> Value {
    json!({
        "area": item.area,
        "group": item.group,
        "path": relative(place, &item.path),
        "verdict": item.verdict.to_string(),
        "found": item.found,
        "todo": item.todo,
        "range": item.range.map(|range| json!({
            "from_byte": range.from_byte,
            "to_byte": range.to_byte,
            "from_offset": range.from_offset,
            "to_offset": range.to_offset,
        })),
    })
}

/// A path below the directory.
pub fn relative(place: &Place, path: &Path) -> String {
    let below = path.strip_prefix(&place.data).unwrap_or(path);
    match below.as_os_str().is_empty() {
        true => ".".to_owned(),
        false => below.display().to_string(),
    }
}

fn table(place: &Place, report: &Report, all: bool) -> String {
    let mut table = Table::new(&["VERDICT", "WHAT", "PATH", "FOUND"]);
    let shown = report
        .items
        .iter()
        .filter(|item| all || item.verdict != Verdict::Ok || item.area != "segment");
    for item in shown {
        let verdict = match item.verdict {
            Verdict::Damaged => "DAMAGED".to_owned(),
            other => other.to_string(),
        };
        let found = match item.range {
            Some(range) => format!("{}: {}", range_text(range), item.found),
            None => item.found.clone(),
        };
        table.row([
            verdict,
            item.area.to_owned(),
            relative(place, &item.path),
            found,
        ]);
    }
    let mut text = table.render();
    text.push_str(&totals(report));
    for todo in todos(report) {
        text.push_str(&format!("to do: {todo}\n"));
    }
    text
}

fn range_text(range: Range) -> String {
    let number = |n: Option<u64>| n.map_or("?".to_owned(), |n| n.to_string());
    format!(
        "bytes {}..{}, offsets {}..{}",
        range.from_byte,
        number(range.to_byte),
        number(range.from_offset),
        number(range.to_offset)
    )
}

fn totals(report: &Report) -> String {
    let count = |verdict| report.of(verdict).count();
    format!(
        "{} ok, {} to note, {} mended at start, {} damaged\n",
        count(Verdict::Ok),
        count(Verdict::Note),
        count(Verdict::Mends),
        count(Verdict::Damaged)
    )
}

/// What to do, each thing once, with where it is to be done.
fn todos(report: &Report) -> Vec<String> {
    let mut todos: Vec<(&str, Vec<&str>)> = Vec::new();
    let wanted = report
        .items
        .iter()
        .filter(|item| item.verdict >= Verdict::Mends);
    for item in wanted {
        let Some(todo) = item.todo else { continue };
        match todos.iter_mut().find(|(known, _)| *known == todo) {
            Some((_, areas)) if areas.contains(&item.area) => {}
            Some((_, areas)) => areas.push(item.area),
            None => todos.push((todo, vec![item.area])),
        }
    }
    let text = |(todo, areas): (&str, Vec<&str>)| format!("{}: {todo}", areas.join(", "));
    todos.into_iter().map(text).collect()
}

/// The error of a report with damage.
pub fn verdict(place: &Place, report: &Report) -> Result<(), CliError> {
    match report.of(Verdict::Damaged).count() {
        0 => Ok(()),
        count => Err(CliError::Fault(format!(
            "{}: {count} thing(s) damaged",
            place.data.display()
        ))),
    }
}
