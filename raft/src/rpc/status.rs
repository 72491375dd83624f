//! What a reply's `meta` says.

/// Done; the payload is the method's reply.
pub const OK: u32 = 200;
/// The receiver doesn't know the method.
pub const NOT_FOUND: u32 = 404;
/// The request's time ran out on the receiver.
pub const TIMED_OUT: u32 = 408;
/// The request is larger than the receiver takes.
pub const TOO_LARGE: u32 = 413;
/// The receiver tried and failed.
pub const HANDLER_FAILED: u32 = 500;
/// Not ready, overloaded, or the peer is refused; the reason says which.
pub const NOT_READY: u32 = 503;
/// The frame has another version; the reply's frame has the receiver's.
pub const VERSION: u32 = 505;
