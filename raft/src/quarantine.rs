//! `quarantine/` of a data directory: what a start set aside because it could not be used, for a person to look at.
//!
//! * Nothing is deleted in place: it is moved or copied here, under a name that begins with the date and says what it was.
//! * Nothing here is deleted before [`KEEP_DAYS`] have passed since that date, however much it is: there is a loud warning
//!   instead. The date is in the name because moving a directory doesn't change the one that the file system keeps.
//! * A name without a date, left by an older version or a person, gets today's.
//! * Names are never used twice at a time, so nothing set aside is replaced.
//!
//! It must not know what is kept here.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::{self, Disk, Io};

/// Name of the directory.
pub const DIR_NAME: &str = "quarantine";
/// What is set aside stays at least this long.
pub const KEEP_DAYS: u64 = 7;
/// More than this here is worth a warning at every look. Bytes.
pub const WARN_BYTES: u64 = 1 << 30;
/// Removed at one look; the rest has to wait for the next.
const MAX_REMOVED: usize = 1_000;
/// Files counted at one look.
const MAX_COUNTED: usize = 100_000;

const SECOND_US: u64 = 1_000_000;
const DAY_SECONDS: u64 = 24 * 60 * 60;
/// Length of `20250131T235959Z`.
const STAMP_LEN: usize = 16;

/// See the module's text.
#[derive(Debug)]
pub struct Quarantine<'a> {
    disk: &'a dyn Disk,
    dir: PathBuf,
    now_us: Option<u64>,
}

/// What a look found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Entries removed.
    pub removed: usize,
    /// Entries left.
    pub kept: usize,
    /// Bytes of those.
    pub kept_bytes: u64,
}

impl<'a> Quarantine<'a> {
    /// The one of a data directory, at a time in microseconds since the Unix epoch.
    pub fn new(disk: &'a dyn Disk, data: &Path, now_us: u64) -> Self {
        Self {
            disk,
            dir: data.join(DIR_NAME),
            now_us: Some(now_us),
        }
    }

    /// The one of a data directory, for a caller without a clock: the next look gives what it sets aside a date.
    pub fn undated(disk: &'a dyn Disk, data: &Path) -> Self {
        Self {
            disk,
            dir: data.join(DIR_NAME),
            now_us: None,
        }
    }

    /// A path for something to be set aside; nothing has it. Makes the directory if need be.
    pub fn place(&self, what: &str) -> io::Result<PathBuf> {
        self.disk.create_dir_all(&self.dir)?;
        let date = self.now_us.map(|now_us| stamp(now_us / SECOND_US));
        let name = format!("{}-{what}", date.as_deref().unwrap_or("new"));
        let mut path = self.dir.join(&name);
        let mut count = 1_u64;
        while self.disk.exists(&path)? {
            count += 1;
            path = self.dir.join(format!("{name}-{count}"));
        }
        Ok(path)
    }

    /// Moves a file or directory here, durably.
    pub fn set_aside(&self, path: &Path, what: &str) -> io::Result<PathBuf> {
        let aside = self.place(what)?;
        self.disk.rename(path, &aside)?;
        self.disk.sync_dir(&self.dir)?;
        self.disk.sync_dir(disk::parent(path)?)?;
        Ok(aside)
    }

    /// Removes what has been here for long enough, and counts the rest.
    pub fn sweep(&self) -> io::Result<Swept> {
        let mut swept = Swept::default();
        if !self.disk.exists(&self.dir)? {
            return Ok(swept);
        }
        let now = self.now_us.unwrap_or(0) / SECOND_US;
        let cutoff = stamp(now.saturating_sub(KEEP_DAYS * DAY_SECONDS));
        let mut left = MAX_COUNTED;
        for name in self.disk.list(&self.dir)? {
            let path = self.dir.join(&name);
            let date = date_of(&name);
            let is_old = date.is_some_and(|date| date < cutoff.as_str());
            if is_old && swept.removed < MAX_REMOVED {
                remove(self.disk, &path)?;
                swept.removed += 1;
                continue;
            }
            swept.kept += 1;
            swept.kept_bytes += bytes_below(self.disk, &path, &mut left)?;
            if date.is_none() && self.now_us.is_some() {
                let dated = self.place(&name)?;
                self.disk.rename(&path, &dated)?;
            }
        }
        self.disk.sync_dir(&self.dir)?;
        Ok(swept)
    }
}

/// A look at a data directory's quarantine, with what there is to say about it in the log. Blocks.
pub fn look_after(io: &Io, data: &Path) {
    let quarantine = Quarantine::new(io.disk.as_ref(), data, io.clock.now_micros());
    let dir = quarantine.dir.display();
    match quarantine.sweep() {
        Ok(swept) => {
            if swept.removed > 0 {
                tracing::info!(%dir, removed = swept.removed, "removed from quarantine after {KEEP_DAYS} days");
            }
            if swept.kept_bytes > WARN_BYTES {
                tracing::warn!(
                    %dir, entries = swept.kept, bytes = swept.kept_bytes, warn_above = WARN_BYTES,
                    "the quarantine is large; it is kept for {KEEP_DAYS} days, then removed: look at it and make room"
                );
            }
        }
        Err(error) => tracing::warn!(%dir, %error, "could not look through the quarantine"),
    }
}

fn remove(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.list(path) {
        Ok(_) => disk.remove_dir_all(path),
        Err(_) => disk.remove_file(path),
    }
}

fn bytes_below(disk: &dyn Disk, path: &Path, left: &mut usize) -> io::Result<u64> {
    if *left == 0 {
        return Ok(0);
    }
    *left -= 1;
    // Only a directory can be listed.
    let Ok(names) = disk.list(path) else {
        return disk.file_len(path);
    };
    let each = names
        .iter()
        .map(|name| bytes_below(disk, &path.join(name), left));
    each.sum()
}

/// The date at the front of a name, in a form that sorts by time.
fn date_of(name: &str) -> Option<&str> {
    let date = name.get(..STAMP_LEN)?;
    let digits = date.bytes().enumerate().all(|(at, byte)| match at {
        8 => byte == b'T',
        15 => byte == b'Z',
        _ => byte.is_ascii_digit(),
    });
    digits.then_some(date)
}

/// Seconds since the Unix epoch as a date and time in UTC. Sorts by time until the year 9999.
fn stamp(seconds: u64) -> String {
    let (days, rest) = (seconds / DAY_SECONDS, seconds % DAY_SECONDS);
    // Days are counted from a first of March, in eras of 400 years, so that leap days come last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{OpenMode, SimDisk};

    const DAY_US: u64 = DAY_SECONDS * SECOND_US;
    const START_US: u64 = 1_700_000_000 * SECOND_US;

    fn data() -> &'static Path {
        Path::new("/data")
    }

    fn at(disk: &SimDisk, days: u64) -> Quarantine<'_> {
        Quarantine::new(disk, data(), START_US + days * DAY_US)
    }

    fn file(disk: &SimDisk, path: &Path) {
        disk.create_dir_all(path.parent().unwrap()).unwrap();
        let file = disk.open(path, OpenMode::Truncate).unwrap();
        file.write_all_at(&[&[7; 100]], 0).unwrap();
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_700_000_000, "20231114T221320Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(stamp(seconds), text);
        }
    }

    #[test]
    fn nothing_goes_before_its_time_and_everything_after_it() {
        let disk = SimDisk::new();
        file(&disk, &data().join("meta/db"));
        let aside = at(&disk, 0)
            .set_aside(&data().join("meta"), "meta")
            .unwrap();
        assert!(aside.ends_with("20231114T221320Z-meta"), "{aside:?}");
        for days in [0, 1, 6, 7] {
            let kept = Swept {
                removed: 0,
                kept: 1,
                kept_bytes: 100,
            };
            assert_eq!(at(&disk, days).sweep().unwrap(), kept, "after {days} days");
        }
        assert_eq!(at(&disk, 8).sweep().unwrap().removed, 1);
        assert!(disk.list(&data().join(DIR_NAME)).unwrap().is_empty());
    }

    #[test]
    fn a_name_without_a_date_gets_one_and_then_waits_like_the_others() {
        let disk = SimDisk::new();
        file(&disk, &data().join("quarantine/000000-meta"));
        assert_eq!(at(&disk, 100).sweep().unwrap().kept, 1);
        assert_eq!(at(&disk, 107).sweep().unwrap().removed, 0);
        assert_eq!(at(&disk, 108).sweep().unwrap().removed, 1);
    }

    #[test]
    fn two_things_of_one_second_have_two_names() {
        let disk = SimDisk::new();
        for _ in 0..3 {
            file(&disk, &at(&disk, 0).place("a.log").unwrap());
        }
        assert_eq!(at(&disk, 0).sweep().unwrap().kept, 3);
    }
}
