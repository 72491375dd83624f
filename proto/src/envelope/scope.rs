//! The reader's view of a buffer: where it stands, and where its scope ends.
//!
//! Each envelope is a scope of its own. Entering one narrows the end, leaving it restores the
//! parent's and moves past whatever the child did not read. Nothing is ever read with the parent's
//! end in place of the child's.

use super::{Envelope, EnvelopeError, Header};
use crate::limits::MAX_ENVELOPE_DEPTH;
use crate::wire::{array, u32_at};
use bytes::Bytes;

/// Where a reader stands. Invariant: `at <= end <= input.len()`.
#[derive(Debug)]
pub struct Scope<'a> {
    input: &'a Bytes,
    at: usize,
    end: usize,
    depth: u32,
    ty: &'static str,
    field: &'static str,
}

/// Reads one envelope that fills the input.
pub(super) fn read_whole<T: Envelope>(input: &Bytes, kind: Header) -> Result<T, EnvelopeError> {
    let (value, end) = read_front(input, kind)?;
    match input.len() - end {
        0 => Ok(value),
        left => Err(EnvelopeError::BytesLeft { ty: T::NAME, left }),
    }
}

/// Reads one envelope from the front of the input, and says where it ends.
pub(super) fn read_front<T: Envelope>(
    input: &Bytes,
    kind: Header,
) -> Result<(T, usize), EnvelopeError> {
    let needed = kind.header_len();
    if input.len() < needed {
        return Err(EnvelopeError::HeaderCut {
            ty: T::NAME,
            needed,
            left: input.len(),
        });
    }
    let mut scope = Scope {
        input,
        at: 0,
        end: input.len(),
        depth: 0,
        ty: T::NAME,
        field: "",
    };
    let value = scope.envelope(kind)?;
    Ok((value, scope.at))
}

impl<'a> Scope<'a> {
    /// Bytes left in this scope.
    pub fn left(&self) -> usize {
        self.end - self.at
    }

    /// Whether the scope ends here: the remaining fields take their defaults.
    pub fn is_at_end(&self) -> bool {
        self.left() == 0
    }

    /// Names the field that is read next, for errors.
    pub fn field(&mut self, name: &'static str) {
        self.field = name;
    }

    /// The error for a field that is not there and has no default.
    pub fn missing(&self) -> EnvelopeError {
        EnvelopeError::FieldMissing {
            ty: self.ty,
            field: self.field,
        }
    }

    /// The error for a value that a closed enum or a union does not have.
    pub fn unknown_variant(&self, value: i32) -> EnvelopeError {
        EnvelopeError::UnknownVariant {
            ty: self.ty,
            field: self.field,
            value,
        }
    }

    /// The names that errors carry: the type, and its field.
    pub(super) fn names(&self) -> (&'static str, &'static str) {
        (self.ty, self.field)
    }

    fn spill(&self, needed: u64) -> EnvelopeError {
        EnvelopeError::Spill {
            ty: self.ty,
            field: self.field,
            needed,
            left: self.left(),
        }
    }

    /// Moves past the next `len` bytes and says where they begin.
    fn advance(&mut self, len: usize) -> Result<usize, EnvelopeError> {
        if len > self.left() {
            return Err(self.spill(len as u64));
        }
        let start = self.at;
        self.at += len;
        Ok(start)
    }

    /// Takes `N` bytes.
    ///
    /// # Errors
    /// R5 where the scope has fewer.
    pub fn take<const N: usize>(&mut self) -> Result<[u8; N], EnvelopeError> {
        let start = self.advance(N)?;
        Ok(array(self.input, start))
    }

    /// Takes a length and as many bytes.
    ///
    /// # Errors
    /// R5 where the scope has fewer.
    pub fn take_slice(&mut self) -> Result<&'a [u8], EnvelopeError> {
        let len = u32::from_le_bytes(self.take()?) as usize;
        let start = self.advance(len)?;
        Ok(&self.input[start..start + len])
    }

    /// As [`Scope::take_slice`], as a slice that shares the input's memory.
    ///
    /// # Errors
    /// R5 where the scope has fewer.
    pub fn take_bytes(&mut self) -> Result<Bytes, EnvelopeError> {
        let len = u32::from_le_bytes(self.take()?) as usize;
        let start = self.advance(len)?;
        Ok(self.input.slice(start..start + len))
    }

    /// Takes a count of items of at least `min_len` bytes each.
    ///
    /// # Errors
    /// R5 where so many can't fit in the scope.
    pub fn take_count(&mut self, min_len: usize) -> Result<usize, EnvelopeError> {
        let count = u32::from_le_bytes(self.take()?);
        let needed = u64::from(count).saturating_mul(min_len.max(1) as u64);
        if needed > self.left() as u64 {
            return Err(self.spill(needed));
        }
        Ok(count as usize)
    }

    /// Takes an envelope: header, rules, fields, and whatever its end leaves unread.
    pub(super) fn envelope<T: Envelope>(&mut self, kind: Header) -> Result<T, EnvelopeError> {
        let child_end = self.enter::<T>(kind)?;
        let (end, names) = (self.end, self.names());
        (self.end, self.ty, self.field) = (child_end, T::NAME, "");
        self.depth += 1;
        let value = T::get_fields(self)?;
        self.depth -= 1;
        (self.at, self.end) = (child_end, end);
        (self.ty, self.field) = names;
        Ok(value)
    }

    /// Reads a header and applies R1 to R4 and the CRC. Says where the envelope ends.
    fn enter<T: Envelope>(&mut self, kind: Header) -> Result<usize, EnvelopeError> {
        let ty = T::NAME;
        if self.depth >= MAX_ENVELOPE_DEPTH {
            return Err(EnvelopeError::TooDeep {
                ty,
                limit: MAX_ENVELOPE_DEPTH,
            });
        }
        let start = self.advance(kind.header_len())?;
        let header = &self.input[start..self.at];
        let (writer_version, writer_compat) = (header[0], header[1]);
        let size = u32_at(header, 2);
        self.check_bounds(ty, size)?;
        check_versions::<T>(writer_version, writer_compat)?;
        let end = self.at + size as usize;
        if kind == Header::Checked {
            let (stored, computed) = (u32_at(header, 6), crc32c::crc32c(&self.input[self.at..end]));
            if stored != computed {
                return Err(EnvelopeError::Checksum {
                    ty,
                    stored,
                    computed,
                });
            }
        }
        Ok(end)
    }

    /// R1 and R2.
    fn check_bounds(&self, ty: &'static str, size: u32) -> Result<(), EnvelopeError> {
        let left_in_buffer = self.input.len() - self.at;
        if size as usize > left_in_buffer {
            return Err(EnvelopeError::SizeExceedsBuffer {
                ty,
                size,
                left: left_in_buffer,
            });
        }
        if size as usize > self.left() {
            return Err(EnvelopeError::CrossesParent {
                ty,
                size,
                left: self.left(),
            });
        }
        Ok(())
    }
}

/// R3 and R4.
fn check_versions<T: Envelope>(writer_version: u8, writer_compat: u8) -> Result<(), EnvelopeError> {
    if writer_compat > T::VERSION {
        return Err(EnvelopeError::WriterTooNew {
            ty: T::NAME,
            writer_version,
            writer_compat,
            reader_version: T::VERSION,
        });
    }
    if writer_version < T::COMPAT {
        return Err(EnvelopeError::WriterTooOld {
            ty: T::NAME,
            writer_version,
            reader_compat: T::COMPAT,
        });
    }
    Ok(())
}
