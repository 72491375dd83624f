//! openraft's network over the internal RPC: one instance per replica that a leader or candidate
//! talks to.
//!
//! Replication is pipelined: several AppendEntries are on the way at once, dispatched in order and
//! answered in order; all of one stream stays on one connection, or a commit notice could overtake
//! the entries it follows. Votes and heartbeats go over the peer's urgent connection, so that bulk
//! data never delays them. Deadlines are enforced here, since openraft leaves them to the network.
//!
//! A failed call is reported as unreachable, which makes openraft back off, in all cases but a
//! time-out: a peer that answers late is asked again at once.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt};
use imprint_proto::envelope;
use imprint_proto::ids::NodeId;
use openraft::OptionalSend;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError,
    StreamAppendResult, TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};

use super::codec::{
    self, SnapshotMessage, TransferMessage, VoteReply, VoteWire, decode_append_reply,
    encode_append, wire_opt,
};
use super::types::{ReplicaNode, TypeConfig, Vote, encode_membership};
use crate::rpc::{CallOptions, Class, PeerTable, RpcError, methods};

type RpcResult<T> = Result<T, RPCError<TypeConfig>>;
type SnapshotOf = openraft::alias::SnapshotOf<TypeConfig, Bytes>;

/// AppendEntries on the way to one follower at a time (overload: at most 8 of 1 MiB).
const APPENDS_IN_FLIGHT: usize = 8;

/// How long one AppendEntries may take before its connection is given up for it.
const APPEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes the networks of one group.
pub(crate) struct GroupNetwork {
    pub(crate) group: u64,
    pub(crate) peers: Arc<PeerTable>,
}

impl RaftNetworkFactory<TypeConfig> for GroupNetwork {
    type Network = ReplicaNetwork;

    async fn new_client(&mut self, target: u64, node: &ReplicaNode) -> ReplicaNetwork {
        ReplicaNetwork {
            group: self.group,
            replica: target,
            node: NodeId(node.node_id),
            peers: Arc::clone(&self.peers),
        }
    }
}

/// The way to one replica.
#[derive(Clone)]
pub(crate) struct ReplicaNetwork {
    group: u64,
    replica: u64,
    node: NodeId,
    peers: Arc<PeerTable>,
}

impl ReplicaNetwork {
    /// Dispatches at once; the returned future only waits. So calls go out in the order they are
    /// made, however their futures are polled.
    fn start(
        &self,
        method: u32,
        parts: Vec<Bytes>,
        class: Class,
        timeout: Duration,
    ) -> impl Future<Output = RpcResult<Bytes>> + Send + 'static + use<> {
        let call = self.peers.get(self.node).map(|peer| {
            let options = CallOptions {
                timeout,
                class,
                compress: false,
            };
            peer.start(method, parts.into(), options)
        });
        let node = self.node;
        async move {
            match call {
                Some(call) => call.await.map_err(rpc_error),
                None => Err(unreachable_error(format!(
                    "node {node} is not in the peer table"
                ))),
            }
        }
    }

    fn start_append(
        &self,
        request: AppendEntriesRequest<TypeConfig>,
        class: Class,
        timeout: Duration,
    ) -> impl Future<Output = RpcResult<StreamAppendResult<TypeConfig>>> + Send + 'static + use<>
    {
        let call = encode_append(self.group, self.replica, &request)
            .map(|parts| self.start(methods::APPEND_ENTRIES, parts, class, timeout));
        async move {
            let reply = call.map_err(codec_error)?.await?;
            decode_append_reply(reply).map_err(codec_error)
        }
    }

    async fn vote_call(
        &self,
        method: u32,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        let message = codec::vote_message(self.group, self.replica, &request);
        let parts = vec![envelope::encode(&message)];
        let reply = self
            .start(method, parts, Class::Urgent, option.hard_ttl())
            .await?;
        codec::decode_vote_reply(reply).map_err(codec_error)
    }
}

fn unreachable_error(reason: String) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::new(&anyerror::AnyError::error(reason)))
}

fn rpc_error(error: RpcError) -> RPCError<TypeConfig> {
    match error {
        RpcError::Timeout { .. } => RPCError::Network(NetworkError::new(&error)),
        _ => RPCError::Unreachable(Unreachable::new(&error)),
    }
}

fn codec_error(error: codec::CodecError) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::new(&error))
}

impl RaftNetworkV2<TypeConfig> for ReplicaNetwork {
    type SnapshotData = Bytes;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<TypeConfig>> {
        let last = request
            .entries
            .last()
            .map(|e| e.log_id)
            .or(request.prev_log_id);
        let class = if request.entries.is_empty() {
            Class::Urgent
        } else {
            Class::Bulk
        };
        let result = self.start_append(request, class, option.hard_ttl()).await?;
        Ok(match result {
            Ok(matched) if matched == last => AppendEntriesResponse::Success,
            Ok(matched) => AppendEntriesResponse::PartialSuccess(matched),
            Err(StreamAppendError::Conflict(_)) => AppendEntriesResponse::Conflict,
            Err(StreamAppendError::HigherVote(vote)) => AppendEntriesResponse::HigherVote(vote),
        })
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<'s, RpcResult<BoxStream<'s, RpcResult<StreamAppendResult<TypeConfig>>>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        let network = self.clone();
        let replies = input
            .map(move |request| network.start_append(request, Class::Bulk, APPEND_TIMEOUT))
            .buffered(APPENDS_IN_FLIGHT);
        let stream: BoxStream<'s, _> = Box::pin(replies);
        Box::pin(async move { Ok(stream) })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        self.vote_call(methods::VOTE, request, option).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        self.vote_call(methods::PRE_VOTE, request, option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let meta = &snapshot.meta;
        let message = SnapshotMessage {
            group: self.group,
            replica: self.replica,
            vote: VoteWire::from(&vote),
            last: wire_opt(meta.last_log_id.as_ref()),
            membership_at: wire_opt(meta.last_membership.log_id().as_ref()),
            membership: encode_membership(meta.last_membership.membership()),
            body: snapshot.snapshot,
        };
        let parts = vec![envelope::encode(&message)];
        let call = self.start(methods::SNAPSHOT, parts, Class::Bulk, option.hard_ttl());
        futures_util::pin_mut!(cancel);
        let reply = futures_util::select_biased! {
            closed = cancel.fuse() => return Err(closed.into()),
            reply = call.fuse() => reply?,
        };
        let reply: VoteReply =
            envelope::decode(reply).map_err(|e| StreamingError::from(codec_error(e.into())))?;
        Ok(SnapshotResponse::new(reply.vote.vote()))
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<TransferLeaderResponse<TypeConfig>> {
        let message = TransferMessage {
            group: self.group,
            replica: self.replica,
            from: VoteWire::from(request.from_leader()),
            to: *request.to_node_id(),
            last: wire_opt(request.last_log_id()),
        };
        let parts = vec![envelope::encode(&message)];
        self.start(
            methods::TRANSFER_LEADER,
            parts,
            Class::Urgent,
            option.hard_ttl(),
        )
        .await?;
        Ok(Ok(()))
    }
}
