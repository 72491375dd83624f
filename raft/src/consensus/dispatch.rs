//! The receiving side of Raft messages: from the transport to the replica they are meant for.
//!
//! A message names the group and the replica. One that names another replica than the one here
//! comes from a peer with an old view (a replica id is never reused) and is refused, so that a
//! re-created replica never answers for its predecessor.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use imprint_proto::envelope;
use openraft::EntryPayload;
use openraft::raft::TransferLeaderRequest;
use openraft::storage::{Snapshot, SnapshotMeta};
use parking_lot::Mutex;

use super::codec::{
    AppendMessage, GroupStateMessage, GroupStateReply, QuiesceMessage, SnapshotMessage,
    TransferMessage, VoteMessage, VoteReply, VoteWire, append_request, encode_vote_reply,
    log_id_opt,
};
use super::fitness::Unfit;
use super::group::Group;
use super::groups::Groups;
use super::inbound::Lane;
use super::repair;
use super::snapshot::Snap;
use super::types::{AppRecord, Entry, StoredMembership, decode_membership};
use crate::rpc::{ConnInfo, Replier, methods, status};

/// Lanes kept before closed ones are swept out.
const LANES_BEFORE_SWEEP: usize = 4096;

/// Hands Raft messages to the groups of a node.
pub struct RaftDispatcher {
    groups: Arc<Groups>,
    lanes: Mutex<BTreeMap<(u64, u64), Lane>>,
}

impl RaftDispatcher {
    /// A dispatcher into `groups`.
    pub fn new(groups: Arc<Groups>) -> Self {
        RaftDispatcher {
            groups,
            lanes: Mutex::new(BTreeMap::new()),
        }
    }

    /// Takes a request if its method is one of Raft's, else gives it back. Never blocks; must be
    /// called in arrival order.
    pub fn dispatch(
        &self,
        conn: &ConnInfo,
        method: u32,
        payload: Bytes,
        reply: Replier,
    ) -> Result<(), (Bytes, Replier)> {
        match method {
            methods::APPEND_ENTRIES => self.append(conn, payload, reply),
            methods::VOTE => self.vote(payload, reply, false),
            methods::PRE_VOTE => self.vote(payload, reply, true),
            methods::SNAPSHOT => self.snapshot(conn, payload, reply),
            methods::TRANSFER_LEADER => self.transfer(payload, reply),
            methods::QUIESCE => self.quiesce(payload, reply),
            methods::GROUP_STATE => self.group_state(payload, reply),
            methods::READ_LOG => {
                tokio::spawn(repair::read_log(Arc::clone(&self.groups), payload, reply));
            }
            methods::SEGMENT_DIGESTS => {
                tokio::spawn(repair::segment_digests(
                    Arc::clone(&self.groups),
                    payload,
                    reply,
                ));
            }
            methods::READ_CUT => {
                tokio::spawn(repair::read_cut(Arc::clone(&self.groups), payload, reply));
            }
            _ => return Err((payload, reply)),
        }
        Ok(())
    }

    fn replica(&self, group: u64, replica: u64) -> Result<Arc<Group>, String> {
        match self.groups.get(group) {
            Some(found) if found.replica_id() == replica => Ok(found),
            Some(found) => Err(format!(
                "group {group} has replica {} here, not {replica}",
                found.replica_id()
            )),
            None => Err(format!("group {group} has no replica here")),
        }
    }

    fn append(&self, conn: &ConnInfo, payload: Bytes, reply: Replier) {
        let message: AppendMessage = match envelope::decode(payload) {
            Ok(message) => message,
            Err(e) => return reply.error(status::HANDLER_FAILED, &e.to_string()),
        };
        let group = match self.replica(message.group, message.replica) {
            Ok(group) => group,
            Err(reason) => return reply.error(status::NOT_READY, &reason),
        };
        let request = match append_request(message) {
            Ok(request) => request,
            Err(e) => {
                tracing::warn!(group = group.id(), peer = %conn.peer, error = %e, "refused AppendEntries");
                return reply.error(status::HANDLER_FAILED, &e.to_string());
            }
        };
        if !request.entries.is_empty() || group.is_asleep() {
            group.wake();
        }
        // Heartbeats and control entries go on, and batches that are here already: a new leader looks with them for the place
        // where the logs part. The leader takes this for an unreachable replica and tries again ever less often, up to once
        // a second.
        let is_new = |entry: &Entry| carries_batch(entry) && !group.holds(&entry.log_id);
        if group.has_no_room() && request.entries.iter().any(is_new) {
            return reply.error(status::NOT_READY, "the disk has no room for data");
        }
        self.push(conn.conn_id, group, request, reply);
    }

    fn push(
        &self,
        conn_id: u64,
        group: Arc<Group>,
        request: openraft::raft::AppendEntriesRequest<super::types::TypeConfig>,
        reply: Replier,
    ) {
        let mut lanes = self.lanes.lock();
        if lanes.len() >= LANES_BEFORE_SWEEP {
            lanes.retain(|_, lane| !lane.is_closed());
        }
        let key = (conn_id, group.id());
        let lane = lanes
            .entry(key)
            .or_insert_with(|| Lane::open(Arc::clone(&group)));
        if let Err(refused) = lane.push(request, reply) {
            let (request, reply) = *refused;
            let fresh = Lane::open(group);
            if let Err(refused) = fresh.push(request, reply) {
                refused
                    .1
                    .error(status::NOT_READY, "the lane ended; send again");
            }
            lanes.insert(key, fresh);
        }
    }

    fn vote(&self, payload: Bytes, reply: Replier, pre_vote: bool) {
        let message: VoteMessage = match envelope::decode(payload) {
            Ok(message) => message,
            Err(e) => return reply.error(status::HANDLER_FAILED, &e.to_string()),
        };
        let group = match self.replica(message.group, message.replica) {
            Ok(group) => group,
            Err(reason) => return reply.error(status::NOT_READY, &reason),
        };
        if group.is_unfit(Unfit::Suspect) {
            let reason = "this replica may lack what it acknowledged and votes for nobody";
            return reply.error(status::NOT_READY, reason);
        }
        tokio::spawn(async move {
            group.wake();
            let request = message.request();
            let response = if pre_vote {
                group.raft().pre_vote(request).await
            } else {
                group.raft().vote(request).await
            };
            match response {
                Ok(response) => reply.ok(vec![encode_vote_reply(&response)]),
                Err(e) => reply.error(status::HANDLER_FAILED, &e.to_string()),
            }
        });
    }

    fn snapshot(&self, conn: &ConnInfo, payload: Bytes, reply: Replier) {
        let message: SnapshotMessage = match envelope::decode(payload) {
            Ok(message) => message,
            Err(e) => return reply.error(status::HANDLER_FAILED, &e.to_string()),
        };
        let group = match self.replica(message.group, message.replica) {
            Ok(group) => group,
            Err(reason) => return reply.error(status::NOT_READY, &reason),
        };
        let membership = match decode_membership(message.membership) {
            Ok(membership) => membership,
            Err(e) => return reply.error(status::HANDLER_FAILED, &e.to_string()),
        };
        let meta = SnapshotMeta {
            last_log_id: log_id_opt(message.last),
            last_membership: StoredMembership::new(log_id_opt(message.membership_at), membership),
        };
        let snapshot = Snapshot {
            meta,
            snapshot: message.body,
        };
        if let Err(e) = Snap::received(&snapshot.meta, snapshot.snapshot.clone()) {
            tracing::warn!(group = group.id(), peer = %conn.peer, error = %e, "refused a snapshot");
            return reply.error(status::HANDLER_FAILED, &e.to_string());
        }
        let vote = message.vote.vote();
        tokio::spawn(async move {
            group.wake();
            let _under_way = group.installing.begin();
            match group.raft().install_full_snapshot(vote, snapshot).await {
                Ok(response) => {
                    let response = VoteReply {
                        vote: VoteWire::from(&response.vote),
                        granted: true,
                        last: None,
                    };
                    reply.ok(vec![envelope::encode(&response)]);
                }
                Err(e) => reply.error(status::HANDLER_FAILED, &e.to_string()),
            }
        });
    }

    fn transfer(&self, payload: Bytes, reply: Replier) {
        let message: TransferMessage = match envelope::decode(payload) {
            Ok(message) => message,
            Err(e) => return reply.error(status::HANDLER_FAILED, &e.to_string()),
        };
        let group = match self.replica(message.group, message.replica) {
            Ok(group) => group,
            Err(reason) => return reply.error(status::NOT_READY, &reason),
        };
        if !group.may_lead() {
            let reason = "this replica's log has to be repaired before it may lead";
            return reply.error(status::NOT_READY, reason);
        }
        let last = log_id_opt(message.last);
        let request = TransferLeaderRequest::new(message.from.vote(), message.to, last);
        tokio::spawn(async move {
            group.wake();
            match group.raft().handle_transfer_leader(request).await {
                Ok(Ok(())) => reply.ok(Vec::new()),
                Ok(Err(refused)) => reply.error(status::NOT_READY, &refused.to_string()),
                Err(e) => reply.error(status::HANDLER_FAILED, &e.to_string()),
            }
        });
    }

    fn quiesce(&self, payload: Bytes, reply: Replier) {
        match envelope::decode::<QuiesceMessage>(payload) {
            Ok(message) => {
                let answer = self.groups.on_quiesce(message);
                reply.ok(vec![envelope::encode(&answer)]);
            }
            Err(e) => reply.error(status::HANDLER_FAILED, &e.to_string()),
        }
    }

    fn group_state(&self, payload: Bytes, reply: Replier) {
        match envelope::decode::<GroupStateMessage>(payload) {
            Ok(message) => {
                let open = message
                    .groups
                    .iter()
                    .map(|group| self.groups.get(*group).is_some())
                    .collect();
                let suspect = message
                    .groups
                    .iter()
                    .map(|group| self.groups.suspects.has(*group))
                    .collect();
                let answer = GroupStateReply { open, suspect };
                reply.ok(vec![envelope::encode(&answer)]);
            }
            Err(e) => reply.error(status::HANDLER_FAILED, &e.to_string()),
        }
    }
}

fn carries_batch(entry: &Entry) -> bool {
    matches!(
        entry.payload,
        EntryPayload::Normal(AppRecord::Stamped(_) | AppRecord::Admitted { .. })
    )
}
