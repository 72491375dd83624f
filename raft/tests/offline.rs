//! What the offline tools see in the files of a node, whole and damaged.

mod journal_support;

use std::path::PathBuf;

use imprint_raft::disk::{Disk, OpenMode, SimDisk};
use imprint_raft::offline::segment::{Piece, SegmentReader, Start};
use imprint_raft::offline::statelog::{Frame, FrameReader};
use journal_support::{GROUP, admit, append_ok, blank, data, group_dir, now, open_sim, small};

/// Batches of the log that these tests look at.
const BATCHES: u64 = 40;

/// A disk with a log of some sealed segments and an active one, closed in order.
fn written() -> SimDisk {
    let disk = SimDisk::new();
    let storage = open_sim(&disk, small());
    append_ok(&storage.journal, vec![blank(1, 1)]);
    for index in 2..2 + BATCHES {
        append_ok(&storage.journal, vec![admit(1, index, index)]);
    }
    now(storage.journal.close()).unwrap();
    disk
}

fn segments(disk: &SimDisk) -> Vec<PathBuf> {
    let dir = group_dir(&data());
    let names = disk.list(&dir).unwrap();
    let segments = names.into_iter().filter(|name| name.ends_with(".seg"));
    segments.map(|name| dir.join(name)).collect()
}

fn pieces(disk: &SimDisk, path: &std::path::Path, start: Start) -> Vec<Piece> {
    let file = disk.open(path, OpenMode::Read).unwrap();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap();
    let name = imprint_raft::journal::SegmentName::parse(name);
    let mut reader = SegmentReader::new(file.as_ref(), name, Some(GROUP)).unwrap();
    reader.start_at(start).unwrap();
    std::iter::from_fn(|| reader.next_piece().unwrap()).collect()
}

/// First byte, last byte and offsets of each batch.
fn batches(pieces: &[Piece]) -> Vec<(u64, u64, u64)> {
    let batches = pieces.iter().filter_map(|piece| match piece {
        Piece::Batch { pos, batch } => Some((*pos, pos + batch.len(), batch.base_offset())),
        _ => None,
    });
    batches.collect()
}

fn overwrite(disk: &SimDisk, path: &std::path::Path, at: u64, bytes: &[u8]) {
    let file = disk.open(path, OpenMode::Write).unwrap();
    file.write_all_at(&[bytes], at).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_whole_segment_is_batches_and_nothing_else() {
    let disk = written();
    let all = segments(&disk);
    assert!(all.len() > 3, "{}", all.len());
    let mut next = 0;
    for path in &all {
        let pieces = pieces(&disk, path, Start::Front);
        for (n, piece) in pieces.iter().enumerate() {
            match piece {
                Piece::Batch { batch, .. } => {
                    assert_eq!(batch.base_offset(), next);
                    next = batch.next_offset();
                }
                Piece::Zeros { .. } => assert_eq!(n + 1, pieces.len()),
                Piece::Damage(damage) => panic!("{damage:?}"),
            }
        }
    }
    assert_eq!(next, (2..2 + BATCHES).map(|tag| 1 + tag % 3).sum::<u64>());
}

#[test]
fn one_flipped_bit_costs_one_batch_wherever_it_is() {
    let path = segments(&written())[0].clone();
    let whole = batches(&pieces(&written(), &path, Start::Front));
    let len = whole.last().unwrap().1;
    // Also in each byte of a header, where the length itself may be what is wrong.
    let second = whole[1].0;
    let places = [len * 30 / 100, len * 60 / 100, len * 99 / 100];
    for at in places.into_iter().chain(second..second + 260) {
        let disk = written();
        let byte = disk.contents(&path).unwrap()[at as usize];
        overwrite(&disk, &path, at, &[byte ^ 0x10]);
        let pieces = pieces(&disk, &path, Start::Front);
        let good = batches(&pieces);
        let expected: Vec<_> = whole
            .iter()
            .copied()
            .filter(|(from, to, _)| !(*from..*to).contains(&at))
            .collect();
        assert_eq!(good, expected, "flipped at {at}");
        let hit = whole
            .iter()
            .find(|(from, to, _)| (*from..*to).contains(&at));
        let (from, to, offset) = *hit.unwrap();
        let damage: Vec<_> = pieces
            .iter()
            .filter_map(|piece| match piece {
                Piece::Damage(damage) => Some(damage),
                _ => None,
            })
            .collect();
        assert_eq!(damage.len(), 1, "flipped at {at}");
        assert_eq!(
            (damage[0].from_byte, damage[0].from_offset),
            (from, Some(offset))
        );
        if to < len {
            assert_eq!(damage[0].to_byte, to, "flipped at {at}");
        }
    }
}

#[test]
fn a_torn_tail_is_one_damaged_range_at_the_end() {
    let path = segments(&written())[0].clone();
    let whole = batches(&pieces(&written(), &path, Start::Front));
    let (last_from, last_to, _) = *whole.last().unwrap();
    for cut in [1, 4, 8, 255, 256, 257] {
        let disk = written();
        let file = disk.open(&path, OpenMode::Write).unwrap();
        file.set_len(last_to - cut).unwrap();
        let pieces = pieces(&disk, &path, Start::Front);
        assert_eq!(batches(&pieces), whole[..whole.len() - 1], "cut {cut}");
        let damage = pieces.iter().find_map(|piece| match piece {
            Piece::Damage(damage) => Some(damage),
            _ => None,
        });
        let damage = damage.unwrap();
        assert_eq!(
            (damage.from_byte, damage.to_offset),
            (last_from, None),
            "cut {cut}"
        );
    }
}

#[test]
fn reading_begins_where_it_is_told() {
    let disk = written();
    let path = segments(&disk)[0].clone();
    let whole = batches(&pieces(&disk, &path, Start::Front));
    let second = whole[1];
    for (start, first) in [
        (Start::Offset(second.2), 1),
        (Start::Byte(second.0), 1),
        (Start::Byte(second.0 + 1), 2),
        (Start::Byte(0), 0),
    ] {
        let pieces = pieces(&disk, &path, start);
        assert_eq!(batches(&pieces), whole[first..], "{start:?}");
        assert!(
            !pieces.iter().any(|piece| matches!(piece, Piece::Damage(_))),
            "{start:?}"
        );
    }
    assert_eq!(batches(&pieces(&disk, &path, Start::Byte(u64::MAX))), []);
}

#[test]
fn state_log_records_behind_damage_are_found() {
    let disk = written();
    let path = data().join("state").join("a.log");
    let frames = |disk: &SimDisk| -> Vec<Frame> {
        let file = disk.open(&path, OpenMode::Read).unwrap();
        let mut reader = FrameReader::new(file.as_ref()).unwrap();
        std::iter::from_fn(|| reader.next_frame().unwrap()).collect()
    };
    let whole = frames(&disk);
    let Frame::Record { pos, len, .. } = whole[2].clone() else {
        panic!("{whole:?}");
    };
    for at in pos..pos + len {
        let disk = written();
        disk.rot(&path, at).unwrap();
        let damaged = frames(&disk);
        assert_eq!(damaged.len(), whole.len(), "rot at {at}");
        let Frame::Bad { from, to, .. } = damaged[2] else {
            panic!("rot at {at}: {:?}", damaged[2]);
        };
        assert_eq!((from, to), (pos, pos + len));
        assert_eq!(damaged[3..], whole[3..]);
    }
}
