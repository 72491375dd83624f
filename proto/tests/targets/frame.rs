//! Frame headers that read write themselves, and decompression keeps its limit.

use bytes::Bytes;
use imprint_proto::frame::{Compression, FRAME_HEADER_LEN, FrameHeader, compress, decompress};

pub const LIMIT: u32 = 1 << 16;

pub fn run(data: &[u8]) {
    if let Some(Ok(header)) = FrameHeader::decode_front(data) {
        assert_eq!(header.encode(), data[..FRAME_HEADER_LEN]);
        let payload = &data[FRAME_HEADER_LEN..];
        let _ = header.check_size(LIMIT);
        let _ = header.check_payload(payload);
    }
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(read) = decompress(bytes.clone(), Compression::Zstd, LIMIT) {
        assert!(read.len() <= LIMIT as usize);
    }
    let sent = compress(vec![bytes.clone()], 0).expect("zstd compresses anything");
    let parts = sent.parts.concat().into();
    let read = decompress(parts, sent.compression, data.len() as u32);
    assert_eq!(read.expect("what was compressed decompresses"), bytes);
}
