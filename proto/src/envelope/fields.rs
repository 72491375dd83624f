//! The encodings of the types that fields are made of.

use super::{EnvelopeError, Field, Scope, Specimens};
use crate::ids::{
    Epoch, FilePos, GroupId, LogIndex, NodeId, Offset, ReplicaId, StorageId, TimestampMicros,
};
use crate::wire::wire_len;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Every byte of it differs, so that a change of their order shows in a specimen.
const FULL: u128 = 0x100f_0e0d_0c0b_0a09_0807_0605_0403_0201;

macro_rules! numbers {
    ($($ty:ty),* $(,)?) => {$(
        impl Field for $ty {
            const MIN_LEN: usize = size_of::<$ty>();

            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn get(scope: &mut Scope<'_>) -> Result<Self, EnvelopeError> {
                Ok(<$ty>::from_le_bytes(scope.take()?))
            }

            fn specimen(of: &mut Specimens) -> Self {
                of.choose(|_| 0 as $ty, |n| (FULL + n) as $ty, |n| {
                    if n % 2 == 0 { <$ty>::MIN } else { <$ty>::MAX }
                })
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64);

macro_rules! newtypes {
    ($($ty:ident($inner:ty)),* $(,)?) => {$(
        impl Field for $ty {
            const MIN_LEN: usize = <$inner as Field>::MIN_LEN;

            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }

            fn get(scope: &mut Scope<'_>) -> Result<Self, EnvelopeError> {
                <$inner as Field>::get(scope).map($ty)
            }

            fn specimen(of: &mut Specimens) -> Self {
                Self(Field::specimen(of))
            }
        }
    )*};
}

newtypes!(
    NodeId(u64),
    GroupId(u64),
    ReplicaId(u64),
    Offset(u64),
    LogIndex(u64),
    Epoch(u64),
    FilePos(u64),
    TimestampMicros(u64),
    StorageId([u8; 16]),
);

impl Field for [u8; 16] {
    const MIN_LEN: usize = 16;

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn get(scope: &mut Scope<'_>) -> Result<Self, EnvelopeError> {
        scope.take()
    }

    fn specimen(of: &mut Specimens) -> Self {
        u128::specimen(of).to_le_bytes()
    }
}

impl Field for bool {
    const MIN_LEN: usize = 1;

    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn get(scope: &mut Scope<'_>) -> Result<Self, EnvelopeError> {
        match scope.take()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [value] => {
                let (ty, field) = scope.names();
                Err(EnvelopeError::NotBool { ty, field, value })
            }
        }
    }

    fn specimen(of: &mut Specimens) -> Self {
        of.choose(|_| false, |_| true, |n| n % 2 == 1)
    }
}

impl Field for Duration {
    const MIN_LEN: usize = 8;

    /// Longer than an `i64` of nanoseconds (292 years) is written as that.
    fn put(&self, out: &mut Vec<u8>) {
        i64::try_from(self.as_nanos()).unwrap_or(i64::MAX).put(out);
    }

    fn get(scope: &mut Scope<'_>) -> Result<Self, EnvelopeError> {
        let nanos = i64::get(scope)?;
        u64::try_from(nanos).map(Self::from_nanos).map_err(|_| {
            let (ty, field) = scope.names();
            EnvelopeError::NegativeDuration { ty, field, nanos }
        })
    }

    fn specimen(of: &mut Specimens) -> Self {
        Self::from_nanos(i64::specimen(of).unsigned_abs() >> 1)
    }
}

impl Field for Bytes {
    const MIN_LEN: usize = 4;

    fn put(&self, out: &mut Vec<u8>) {
        put_slice(self, out);
    }

    fn get(scope: &mut Scope<'_>) -> Result<Self, EnvelopeError> {
        scope.take_bytes()
    }

    fn specimen(of: &mut Specimens) -> Self {
        of.choose(
            |_| Self::new(),
            |n| Self::from(format!("bytes {n}")),
            |n| Self::from(vec![0xff; 256 + n as usize]),
        )
    }
}

impl Field for String {
    const MIN_LEN: usize = 4;

    fn put(&self, out: &mut Vec<u8>) {
        put_slice(self.as_bytes(), out);
    }

    fn get(scope: &mut Scope<'_>) -> Result<Self, EnvelopeError> {
        let raw = scope.take_slice()?;
        match std::str::from_utf8(raw) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => {
                let (ty, field) = scope.names();
                Err(EnvelopeError::NotUtf8 { ty, field })
            }
        }
    }

    fn specimen(of: &mut Specimens) -> Self {
        of.choose(
            |_| Self::new(),
            |n| format!("text {n}"),
            |n| format!("\0 \u{e9} \u{10ffff} {n}"),
        )
    }
}

fn put_slice(raw: &[u8], out: &mut Vec<u8>) {
    wire_len(raw.len()).put(out);
    out.extend_from_slice(raw);
}

impl<T: Field> Field for Option<T> {
    const MIN_LEN: usize = 1;

    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn get(scope: &mut Scope<'_>) -> Result<Self, EnvelopeError> {
        bool::get(scope)?.then(|| T::get(scope)).transpose()
    }

    fn specimen(of: &mut Specimens) -> Self {
        (of.items() > 0).then(|| T::specimen(of))
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    const MIN_LEN: usize = A::MIN_LEN + B::MIN_LEN;

    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn get(scope: &mut Scope<'_>) -> Result<Self, EnvelopeError> {
        Ok((A::get(scope)?, B::get(scope)?))
    }

    fn specimen(of: &mut Specimens) -> Self {
        (A::specimen(of), B::specimen(of))
    }
}

impl<T: Field> Field for Vec<T> {
    const MIN_LEN: usize = 4;

    fn put(&self, out: &mut Vec<u8>) {
        wire_len(self.len()).put(out);
        self.iter().for_each(|item| item.put(out));
    }

    fn get(scope: &mut Scope<'_>) -> Result<Self, EnvelopeError> {
        let count = scope.take_count(T::MIN_LEN)?;
        // No more at once than the scope has bytes: an item may be larger in memory than on the
        // wire. What is beyond grows as it is read.
        let room = scope.left() / size_of::<T>().max(1);
        let mut items = Self::with_capacity(count.min(room));
        for _ in 0..count {
            items.push(T::get(scope)?);
        }
        Ok(items)
    }

    fn specimen(of: &mut Specimens) -> Self {
        (0..of.items()).map(|_| T::specimen(of)).collect()
    }
}

impl<T: Field + Ord> Field for BTreeSet<T> {
    const MIN_LEN: usize = 4;

    fn put(&self, out: &mut Vec<u8>) {
        wire_len(self.len()).put(out);
        self.iter().for_each(|item| item.put(out));
    }

    fn get(scope: &mut Scope<'_>) -> Result<Self, EnvelopeError> {
        let count = scope.take_count(T::MIN_LEN)?;
        let mut items = Self::new();
        for _ in 0..count {
            let item = T::get(scope)?;
            check_order(scope, items.last(), &item)?;
            items.insert(item);
        }
        Ok(items)
    }

    fn specimen(of: &mut Specimens) -> Self {
        (0..of.items()).map(|_| T::specimen(of)).collect()
    }
}

impl<K: Field + Ord, V: Field> Field for BTreeMap<K, V> {
    const MIN_LEN: usize = 4;

    fn put(&self, out: &mut Vec<u8>) {
        wire_len(self.len()).put(out);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }

    fn get(scope: &mut Scope<'_>) -> Result<Self, EnvelopeError> {
        let count = scope.take_count(K::MIN_LEN + V::MIN_LEN)?;
        let mut items = Self::new();
        for _ in 0..count {
            let key = K::get(scope)?;
            check_order(scope, items.last_key_value().map(|(last, _)| last), &key)?;
            let value = V::get(scope)?;
            items.insert(key, value);
        }
        Ok(items)
    }

    fn specimen(of: &mut Specimens) -> Self {
        let items = 0..of.items();
        items.map(|_| Field::specimen(of)).collect()
    }
}

/// Refuses a key that does not come after the last one: equal maps must have equal bytes.
fn check_order<K: Ord>(scope: &Scope<'_>, last: Option<&K>, next: &K) -> Result<(), EnvelopeError> {
    if last.is_none_or(|last| last < next) {
        return Ok(());
    }
    let (ty, field) = scope.names();
    Err(EnvelopeError::MapOrder { ty, field })
}
