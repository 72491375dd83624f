//! Names and positions as types of their own.
//!
//! An offset is the client's, an index is Raft's, a file position is a byte in a file; as bare
//! integers they would mix without a complaint. The number inside is public: these types prevent
//! confusion, they do not hide anything.

use std::fmt;

/// Declares a `u64` newtype with the traits that every id and position needs.
macro_rules! number {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// The bare number.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// This value moved up by `count`, or `None` where that would wrap.
            pub const fn checked_add(self, count: u64) -> Option<Self> {
                match self.0.checked_add(count) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }
        }

        impl From<u64> for $name {
            fn from(value: u64) -> Self {
                Self(value)
            }
        }

        impl From<$name> for u64 {
            fn from(value: $name) -> Self {
                value.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

number! {
    /// A process with a data directory; given by the operator, at least 1.
    NodeId
}
number! {
    /// A Raft group: 0 is the controller, any other is the partition of the same number.
    GroupId
}
number! {
    /// A member of a Raft group. Given out by the controller and never used twice, so that a
    /// replica placed again on the same node is a stranger to the old one's votes.
    ReplicaId
}
number! {
    /// A message's place in its partition, as clients see it.
    Offset
}
number! {
    /// An entry's place in a Raft log.
    LogIndex
}
number! {
    /// A leader's term, as clients see it.
    Epoch
}
number! {
    /// A byte in a file.
    FilePos
}
number! {
    /// Microseconds since the start of 1970, UTC.
    TimestampMicros
}

/// The name of one data directory, drawn at random when it was first written. A node that comes
/// back with another one has lost its data.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageId(pub [u8; 16]);

impl fmt::Display for StorageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StorageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StorageId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_print_as_themselves() {
        assert_eq!(Offset(7).to_string(), "7");
        assert_eq!(format!("{:?}", LogIndex(7)), "LogIndex(7)");
        assert_eq!(format!("{:>4}", Epoch(3)), "   3");
        assert_eq!(
            StorageId([0xab; 16]).to_string(),
            "abababababababababababababababab"
        );
    }

    #[test]
    fn positions_do_not_wrap() {
        assert_eq!(Offset(40).checked_add(2), Some(Offset(42)));
        assert_eq!(Offset(u64::MAX).checked_add(1), None);
    }
}
