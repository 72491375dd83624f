//! Asking other replicas for what is missing here.
//!
//! Any replica may be asked: an entry at the place that the own control log expects is the same entry wherever it comes
//! from. Only a leader that has just confirmed its leadership can say that something was never committed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use imprint_proto::envelope;
use imprint_proto::ids::NodeId;

use super::wire::{
    DigestsMessage, DigestsReply, LogPieces, PiecesError, ReadLogMessage, decode_pieces,
};
use crate::rpc::{CallOptions, Class, PeerTable, RpcError, methods};

/// The most that is asked for at once, unless one batch is larger. Bytes.
const ASK_BYTES: u64 = 1 << 20;
/// How long one answer may take: it is read from a disk that others use.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a replica gave nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("its address isn't known")]
    Unknown,
    #[error("{0}")]
    Rpc(#[from] RpcError),
    #[error("{0}")]
    Pieces(#[from] PiecesError),
    #[error("{0}")]
    Envelope(#[from] envelope::EnvelopeError),
}

/// The other replicas of one group.
#[derive(Clone)]
pub(crate) struct Sources {
    pub group: u64,
    pub nodes: Vec<NodeId>,
    pub peers: Arc<PeerTable>,
}

impl Sources {
    /// The living ones first.
    pub(crate) fn in_order(&self) -> Vec<NodeId> {
        let mut nodes = self.nodes.clone();
        nodes.sort_by_key(|node| !self.peers.is_alive(*node));
        nodes
    }

    /// Batches from the one that holds `from_offset` on. With `word`, whoever answers also says whether it surely leads.
    pub(crate) async fn read(
        &self,
        node: NodeId,
        from_offset: u64,
        word: bool,
    ) -> Result<LogPieces, AskError> {
        let message = ReadLogMessage {
            group: self.group,
            from_offset,
            max_bytes: ASK_BYTES,
            word,
        };
        let reply = self
            .call(node, methods::READ_LOG, envelope::encode(&message))
            .await?;
        Ok(decode_pieces(self.group, reply)?)
    }

    /// Digests of the sealed segments that a replica has checked.
    pub(crate) async fn digests(
        &self,
        node: NodeId,
        from_offset: u64,
    ) -> Result<DigestsReply, AskError> {
        let message = DigestsMessage {
            group: self.group,
            from_offset,
        };
        let reply = self
            .call(node, methods::SEGMENT_DIGESTS, envelope::encode(&message))
            .await?;
        Ok(envelope::decode(reply)?)
    }

    /// Where a leader's log begins: its snapshot, encoded and checksummed.
    pub(crate) async fn read_cut(&self, leader: NodeId) -> Result<Bytes, AskError> {
        let message = DigestsMessage {
            group: self.group,
            from_offset: 0,
        };
        self.call(leader, methods::READ_CUT, envelope::encode(&message))
            .await
    }

    async fn call(&self, node: NodeId, method: u32, message: Bytes) -> Result<Bytes, AskError> {
        let peer = self.peers.get(node).ok_or(AskError::Unknown)?;
        let options = CallOptions {
            timeout: ASK_TIMEOUT,
            class: Class::Bulk,
            compress: false,
        };
        Ok(peer.call(method, vec![message].into(), options).await?)
    }
}
