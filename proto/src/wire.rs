//! Reading fixed-width little-endian integers out of a slice, without a way to panic.
//!
//! Callers check the length once, up front, and then pick fields by offset. A field beyond the end
//! reads as zero rather than panicking; no caller relies on that.

/// The `N` bytes at `at`, or zeros where the slice is too short.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(source) = bytes.get(at..).and_then(|rest| rest.get(..N)) {
        out.copy_from_slice(source);
    }
    out
}

/// The little-endian `u32` at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

/// The little-endian `u64` at `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// The little-endian `u128` at `at`.
pub(crate) fn u128_at(bytes: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(array(bytes, at))
}

/// A length as the `u32` that goes on the wire. A value too long for it (nothing within the limits
/// comes near) is written as the greatest `u32`, which every reader refuses.
pub(crate) fn wire_len(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
