//! The first call on each connection: both sides say who they are, and either may refuse the other.
//!
//! What is checked here needs no knowledge of the cluster: the cluster ids agree if both have one, nobody talks to itself,
//! the node that answers is the one that was dialled, and there is a logical version that both know. What needs more
//! (which storage id belongs to which node, which version is active) is checked by the node's own rule, which both sides
//! ask as well.

use std::fmt;
use std::sync::Arc;

use imprint_proto::envelope;
use imprint_proto::ids::NodeId;

imprint_proto::envelope! {
    /// Who a node says it is.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Hello: version 0, compat 0 {
        /// None until the node belongs to a cluster.
        cluster_id: Option<[u8; 16]>,
        node_id: NodeId,
        /// Drawn when the data directory was made.
        storage_id: [u8; 16],
        /// Differs with each start of the process.
        incarnation: u64,
        /// Oldest logical version that this binary can run in.
        earliest_version: u32,
        /// Newest one.
        latest_version: u32,
        /// Where other nodes reach it.
        peer_address: String,
        /// Where clients reach it.
        client_address: String,
        /// Of the configured list of seeds, to find contradictions early.
        seeds_hash: u64,
    }
}

imprint_proto::envelope! {
    /// The hello as sent, with what concerns this connection alone.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct HelloRequest: version 0, compat 0 {
        hello: Hello,
        urgent: bool,
    }
}

imprint_proto::envelope! {
    /// The payload of every reply that isn't 200.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct ErrorReply: version 0, compat 0 {
        reason: String,
    }
}

/// The correlation id of each connection's hello. Pinned, so that it can be answered before it was read.
pub(crate) const HELLO_CORRELATION: u32 = 1;

/// Why a peer isn't accepted. Logged by both sides.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Refusal(reason)
    }
}

impl From<&str> for Refusal {
    fn from(reason: &str) -> Self {
        Refusal(reason.to_owned())
    }
}

/// Gives this node's hello as it is now; the cluster id appears during the process's life.
pub type HelloSource = Arc<dyn Fn() -> Hello + Send + Sync>;

/// The node's own rule about a peer.
pub type HelloCheck = Arc<dyn Fn(&Hello) -> Result<(), Refusal> + Send + Sync>;

/// The checks that need no knowledge of the cluster.
pub fn check(own: &Hello, theirs: &Hello) -> Result<(), Refusal> {
    if own.node_id == theirs.node_id {
        let same = own.storage_id == theirs.storage_id;
        return Err(if same {
            Refusal(format!("node {} would talk to itself", own.node_id))
        } else {
            Refusal(format!("both sides say that they are node {}", own.node_id))
        });
    }
    if let (Some(ours), Some(others)) = (own.cluster_id, theirs.cluster_id)
        && ours != others
    {
        return Err(Refusal(format!(
            "node {} belongs to cluster {}, node {} to cluster {}",
            own.node_id,
            Hex(&ours),
            theirs.node_id,
            Hex(&others)
        )));
    }
    check_versions(own, theirs)
}

fn check_versions(own: &Hello, theirs: &Hello) -> Result<(), Refusal> {
    let apart = own.latest_version < theirs.earliest_version
        || theirs.latest_version < own.earliest_version;
    if apart {
        return Err(Refusal(format!(
            "no logical version in common: node {} knows {} to {}, node {} knows {} to {}",
            own.node_id,
            own.earliest_version,
            own.latest_version,
            theirs.node_id,
            theirs.earliest_version,
            theirs.latest_version
        )));
    }
    Ok(())
}

/// The caller's extra check: the one who answers must be the one who was dialled.
pub(crate) fn check_dialled(expected: Option<NodeId>, theirs: &Hello) -> Result<(), Refusal> {
    match expected {
        Some(node) if node != theirs.node_id => Err(Refusal(format!(
            "node {} answered where node {node} was expected",
            theirs.node_id
        ))),
        _ => Ok(()),
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// An error reply's payload.
pub(crate) fn error_payload(reason: &str) -> bytes::Bytes {
    const MAX_REASON_BYTES: usize = 4096;
    let end = reason.floor_char_boundary(MAX_REASON_BYTES);
    envelope::encode(&ErrorReply {
        reason: reason[..end].to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(node: u64) -> Hello {
        Hello {
            cluster_id: Some([7; 16]),
            node_id: NodeId(node),
            storage_id: [node as u8; 16],
            incarnation: 1,
            earliest_version: 1,
            latest_version: 2,
            peer_address: String::new(),
            client_address: String::new(),
            seeds_hash: 0,
        }
    }

    fn refused(theirs: Hello) -> String {
        check(&hello(1), &theirs).expect_err("refused").0
    }

    #[test]
    fn peers_of_one_cluster_accept_each_other() {
        assert_eq!(check(&hello(1), &hello(2)), Ok(()));
        let unformed = Hello {
            cluster_id: None,
            ..hello(2)
        };
        assert_eq!(check(&hello(1), &unformed), Ok(()));
    }

    #[test]
    fn strangers_are_refused_with_the_reason() {
        let other_cluster = Hello {
            cluster_id: Some([8; 16]),
            ..hello(2)
        };
        assert!(refused(other_cluster).contains("cluster 0808"));
        assert!(refused(hello(1)).contains("itself"));
        let copy = Hello {
            storage_id: [9; 16],
            ..hello(1)
        };
        assert!(refused(copy).contains("both sides"));
        let newer = Hello {
            earliest_version: 3,
            latest_version: 4,
            ..hello(2)
        };
        assert!(refused(newer).contains("no logical version"));
        assert!(check_dialled(Some(NodeId(3)), &hello(2)).is_err());
        assert!(check_dialled(None, &hello(2)).is_ok());
    }
}
