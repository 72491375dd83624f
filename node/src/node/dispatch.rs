//! Calls of other nodes, to whom they concern: Raft, formation, forwarded calls.

use crate::{core::Core, formation::Formation};
use bytes::Bytes;
use imprint_raft::{
    consensus::RaftDispatcher,
    rpc::{ConnInfo, Dispatcher, Hello, HelloSource, Refusal, Replier, methods, status},
};
use std::sync::{Arc, OnceLock};

/// The node's side of the internal RPC.
pub(super) struct NodeDispatcher {
    pub raft: RaftDispatcher,
    pub formation: Arc<Formation>,
    pub hello: HelloSource,
    /// Set once the node can serve forwarded calls.
    pub core: Arc<OnceLock<Arc<Core>>>,
}

impl Dispatcher for NodeDispatcher {
    fn hello(&self, theirs: &Hello) -> Result<Hello, Refusal> {
        self.formation.check_hello(theirs).map_err(Refusal)?;
        Ok((self.hello)())
    }

    fn dispatch(&self, conn: ConnInfo, method: u32, payload: Bytes, reply: Replier) {
        let (payload, reply) = match self.raft.dispatch(&conn, method, payload, reply) {
            Ok(()) => return,
            Err(given_back) => given_back,
        };
        match method {
            methods::FORM => reply.ok(vec![self.formation.who_is()]),
            methods::FORWARD => self.forwarded(payload, reply),
            _ => reply.error(status::NOT_FOUND, "no such method"),
        }
    }
}

impl NodeDispatcher {
    fn forwarded(&self, payload: Bytes, reply: Replier) {
        match self.core.get() {
            Some(core) => {
                let core = Arc::clone(core);
                tokio::spawn(async move { reply.ok(core.handle_forwarded(payload).await) });
            }
            None => reply.error(status::NOT_READY, "the node is starting"),
        }
    }
}
