//! Every byte that crosses a boundary of Imprint.

/// Generated gRPC messages, clients and servers of package `imprint.v1`.
pub mod v1 {
    tonic::include_proto!("imprint.v1");

    /// The encoded `FileDescriptorSet` of the package, for gRPC reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/imprint_v1.bin"));
}
