//! The stable reasons: their names, canonical codes and what a retry may do.
//!
//! A name is a contract with clients: it is never changed or reused. Whether a failure is answered
//! to the client (all of them) or would stop a replica (none of them) is decided where it arises.

use std::{fmt, time::Duration};
use tonic::Code;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $variant:ident = $number:literal, $name:literal, $code:ident, $retry:ident;)*) => {
        /// Why a call failed, as clients may depend on it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $($(#[doc = $doc])* $variant,)* }

        impl Reason {
            /// Every reason, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name that clients see.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The pinned number that stands for it between nodes.
            pub const fn number(self) -> u32 {
                match self { $(Self::$variant => $number,)* }
            }

            /// The canonical gRPC code.
            pub const fn code(self) -> Code {
                match self { $(Self::$variant => Code::$code,)* }
            }

            /// What it means, for the reference page.
            pub fn meaning(self) -> String {
                let text = match self { $(Self::$variant => concat!($($doc,)*),)* };
                text.trim().to_string()
            }

            const fn retry(self) -> Retry {
                match self { $(Self::$variant => Retry::$retry,)* }
            }
        }
    };
}

/// What trying again may do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Retry {
    /// The same call fails the same way.
    No,
    /// Nothing was done; the same call may work later or elsewhere.
    Safe,
    /// Something may have been done.
    Unknown,
}

reasons! {
    /// No topic of that name.
    TopicNotFound = 1, "TOPIC_NOT_FOUND", NotFound, No;
    /// The topic has fewer partitions.
    PartitionNotFound = 2, "PARTITION_NOT_FOUND", NotFound, No;
    /// A topic of that name is there already.
    TopicExists = 3, "TOPIC_EXISTS", AlreadyExists, No;
    /// A request field is outside of what is allowed.
    InvalidArgument = 4, "INVALID_ARGUMENT", InvalidArgument, No;
    /// The batch or one message of it is over a limit.
    BatchTooLarge = 5, "BATCH_TOO_LARGE", InvalidArgument, No;
    /// The bytes are not a producer batch; the facts name the rule.
    BatchMalformed = 6, "BATCH_MALFORMED", InvalidArgument, No;
    /// A checksum of the batch doesn't fit its bytes.
    BatchChecksum = 7, "BATCH_CHECKSUM_MISMATCH", InvalidArgument, No;
    /// A batch that a server has already stamped was sent as a producer's.
    BatchStamped = 8, "BATCH_ALREADY_STAMPED", InvalidArgument, No;
    /// The position is outside of the log; the range says what is there.
    OffsetOutOfRange = 9, "OFFSET_OUT_OF_RANGE", OutOfRange, No;
    /// The next offset isn't the expected one.
    OffsetMismatch = 10, "OFFSET_MISMATCH", FailedPrecondition, No;
    /// The append refused the batch.
    AppendRefused = 11, "APPEND_REFUSED", FailedPrecondition, No;
    /// The node asked for has no replica of the partition.
    NotAReplica = 12, "NOT_A_REPLICA", FailedPrecondition, No;
    /// Too few nodes for the replication asked for.
    NotEnoughNodes = 13, "NOT_ENOUGH_NODES", FailedPrecondition, No;
    /// No leader is known.
    NoLeader = 14, "NO_LEADER", Unavailable, Safe;
    /// The cluster hasn't formed, or this node isn't part of it yet.
    NotReady = 15, "NOT_READY", Unavailable, Safe;
    /// The replica isn't open here (yet).
    ReplicaNotOpen = 16, "REPLICA_NOT_OPEN", Unavailable, Safe;
    /// The node is shutting down.
    ShuttingDown = 17, "SHUTTING_DOWN", Unavailable, Safe;
    /// A peer that is needed can't be reached; nothing was done.
    PeerUnreachable = 18, "PEER_UNREACHABLE", Unavailable, Safe;
    /// A write that may or may not be in the log.
    OutcomeUnknown = 19, "OUTCOME_UNKNOWN", Unavailable, Unknown;
    /// A write that the deadline overtook; it may or may not be in the log.
    OutcomeUnknownDeadline = 20, "OUTCOME_UNKNOWN", DeadlineExceeded, Unknown;
    /// The deadline passed before anything was done.
    DeadlineExceeded = 21, "DEADLINE_EXCEEDED", DeadlineExceeded, Safe;
    /// Too many bytes in flight to one partition or the node.
    OverloadedBytes = 22, "OVERLOADED_BYTES", ResourceExhausted, Safe;
    /// Too many calls in flight.
    OverloadedCalls = 23, "OVERLOADED_CALLS", ResourceExhausted, Safe;
    /// Stored bytes don't check.
    Corrupt = 24, "STORED_DATA_CORRUPT", DataLoss, No;
    /// Leadership could not be confirmed.
    NotConfirmed = 25, "LEADERSHIP_NOT_CONFIRMED", Unavailable, Safe;
    /// A change was committed, and its effect isn't there by the deadline.
    NotUsableYet = 26, "NOT_USABLE_YET", DeadlineExceeded, Unknown;
    /// A fault of the server.
    Internal = 27, "INTERNAL", Internal, Unknown;
    /// Not known to this version.
    Unsupported = 28, "UNSUPPORTED", Unimplemented, No;
    /// The replica asked does not lead; between nodes only.
    NotLeader = 29, "NOT_LEADER", Unavailable, Safe;
    /// Too few replicas of the partition have room on their disks; the facts name a node, what it has free and its floor.
    DiskLow = 30, "DISK_LOW", ResourceExhausted, Safe;
    /// The leader's disk is short of room and leadership is about to move.
    DiskLowHere = 31, "DISK_LOW", ResourceExhausted, Safe;
}

impl Reason {
    /// The reason of that number; one that this version doesn't know becomes `Internal`.
    pub fn from_number(number: u32) -> Self {
        Self::ALL
            .iter()
            .copied()
            .find(|reason| reason.number() == number)
            .unwrap_or(Self::Internal)
    }

    /// True when nothing was done, so that the same call may be tried again without harm.
    pub fn is_safe_to_retry(self) -> bool {
        self.retry() == Retry::Safe
    }

    /// How long a client should wait before it tries again, where trying again may help.
    pub fn retry_after(self) -> Option<Duration> {
        let helps = self.is_safe_to_retry() && self != Self::DeadlineExceeded;
        helps.then_some(match self.code() {
            Code::ResourceExhausted => Duration::from_millis(200),
            _ => Duration::from_millis(100),
        })
    }
}

/// The reference page: every reason with its code and what a retry may do.
pub fn reference() -> String {
    let mut page = String::from(
        "# Errors\n\n\
         Generated from the table in `node/src/failure/reason.rs`. A failed call has a canonical gRPC code, and in \
         `grpc-status-details-bin` a `google.rpc.Status` with `ErrorInfo` (domain `imprint`, the reason below), \
         `RetryInfo` where a retry helps and `BadRequest` for bad arguments. The metadata keys `imprint-reason`, \
         `imprint-leader-node`, `imprint-leader-address`, `imprint-start-offset` and `imprint-end-offset` repeat the \
         essentials as text.\n\n\
         Retry: *safe* means that nothing was done; *unknown* that something may have been, so that only an idempotent \
         producer may repeat a write; *no* that the same call fails the same way.\n\n\
         | reason | code | retry | meaning |\n|---|---|---|---|\n",
    );
    for reason in Reason::ALL {
        let retry = match reason.retry() {
            Retry::No => "no",
            Retry::Safe => "safe",
            Retry::Unknown => "unknown",
        };
        let (name, code) = (reason.name(), reason.code());
        let meaning = reason.meaning();
        page.push_str(&format!("| `{name}` | {code:?} | {retry} | {meaning} |\n"));
    }
    page
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_are_unique_and_read_back() {
        let numbers: BTreeSet<u32> = Reason::ALL.iter().map(|r| r.number()).collect();
        assert_eq!(numbers.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            assert_eq!(Reason::from_number(reason.number()), *reason);
        }
        assert_eq!(Reason::from_number(0), Reason::Internal);
    }

    /// With UPDATE_DOCS set, the page is written instead of compared.
    #[test]
    fn the_reference_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/errors.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, reference()).expect("written");
        }
        let page = std::fs::read_to_string(path).expect("docs/errors.md");
        assert!(page == reference(), "run the tests once with UPDATE_DOCS=1");
    }

    #[test]
    fn an_unknown_outcome_is_never_offered_for_retry() {
        for reason in [
            Reason::OutcomeUnknown,
            Reason::OutcomeUnknownDeadline,
            Reason::Internal,
        ] {
            assert!(!reason.is_safe_to_retry());
            assert_eq!(reason.retry_after(), None);
        }
    }
}
