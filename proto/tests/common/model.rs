//! A batch decoder and encoder that is slow and obvious: it copies everything, goes over the bytes
//! once per rule, and shares no code with the crate. The property tests hold the two together.

use imprint_proto::limits::BatchLimits;
use xxhash_rust::xxh3::xxh3_64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFrame {
    pub checksum: u64,
    pub id: u128,
    pub offset_delta: u32,
    pub timestamp_delta: u32,
    pub reserved: u64,
    pub payload: Vec<u8>,
    pub user_headers: Vec<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelBatch {
    pub partition_id: u64,
    pub base_offset: u64,
    pub base_timestamp: u64,
    pub origin_timestamp: u64,
    pub batch_length: u64,
    pub batch_checksum: u64,
    pub message_count: u32,
    pub frames: Vec<ModelFrame>,
}

/// A reader that takes from the front and says `None` when there is too little.
struct Reader(Vec<u8>);

impl Reader {
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        if len > self.0.len() {
            return None;
        }
        let rest = self.0.split_off(len);
        Some(std::mem::replace(&mut self.0, rest))
    }

    fn number(&mut self, width: usize) -> Option<u128> {
        let bytes = self.take(width)?;
        let mut value = 0;
        for byte in bytes.iter().rev() {
            value = value * 256 + u128::from(*byte);
        }
        Some(value)
    }

    fn u32(&mut self) -> Option<u32> {
        self.number(4).map(|value| value as u32)
    }

    fn u64(&mut self) -> Option<u64> {
        self.number(8).map(|value| value as u64)
    }
}

fn header(bytes: &[u8]) -> Option<ModelBatch> {
    let mut reader = Reader(bytes.get(..256)?.to_vec());
    Some(ModelBatch {
        partition_id: reader.u64()?,
        base_offset: reader.u64()?,
        base_timestamp: reader.u64()?,
        origin_timestamp: reader.u64()?,
        batch_length: reader.u64()?,
        batch_checksum: reader.u64()?,
        message_count: reader.u32()?,
        frames: Vec::new(),
    })
}

/// The frames, or `None` where they do not tile the blob.
fn frames(blob: &[u8], count: u32) -> Option<Vec<ModelFrame>> {
    let mut reader = Reader(blob.to_vec());
    let mut frames = Vec::new();
    while !reader.0.is_empty() {
        if frames.len() as u64 == u64::from(count) {
            return None;
        }
        let (checksum, id) = (reader.u64()?, reader.number(16)?);
        let (offset_delta, timestamp_delta) = (reader.u32()?, reader.u32()?);
        let (headers_len, payload_len) = (reader.u32()?, reader.u32()?);
        let reserved = reader.u64()?;
        if reserved != 0 {
            return None;
        }
        frames.push(ModelFrame {
            checksum,
            id,
            offset_delta,
            timestamp_delta,
            reserved,
            payload: reader.take(payload_len as usize)?,
            user_headers: reader.take(headers_len as usize)?,
        });
    }
    (frames.len() as u64 == u64::from(count)).then_some(frames)
}

/// Whether a block of user headers is well formed and within the limits.
fn headers_fit(block: &[u8], limits: &BatchLimits) -> bool {
    if block.len() > limits.max_user_headers_bytes as usize {
        return false;
    }
    let mut reader = Reader(block.to_vec());
    let mut fields = 0;
    while !reader.0.is_empty() {
        let Some(kind) = reader.number(1) else {
            return false;
        };
        let Some(len) = reader.u32() else {
            return false;
        };
        let natural = match kind {
            0 => return false,
            3 | 4 | 9 => Some(1),
            5 | 10 => Some(2),
            6 | 11 | 14 => Some(4),
            7 | 12 | 15 => Some(8),
            8 | 13 => Some(16),
            _ => None,
        };
        if natural.is_some_and(|size| size != len) {
            return false;
        }
        if len == 0 || len > limits.max_header_field_bytes {
            return false;
        }
        if reader.take(len as usize).is_none() {
            return false;
        }
        fields += 1;
    }
    fields % 2 == 0
}

impl ModelFrame {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.checksum.to_le_bytes());
        out.extend(self.id.to_le_bytes());
        out.extend(self.offset_delta.to_le_bytes());
        out.extend(self.timestamp_delta.to_le_bytes());
        out.extend((self.user_headers.len() as u32).to_le_bytes());
        out.extend((self.payload.len() as u32).to_le_bytes());
        out.extend(self.reserved.to_le_bytes());
        out.extend(&self.payload);
        out.extend(&self.user_headers);
        out
    }

    fn right_checksum(&self) -> u64 {
        xxh3_64(&self.encode()[8..])
    }
}

impl ModelBatch {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for field in [
            self.partition_id,
            self.base_offset,
            self.base_timestamp,
            self.origin_timestamp,
            self.batch_length,
            self.batch_checksum,
        ] {
            out.extend(field.to_le_bytes());
        }
        out.extend(self.message_count.to_le_bytes());
        out.resize(256, 0);
        for frame in &self.frames {
            out.extend(frame.encode());
        }
        out
    }

    fn right_checksum(&self) -> u64 {
        let mut input = Vec::new();
        for field in [
            self.partition_id,
            self.base_offset,
            self.base_timestamp,
            self.origin_timestamp,
            self.batch_length,
        ] {
            input.extend(field.to_le_bytes());
        }
        input.extend(self.message_count.to_le_bytes());
        for frame in &self.frames {
            input.extend(frame.checksum.to_le_bytes());
        }
        xxh3_64(&input)
    }

    /// Makes the checksums right, whatever else is wrong.
    pub fn seal(&mut self) {
        for frame in &mut self.frames {
            frame.checksum = frame.right_checksum();
        }
        self.batch_checksum = self.right_checksum();
    }
}

/// The number of the first rule that the bytes break, or the batch.
pub fn admit(bytes: &[u8], limits: &BatchLimits) -> Result<ModelBatch, u8> {
    let mut batch = header(bytes).ok_or(1)?;
    let length = batch.batch_length;
    let checks = [
        (2, length >= 256 && length == bytes.len() as u64),
        (3, length <= limits.max_batch_bytes),
        (4, bytes[52..256].iter().all(|byte| *byte == 0)),
        (5, (1..=limits.max_messages).contains(&batch.message_count)),
    ];
    first_broken(&checks)?;
    batch.frames = frames(&bytes[256..], batch.message_count).ok_or(6)?;
    let all = &batch.frames;
    let indexed = || (0_u32..).zip(all);
    let unstamped = (batch.partition_id, batch.base_offset, batch.base_timestamp) == (0, 0, 0);
    let checks = [
        (
            7,
            indexed().all(|(index, frame)| frame.offset_delta == index),
        ),
        (
            8,
            all.iter()
                .all(|frame| frame.checksum == frame.right_checksum()),
        ),
        (9, all.iter().any(|frame| frame.timestamp_delta == 0)),
        (
            10,
            all.iter()
                .all(|frame| headers_fit(&frame.user_headers, limits)),
        ),
        (11, batch.batch_checksum == batch.right_checksum()),
        (12, unstamped),
    ];
    first_broken(&checks)?;
    Ok(batch)
}

/// Whether a follower may take the bytes as a batch of the partition.
pub fn verify(bytes: &[u8], partition_id: u64) -> Option<ModelBatch> {
    let mut batch = header(bytes)?;
    let sound = batch.batch_length == bytes.len() as u64
        && bytes[52..256].iter().all(|byte| *byte == 0)
        && batch.message_count >= 1
        && batch.partition_id == partition_id
        && u128::from(batch.base_offset) + u128::from(batch.message_count) <= u128::from(u64::MAX);
    if !sound {
        return None;
    }
    batch.frames = frames(&bytes[256..], batch.message_count)?;
    let sound = (0_u32..).zip(&batch.frames).all(|(index, frame)| {
        frame.offset_delta == index && frame.checksum == frame.right_checksum()
    });
    (sound && batch.batch_checksum == batch.right_checksum()).then_some(batch)
}

fn first_broken(checks: &[(u8, bool)]) -> Result<(), u8> {
    match checks.iter().find(|(_, holds)| !holds) {
        Some((rule, _)) => Err(*rule),
        None => Ok(()),
    }
}

/// Where the frames begin, as far as they can be followed.
pub fn frame_starts(bytes: &[u8]) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut at = 256;
    while let Some(head) = bytes.get(at..at + 48) {
        starts.push(at);
        let len = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap()) as usize;
        at += 48 + len(32) + len(36);
    }
    starts
}

/// Makes length and checksums right again where the frames can be followed, so that damage reaches
/// the rules behind those.
pub fn reseal(bytes: &mut [u8]) {
    let starts = frame_starts(bytes);
    let len = bytes.len();
    overwrite(bytes, 32, &(len as u64).to_le_bytes());
    let mut input = bytes.get(..40).unwrap_or_default().to_vec();
    input.extend(bytes.get(48..52).unwrap_or_default());
    for (at, &start) in starts.iter().enumerate() {
        let end = starts.get(at + 1).copied().unwrap_or(bytes.len());
        let checksum = xxh3_64(&bytes[start + 8..end]).to_le_bytes();
        overwrite(bytes, start, &checksum);
        input.extend(checksum);
    }
    let checksum = xxh3_64(&input);
    overwrite(bytes, 40, &checksum.to_le_bytes());
}

/// Writes over the bytes at `at`, where there are enough of them.
pub fn overwrite(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(slot) = bytes.get_mut(at..at + value.len()) {
        slot.copy_from_slice(value);
    }
}
