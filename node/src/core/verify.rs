//! Are all replicas the same? Digests of every replica up to the lowest commit point, compared.
//!
//! The comparison is online: replicas go on appending above the point. A replica that can't be
//! asked makes the partition's result "not equal" with the reason, because nothing was shown.
//!
//! Replicas delete trimmed segments each in its own time. So what is compared begins at the highest
//! start among them: the segments from there on must be the same, one by one.

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
    let starts = replicas.iter().map(|replica| replica.start_offset);
    let from = starts.max().unwrap_or(0);
    let problem = |other: &v1::ReplicaDigest| compare_two(first, other, from);
    rest.iter().find_map(problem).unwrap_or_default()
}

/// What of two replicas differs from an offset on, at which a segment of both begins.
fn compare_two(a: &v1::ReplicaDigest, b: &v1::ReplicaDigest, from: u64) -> Option<String> {
    if a.start_offset == b.start_offset {
        let differ = a.digest != b.digest;
        return differ.then(|| {
            let (digest_a, digest_b) = (&a.digest, &b.digest);
            let (a, b) = (a.node_id, b.node_id);
            format!("node {a} has digest {digest_a}, node {b} has {digest_b}")
        });
    }
    let digests = |replica: &v1::ReplicaDigest| {
        let kept = replica.segments.iter().filter(|s| s.end_offset > from);
        let digests = kept.map(|s| (s.base_offset, s.end_offset, s.digest.clone()));
        digests.collect::<Vec<_>>()
    };
    let (ours, theirs) = (digests(a), digests(b));
    let differ = ours.iter().zip(&theirs).find(|(a, b)| a != b);
    if let Some(((base, end, _), (other_base, other_end, _))) = differ {
        return Some(format!(
            "offsets {base}..{end} of node {} differ from offsets {other_base}..{other_end} of node {}",
            a.node_id, b.node_id
        ));
    }
    (ours.len() != theirs.len()).then(|| {
        format!(
            "from offset {from} on node {} has {} segments, node {} has {}",
            a.node_id,
            ours.len(),
            b.node_id,
            theirs.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A replica with segments of ten offsets from `start` up to `end`; `digest` tells the bytes.
    fn replica(node_id: u64, start: u64, end: u64, digest: &str) -> v1::ReplicaDigest {
        let bases = (start..end).step_by(10);
        let segments = bases.map(|base| v1::SegmentDigest {
            base_offset: base,
            end_offset: (base + 10).min(end),
            digest: format!("{digest}{base}"),
            ..v1::SegmentDigest::default()
        });
        v1::ReplicaDigest {
            node_id,
            digest: format!("{digest}{start}"),
            start_offset: start,
            segments: segments.collect(),
            ..v1::ReplicaDigest::default()
        }
    }

    #[test]
    fn what_only_some_have_deleted_yet_is_not_compared() {
        let all = [
            replica(1, 0, 45, "x"),
            replica(2, 20, 45, "x"),
            replica(3, 10, 45, "x"),
        ];
        assert_eq!(compare(&all), "");
        let all = [replica(1, 0, 40, "x"), replica(2, 40, 40, "x")];
        assert_eq!(compare(&all), "");
    }

    #[test]
    fn what_all_have_must_be_the_same() {
        let all = [replica(1, 0, 45, "x"), replica(2, 20, 45, "y")];
        assert!(
            compare(&all).contains("offsets 20..30 of node 1"),
            "{}",
            compare(&all)
        );
        let all = [replica(1, 10, 45, "x"), replica(2, 10, 45, "y")];
        assert!(compare(&all).contains("digest"));
        // Segments that end elsewhere.
        let all = [replica(1, 0, 45, "x"), replica(2, 15, 45, "x")];
        assert!(
            compare(&all).contains("offsets 10..20 of node 1"),
            "{}",
            compare(&all)
        );
        let all = [replica(1, 0, 45, "x"), replica(2, 20, 25, "x")];
        assert!(!compare(&all).is_empty());
    }
}
