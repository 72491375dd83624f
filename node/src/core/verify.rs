//! Are all replicas the same? Digests of every replica up to the lowest commit point, compared.
//!
//! The comparison is online: replicas go on appending above the point. A replica that can't be
//! asked makes the partition's result "not equal" with the reason, because nothing was shown.

use super::{
    Core,
    inspect::QUESTIONS_AT_A_TIME,
    lookup::{Found, all_partitions},
    route::{Effect, read_failure},
};
use crate::{
    backend::Replica,
    failure::Failure,
    forward::{CallContext, ops::Op},
};
use futures_util::{StreamExt, stream};
use imprint_proto::{ids::NodeId, v1};
use prost::Message;

/// Partitions that are compared at a time: each reads whole logs on every replica.
const PARTITIONS_AT_A_TIME: usize = QUESTIONS_AT_A_TIME / 16;

impl Core {
    /// Compares the replicas of one topic, or of all.
    pub async fn verify(
        &self,
        request: v1::VerifyRequest,
        context: &CallContext,
    ) -> Result<v1::VerifyResponse, Failure> {
        self.check_formed()?;
        let topics = match request.topic.as_str() {
            "" => {
                self.catch_up_with_controller(context).await?;
                self.controller().topics.values().cloned().collect()
            }
            name => vec![self.find_topic(name, context).await?],
        };
        let wanted: Vec<Found> = topics.iter().flat_map(all_partitions).collect();
        let checks: Vec<_> = wanted
            .iter()
            .map(|found| self.verify_partition(found, context))
            .collect();
        let partitions = stream::iter(checks)
            .buffered(PARTITIONS_AT_A_TIME)
            .collect()
            .await;
        Ok(v1::VerifyResponse { partitions })
    }

    async fn verify_partition(
        &self,
        found: &Found,
        context: &CallContext,
    ) -> v1::PartitionVerification {
        let nodes = found.nodes();
        let asks = nodes
            .iter()
            .map(|node| self.state_at(found, *node, context));
        let states = futures_util::future::join_all(asks).await;
        let upto = states
            .iter()
            .flatten()
            .map(|state| state.commit)
            .min()
            .unwrap_or(0);
        let asks = nodes.iter().zip(&states).map(|(node, state)| async move {
            match state {
                Ok(_) => self.digest_at(found, *node, upto, context).await,
                Err(failure) => Err(failure.clone()),
            }
        });
        let digests = futures_util::future::join_all(asks).await;
        let replicas: Vec<v1::ReplicaDigest> = nodes
            .iter()
            .zip(digests)
            .map(|(node, digest)| {
                digest.unwrap_or_else(|failure| v1::ReplicaDigest {
                    node_id: node.0,
                    error: failure.to_string(),
                    ..v1::ReplicaDigest::default()
                })
            })
            .collect();
        let problem = compare(&replicas);
        v1::PartitionVerification {
            topic: found.topic.name.clone(),
            partition: found.index,
            partition_id: found.group().0,
            compared_to_offset: upto,
            equal: problem.is_empty(),
            replicas,
            problem,
        }
    }

    async fn digest_at(
        &self,
        found: &Found,
        node: NodeId,
        upto: u64,
        context: &CallContext,
    ) -> Result<v1::ReplicaDigest, Failure> {
        if node == self.node_id() {
            let replica = self.open_replica(found.group())?;
            return self.digest_here(replica.as_ref(), upto).await;
        }
        let body = Self::replica_query(found.group(), upto, false);
        let answer = self
            .forward(node, Op::Digest, context, Effect::Reads, body)
            .await?;
        v1::ReplicaDigest::decode(answer).map_err(Failure::internal)
    }

    pub(super) async fn digest_here(
        &self,
        replica: &dyn Replica,
        upto: u64,
    ) -> Result<v1::ReplicaDigest, Failure> {
        let digest = replica.digest(upto).await.map_err(read_failure)?;
        let segments = digest.segments.iter().map(|segment| v1::SegmentDigest {
            base_offset: segment.base_offset,
            end_offset: segment.end_offset,
            bytes: segment.bytes,
            digest: format!("{:016x}", segment.digest),
            sealed: segment.sealed,
        });
        Ok(v1::ReplicaDigest {
            node_id: self.node_id().0,
            digest: format!("{:016x}", digest.digest),
            bytes: digest.bytes,
            start_offset: digest.start_offset,
            error: String::new(),
            segments: segments.collect(),
        })
    }
}

/// What is wrong, or nothing.
fn compare(replicas: &[v1::ReplicaDigest]) -> String {
    if let Some(failed) = replicas.iter().find(|replica| !replica.error.is_empty()) {
        return format!(
            "node {} could not be compared: {}",
            failed.node_id, failed.error
        );
    }
    let Some((first, rest)) = replicas.split_first() else {
        return "the partition has no replicas".into();
    };
    let other = rest.iter().find(|replica| {
        (replica.start_offset, &replica.digest) != (first.start_offset, &first.digest)
    });
    match other {
        None => String::new(),
        Some(other) if other.start_offset != first.start_offset => format!(
            "node {} starts at offset {}, node {} at {}",
            first.node_id, first.start_offset, other.node_id, other.start_offset
        ),
        Some(other) => format!(
            "node {} has digest {}, node {} has {}",
            first.node_id, first.digest, other.node_id, other.digest
        ),
    }
}
