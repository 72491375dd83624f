//! Every byte that crosses a boundary of Imprint.
//!
//! * [`batch`]: the one layout messages travel and rest in, from the producer's builder through
//!   admission and stamping to the follower's check.
//! * [`envelope`] and [`frame`]: what nodes say to each other, and how it is framed on a connection.
//! * [`v1`]: the generated gRPC contract with clients and operators.
//! * [`ids`] and [`limits`]: the positions and the bounds that all of the above share.
//!
//! Invariants: decoding never panics, whatever the input; nothing is allocated for a count or a
//! length that the input has not paid for with bytes; what was encoded decodes to the same value.
//!
//! What this crate must not know: files, sockets, clocks, Raft.

pub mod batch;
pub mod envelope;
pub mod frame;
pub mod ids;
pub mod limits;
mod wire;

/// Generated gRPC messages, clients and servers of package `imprint.v1`.
pub mod v1 {
    tonic::include_proto!("imprint.v1");

    /// The encoded `FileDescriptorSet` of the package, for gRPC reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/imprint_v1.bin"));
}
