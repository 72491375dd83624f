//! A shared fragment cannot be changed under whoever else holds it: every way that the public
//! functions give to get at bytes for writing either copies them or refuses.

use bytes::{Buf, Bytes, BytesMut};
use imprint_proto::batch::{AdmittedBatch, BatchBuilder, Message, StampedBatch, split_batches};
use imprint_proto::envelope;
use imprint_proto::envelope::{
    decode, decode_checked, decode_checked_prefix, decode_prefix, encode, encode_checked,
};
use imprint_proto::frame::{Compression, compress, decompress};
use imprint_proto::limits::BatchLimits;

envelope! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct Blob: version 0, compat 0 { bytes: Bytes, list: Vec<Bytes>, maybe: Option<Bytes> }
}

/// Memory of its own, so that a `Bytes` of it could be taken back if nobody shared it.
fn owned(text: &str) -> Bytes {
    Bytes::from(text.as_bytes().to_vec())
}

fn blob() -> Blob {
    Blob {
        bytes: owned("first"),
        list: vec![owned("second")],
        maybe: Some(owned("third")),
    }
}

/// Tries every way of `Bytes` itself to write to the memory of a fragment that `shared` holds too.
fn attack(fragment: &Bytes) {
    let refused = fragment.clone().try_into_mut();
    assert!(
        refused.is_err() || fragment.is_empty(),
        "a shared fragment was given away for writing"
    );
    BytesMut::from(fragment.clone()).fill(0);
    Vec::<u8>::from(fragment.clone()).fill(0);
    fragment.to_vec().fill(0);
    let mut taken = fragment.clone();
    taken.copy_to_bytes(fragment.len());
    let mut cut = fragment.clone();
    let mut tail = cut.split_off(fragment.len() / 2);
    cut.clear();
    tail.truncate(1);
    BytesMut::from(tail).fill(0);
    let mut whole = BytesMut::from(fragment.clone());
    whole.extend_from_slice(b"more");
    whole.fill(0);
}

/// Runs attacks on fragments and holds that the bytes they were made from are as they were.
fn unchanged(source: &Bytes, fragments: &[Bytes]) {
    let before = source.to_vec();
    for fragment in fragments {
        attack(fragment);
        assert_eq!(source[..], before[..]);
    }
}

#[test]
fn what_an_envelope_was_read_into_cannot_change_the_buffer() {
    let plain = encode(&blob());
    let checked = encode_checked(&blob());
    let (prefix, rest) = decode_prefix::<Blob>([&plain[..], b"rest"].concat().into()).unwrap();
    let fragments = |read: Blob| {
        [
            vec![read.bytes],
            read.list,
            read.maybe.into_iter().collect(),
        ]
        .concat()
    };
    unchanged(&plain, &fragments(decode(plain.clone()).unwrap()));
    unchanged(
        &checked,
        &fragments(decode_checked(checked.clone()).unwrap()),
    );
    let (read, _) = decode_checked_prefix::<Blob>(checked.clone()).unwrap();
    unchanged(&checked, &fragments(read));
    unchanged(&rest, &fragments(prefix));
    assert_eq!(rest, "rest");
    assert_eq!(decode::<Blob>(plain), Ok(blob()));
}

#[test]
fn encoding_leaves_the_fragments_and_writing_to_the_result_does_not_reach_them() {
    let value = blob();
    for encoded in [encode(&value), encode_checked(&value)] {
        let mut taken = encoded
            .try_into_mut()
            .expect("nobody else holds a fresh encoding");
        taken.fill(0);
        assert_eq!(value, blob());
    }
}

fn batch() -> Bytes {
    let mut builder = BatchBuilder::new(BatchLimits::default());
    for payload in [&b"one"[..], b"two"] {
        let message = Message {
            id: 7,
            origin_timestamp_us: 1,
            payload,
            headers: &[],
        };
        builder.push(message).unwrap();
    }
    builder.build().unwrap().into_bytes()
}

fn admitted(bytes: &Bytes) -> AdmittedBatch {
    AdmittedBatch::admit(bytes.clone(), 3, &BatchLimits::default()).unwrap()
}

#[test]
fn a_batch_is_stamped_beside_the_bytes_it_came_in() {
    let sent = batch();
    let before = sent.to_vec();
    let stamped = admitted(&sent).stamp(41, 42).unwrap();
    assert_eq!(sent, before, "stamping wrote to the producer's bytes");
    let (header, blob) = stamped.parts();
    assert_eq!(
        blob.as_ptr(),
        sent[sent.len() - blob.len()..].as_ptr(),
        "the blob is shared"
    );
    unchanged(&sent, &[header.clone(), blob.clone()]);
    let again = admitted(&sent).stamp(900, 901).unwrap();
    assert_eq!(stamped.parts().0.len(), again.parts().0.len());
    assert_ne!(
        stamped.parts().0,
        again.parts().0,
        "two stamps share no header"
    );
}

#[test]
fn batches_cut_from_a_run_cannot_change_it() {
    let one = admitted(&batch()).stamp(41, 42).unwrap().to_contiguous();
    let run = Bytes::from([&one[..], &one[..]].concat());
    let pieces: Vec<_> = split_batches(run.clone()).map(Result::unwrap).collect();
    assert_eq!(pieces.len(), 2);
    unchanged(&run, &pieces);
    let read = StampedBatch::verify(one.clone(), 3).unwrap();
    unchanged(
        &one,
        &[
            read.parts().0.clone(),
            read.parts().1.clone(),
            read.to_contiguous(),
        ],
    );
}

#[test]
fn compression_leaves_what_it_was_given() {
    let payload = owned(&"compressible ".repeat(500));
    let small = owned("small");
    for part in [&payload, &small] {
        let sent = compress(vec![part.clone(), part.clone()], 1024).unwrap();
        unchanged(part, &sent.parts);
        let joined = Bytes::from(sent.parts.concat());
        let read = decompress(joined.clone(), sent.compression, 1 << 20).unwrap();
        if sent.compression == Compression::None {
            unchanged(&joined, &[read]);
        }
    }
}
