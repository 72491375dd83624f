//! Which declarations the compiler refuses, and with which words; the doc tests of `envelope!` show
//! that it does.

use imprint_proto::envelope;
use imprint_proto::envelope::DeclarationFault::{
    self, CompatAboveVersion, NoComment, NoDefault, OutOfOrder, SinceAboveVersion,
};
use imprint_proto::envelope::{
    Envelope, FieldInfo, Kind, Shape, decode, encode, encode_as, put_nested,
};

fn since(version: u8) -> FieldInfo {
    FieldInfo {
        name: "field",
        ty: "u8",
        since: version,
        has_default: true,
        is_documented: true,
    }
}

fn first() -> FieldInfo {
    FieldInfo {
        has_default: false,
        is_documented: false,
        ..since(0)
    }
}

#[test]
fn each_fault_of_a_declaration_has_its_words() {
    let bare = |version| FieldInfo {
        has_default: false,
        ..since(version)
    };
    let silent = |version| FieldInfo {
        is_documented: false,
        ..since(version)
    };
    let cases: &[(u8, u8, &[FieldInfo], Option<DeclarationFault>)] = &[
        (0, 0, &[], None),
        (1, 1, &[first()], None),
        (3, 0, &[first(), since(1), since(1), since(3)], None),
        (0, 1, &[], Some(CompatAboveVersion)),
        (1, 0, &[first(), since(2)], Some(SinceAboveVersion)),
        (2, 0, &[first(), since(2), since(1)], Some(OutOfOrder)),
        (1, 0, &[since(1), first()], Some(OutOfOrder)),
        (1, 0, &[first(), bare(1)], Some(NoDefault)),
        (1, 0, &[first(), silent(1)], Some(NoComment)),
    ];
    for (version, compat, fields, expected) in cases {
        let found = FieldInfo::fault(*version, *compat, fields);
        assert_eq!(
            found, *expected,
            "version {version}, compat {compat}, {fields:?}"
        );
    }
    let faults = [
        CompatAboveVersion,
        SinceAboveVersion,
        OutOfOrder,
        NoDefault,
        NoComment,
    ];
    let texts: std::collections::BTreeSet<_> = faults.iter().map(|fault| fault.text()).collect();
    assert_eq!(texts.len(), faults.len());
}

envelope! {
    #[derive(Debug, PartialEq)]
    pub struct Late: version 3, compat 0 {
        id: u16,
        /// 5: as everything had it.
        #[since(1)]
        first: u8 = 5,
        /// Empty: nobody said.
        #[since(3)]
        second: Vec<Option<u8>> = Vec::new(),
    }
}

#[test]
fn a_type_says_what_was_declared() {
    let kind = Kind::of::<Late>();
    assert_eq!((kind.name, kind.version, kind.compat), ("Late", 3, 0));
    let fields: Vec<_> = Late::FIELDS
        .iter()
        .map(|field| (field.name, field.since))
        .collect();
    assert_eq!(fields, [("id", 0), ("first", 1), ("second", 3)]);
    assert_eq!(Late::FIELDS[2].ty, "Vec<Option<u8>>");
    assert!(!Late::FIELDS[0].has_default && Late::FIELDS[1].has_default);
}

#[test]
fn an_old_writers_bytes_end_where_its_fields_do() {
    let value = Late {
        id: 1,
        first: 2,
        second: vec![None],
    };
    assert_eq!(encode_as(&value, 0)[..], [0, 0, 2, 0, 0, 0, 1, 0]);
    assert_eq!(encode_as(&value, 2)[..], [2, 0, 3, 0, 0, 0, 1, 0, 2]);
    assert_eq!(encode_as(&value, 3), encode(&value));
    let read = |version| decode::<Late>(encode_as(&value, version)).unwrap();
    assert_eq!(
        read(0),
        Late {
            id: 1,
            first: 5,
            second: vec![]
        }
    );
    assert_eq!(
        read(2),
        Late {
            id: 1,
            first: 2,
            second: vec![]
        }
    );
    let mut nested = Vec::new();
    put_nested(&value, &mut nested);
    assert_eq!(nested, encode(&value));
}

#[test]
fn specimens_are_of_their_shape_and_always_the_same() {
    let specimen = |shape| decode::<Late>((Kind::of::<Late>().specimen)(shape, 3)).unwrap();
    assert_eq!(
        specimen(Shape::Defaults),
        Late {
            id: 0,
            first: 5,
            second: vec![]
        }
    );
    assert_eq!(
        specimen(Shape::Full),
        Late {
            id: 0x0202,
            first: 3,
            second: vec![Some(6), Some(8)]
        }
    );
    assert_eq!(
        specimen(Shape::Edge),
        Late {
            id: u16::MAX,
            first: 0,
            second: vec![Some(u8::MAX)]
        }
    );
}
