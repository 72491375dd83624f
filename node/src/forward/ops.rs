//! The operations that a node may ask of another, by pinned number, and their private messages.

use imprint_proto::envelope;

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $label:literal;)*) => {
        /// What is asked of the other node.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Op { $($(#[$doc])* $name,)* }

        impl Op {
            pub const fn number(self) -> u32 {
                match self { $(Self::$name => $number,)* }
            }

            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// For metrics and log lines.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)* }
            }
        }
    };
}

ops! {
    /// Append at this node's replica: `SendRequest` to `SendResponse`.
    Send = 1, "send";
    /// Poll this node's replica: `PollRequest` to `PollResponse`.
    Poll = 2, "poll";
    /// Propose to the controller: a command to its answer.
    Control = 3, "control";
    /// The state of one replica here: [`ReplicaQuery`] to [`ReplicaState`].
    Describe = 4, "describe";
    /// As `Describe` of the leader, after its leadership was confirmed.
    ReadIndex = 5, "read_index";
    /// The digest of one replica here: [`ReplicaQuery`] to `imprint.v1.ReplicaDigest`.
    Digest = 6, "digest";
    /// Trim at this node's replica: `TrimPartitionRequest` to `TrimPartitionResponse`.
    Trim = 7, "trim";
}

envelope! {
    /// A question about one replica.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ReplicaQuery: version 1, compat 0 {
        partition_id: u64,
        /// Digest up to this offset.
        upto: u64,
        /// Only the leader is to answer; another replica says who leads.
        leader_only: bool,
        /// Also what has to be looked up. False: an old node asks for none; one that is asked gives none.
        #[since(1)]
        details: bool = false,
    }
}

envelope! {
    /// How one replica stands.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ReplicaState: version 1, compat 0 {
        replica_id: u64,
        /// Node id; 0: none known.
        leader: u64,
        epoch: u64,
        start: u64,
        commit: u64,
        end: u64,
        synced: u64,
        bytes: u64,
        segments: u32,
        /// Where they were asked for. `None`: not asked for, or of an old node; they are shown as not known.
        #[since(1)]
        details: Option<ReplicaDetails> = None,
        /// What is damaged there. Empty: nothing that is known of; an old node does not tell, and an old reader shows none.
        #[since(1)]
        damaged: Vec<DamageWire> = Vec::new(),
    }
}

envelope! {
    /// Offsets of which a replica's bytes are bad or missing.
    #[derive(Debug, Clone, PartialEq)]
    pub struct DamageWire: version 0, compat 0 {
        from_offset: u64,
        to_offset: u64,
        found: String,
    }
}

envelope! {
    /// What of a replica has to be looked up.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ReplicaDetails: version 0, compat 0 {
        /// Stamp of the first kept message.
        oldest_us: Option<u64>,
        /// What retention deletes next: the offsets below; 0: nothing.
        next_upto: u64,
        next_bytes: u64,
        next_due_us: Option<u64>,
        next_bytes_missing: Option<u64>,
        next_why_not: String,
    }
}
