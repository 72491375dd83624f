//! What a reader of this version does with the bytes of others, for any type.

use bytes::Bytes;
use imprint_proto::envelope::{EnvelopeError, HEADER_LEN, Kind, Rule, Shape};

/// A plain envelope around a body.
fn around(version: u8, compat: u8, body: &[u8]) -> Bytes {
    let size = u32::try_from(body.len()).expect("specimens are short");
    [&[version, compat][..], &size.to_le_bytes(), body]
        .concat()
        .into()
}

fn rule(read: Result<Bytes, EnvelopeError>) -> Option<Rule> {
    read.err().map(|error| error.rule())
}

/// A later version appends fields: this one reads the same value as before.
pub fn assert_skips_what_a_later_version_appends(kind: &Kind) {
    for shape in Shape::ALL {
        let bytes = (kind.specimen)(shape, kind.version);
        for appended in [1, 7, 300] {
            let body = [&bytes[HEADER_LEN..], &vec![0xee; appended]].concat();
            let later = around(kind.version + 1, kind.compat, &body);
            assert_eq!((kind.rewrite)(later).as_ref(), Ok(&bytes), "{}", kind.name);
        }
    }
}

/// A later version breaks with this one: it is refused, whatever its bytes are.
pub fn assert_refuses_what_is_not_for_it(kind: &Kind) {
    for shape in Shape::ALL {
        let bytes = (kind.specimen)(shape, kind.version);
        let body = &bytes[HEADER_LEN..];
        let newer = around(kind.version + 1, kind.version + 1, body);
        assert_eq!(
            rule((kind.rewrite)(newer)),
            Some(Rule::WriterTooNew),
            "{}",
            kind.name
        );
        if let Some(before) = kind.compat.checked_sub(1) {
            let older = around(before, before, body);
            assert_eq!(
                rule((kind.rewrite)(older)),
                Some(Rule::WriterTooOld),
                "{}",
                kind.name
            );
        }
    }
}

/// Bytes that end early or late are refused.
pub fn assert_refuses_cuts_and_leftovers(kind: &Kind) {
    for shape in Shape::ALL {
        let bytes = (kind.specimen)(shape, kind.version);
        for len in 0..bytes.len() {
            let expected = if len < HEADER_LEN {
                Rule::HeaderCut
            } else {
                Rule::SizeExceedsBuffer
            };
            let cut = bytes.slice(..len);
            assert_eq!(
                rule((kind.rewrite)(cut)),
                Some(expected),
                "{} at {len}",
                kind.name
            );
        }
        let more = [&bytes[..], &[0]].concat();
        assert_eq!(
            rule((kind.rewrite)(more.into())),
            Some(Rule::BytesLeft),
            "{}",
            kind.name
        );
    }
}

/// An old reader and this one agree on every value of an old writer: what the old reader knows comes
/// first and is the same, and this one has the declared default for the rest.
pub fn assert_old_and_new_readers_agree(kind: &Kind) {
    let late = kind.fields.iter().filter(|field| field.since > kind.compat);
    for since in late.map(|field| field.since) {
        let old = since - 1;
        for shape in Shape::ALL {
            let whole = (kind.specimen)(shape, kind.version);
            let before = (kind.specimen)(shape, old);
            // The old reader reads this much of the new bytes, and skips the rest.
            assert!(
                whole[HEADER_LEN..].starts_with(&before[HEADER_LEN..]),
                "{}: fields of version {old} moved",
                kind.name
            );
            let read = (kind.rewrite)(before.clone()).expect("old bytes read");
            assert!(
                read[HEADER_LEN..].starts_with(&before[HEADER_LEN..]),
                "{}: fields of version {old} read as something else",
                kind.name
            );
            if shape == Shape::Defaults {
                assert_eq!(
                    read, whole,
                    "{}: an absent field is not its default",
                    kind.name
                );
            }
        }
    }
}

/// All of them, for every type.
pub fn assert_all(kinds: &[Kind]) {
    for kind in kinds {
        assert_skips_what_a_later_version_appends(kind);
        assert_refuses_what_is_not_for_it(kind);
        assert_refuses_cuts_and_leftovers(kind);
        assert_old_and_new_readers_agree(kind);
    }
}
