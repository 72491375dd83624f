//! One error kind per rule of the envelope's reader.

/// Why bytes are not the value they should be. Deterministic in the bytes: the same bytes fail
/// again. On a connection it means that the stream can't be trusted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// The outermost header does not fit in the buffer.
    #[error("{ty}: header of {needed} bytes has only {left}")]
    HeaderCut {
        ty: &'static str,
        needed: usize,
        left: usize,
    },
    /// R1.
    #[error("{ty}: size {size} exceeds the buffer, which has {left} bytes left")]
    SizeExceedsBuffer {
        ty: &'static str,
        size: u32,
        left: usize,
    },
    /// R2.
    #[error("{ty}: size {size} crosses its parent's end, {left} bytes away")]
    CrossesParent {
        ty: &'static str,
        size: u32,
        left: usize,
    },
    /// R3.
    #[error("{ty}: written for readers from version {writer_compat}, this one is {reader_version}")]
    WriterTooNew {
        ty: &'static str,
        writer_version: u8,
        writer_compat: u8,
        reader_version: u8,
    },
    /// R4.
    #[error("{ty}: written by version {writer_version}, this reader goes back to {reader_compat}")]
    WriterTooOld {
        ty: &'static str,
        writer_version: u8,
        reader_compat: u8,
    },
    /// The body is not what its checksum says.
    #[error("{ty}: stored CRC {stored:#010x}, computed {computed:#010x}")]
    Checksum {
        ty: &'static str,
        stored: u32,
        computed: u32,
    },
    /// R5.
    #[error("{ty}.{field}: needs {needed} bytes, its scope has {left} left")]
    Spill {
        ty: &'static str,
        field: &'static str,
        needed: u64,
        left: usize,
    },
    /// R6.
    #[error("{ty}: {left} bytes left after the outermost envelope")]
    BytesLeft { ty: &'static str, left: usize },
    /// The scope ended before a field that every writer writes.
    #[error("{ty}.{field}: missing, and has no default")]
    FieldMissing {
        ty: &'static str,
        field: &'static str,
    },
    /// A bool, or the mark of an optional, that is neither 0 nor 1.
    #[error("{ty}.{field}: {value:#04x} is neither 0 nor 1")]
    NotBool {
        ty: &'static str,
        field: &'static str,
        value: u8,
    },
    /// A closed enum's or a union's value that this build does not know.
    #[error("{ty}.{field}: unknown value {value}")]
    UnknownVariant {
        ty: &'static str,
        field: &'static str,
        value: i32,
    },
    /// A string that is not UTF-8.
    #[error("{ty}.{field}: not UTF-8")]
    NotUtf8 {
        ty: &'static str,
        field: &'static str,
    },
    /// A map whose keys do not strictly ascend.
    #[error("{ty}.{field}: map keys out of order")]
    MapOrder {
        ty: &'static str,
        field: &'static str,
    },
    /// A duration below zero.
    #[error("{ty}.{field}: negative duration of {nanos} ns")]
    NegativeDuration {
        ty: &'static str,
        field: &'static str,
        nanos: i64,
    },
    /// Envelopes inside envelopes beyond the limit.
    #[error("{ty}: nested more than {limit} deep")]
    TooDeep { ty: &'static str, limit: u32 },
}

macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident = $label:literal;)*) => {
        /// The rules of the reader, one per variant of [`EnvelopeError`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Rule { $($(#[$doc])* $rule,)* }

        impl Rule {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$rule,)*];

            /// A short name: a metric's label.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$rule => $label,)* }
            }
        }

        impl EnvelopeError {
            /// The rule that was broken.
            pub const fn rule(&self) -> Rule {
                match self { $(Self::$rule { .. } => Rule::$rule,)* }
            }
        }
    };
}

rules! {
    HeaderCut = "header";
    SizeExceedsBuffer = "R1";
    CrossesParent = "R2";
    WriterTooNew = "R3";
    WriterTooOld = "R4";
    Checksum = "crc";
    Spill = "R5";
    BytesLeft = "R6";
    FieldMissing = "missing";
    NotBool = "bool";
    UnknownVariant = "variant";
    NotUtf8 = "utf8";
    MapOrder = "map";
    NegativeDuration = "duration";
    TooDeep = "depth";
}

impl EnvelopeError {
    /// Whether the two ends are of versions that do not go together, as against damaged bytes.
    pub const fn is_version_mismatch(&self) -> bool {
        matches!(self, Self::WriterTooNew { .. } | Self::WriterTooOld { .. })
    }
}
