//! Administration: topics, the cluster's state, limits, comparison of replicas.
//!
//! Any node answers, so these calls go to whichever server responds. Creating and deleting write, and
//! a lost answer is not asked for again: the caller gets an unknown outcome and can look.

use crate::client::{Client, Plan, Position, timed};
use crate::error::ClientError;
use crate::options::RetryUnknown;
use crate::retry::Repeat;
use crate::routes::Want;
use imprint_proto::v1;
use imprint_proto::v1::admin_service_client::AdminServiceClient;
use std::collections::HashMap;
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// The administrative calls of a [`Client`].
#[derive(Debug, Clone)]
pub struct Admin {
    client: Client,
}

/// A topic to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewTopic {
    /// 1..=249 of `[a-zA-Z0-9._-]`.
    pub name: String,
    /// Number of partitions, at least 1.
    pub partitions: u32,
    /// Replicas of each; 0: three, or as many as there are nodes if fewer.
    pub replication: u32,
    /// Settings by key; see the topic settings in the documentation.
    pub settings: HashMap<String, String>,
}

/// What is to be trimmed away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrimTopic {
    /// The topic.
    pub topic: String,
    /// Partitions; empty: all.
    pub partitions: Vec<u32>,
    /// Messages before it go, in each of the partitions.
    pub before: Position,
    /// Change nothing, say what would be.
    pub dry_run: bool,
}

const READS: Repeat = Repeat::Harmless;
/// Done twice they change nothing more.
const REPEATS: Repeat = Repeat::Harmless;
const WRITES: Repeat = Repeat::Writes(RetryUnknown::No);

impl Client {
    /// The administrative calls.
    pub fn admin(&self) -> Admin {
        Admin {
            client: self.clone(),
        }
    }
}

impl Admin {
    /// Makes a topic; it is usable when this returns.
    pub async fn create_topic(&self, new: NewTopic) -> Result<v1::Topic, ClientError> {
        let request = v1::CreateTopicRequest {
            name: new.name,
            partitions: new.partitions,
            replication: new.replication,
            settings: new.settings,
        };
        let reply = self
            .call(
                WRITES,
                Duration::ZERO,
                request,
                async |mut admin, request| admin.create_topic(request).await,
            )
            .await?;
        Ok(reply.topic.unwrap_or_default())
    }

    /// One topic.
    pub async fn get_topic(&self, name: &str) -> Result<v1::Topic, ClientError> {
        let request = v1::GetTopicRequest {
            name: name.to_owned(),
        };
        let reply = self
            .call(
                READS,
                Duration::ZERO,
                request,
                async |mut admin, request| admin.get_topic(request).await,
            )
            .await?;
        Ok(reply.topic.unwrap_or_default())
    }

    /// All topics, page after page.
    pub async fn list_topics(&self) -> Result<Vec<v1::Topic>, ClientError> {
        let (mut topics, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = v1::ListTopicsRequest {
                page_size: 0,
                page_token,
            };
            let reply = self
                .call(
                    READS,
                    Duration::ZERO,
                    request,
                    async |mut admin, request| admin.list_topics(request).await,
                )
                .await?;
            topics.extend(reply.topics);
            page_token = reply.next_page_token;
            if page_token.is_empty() {
                return Ok(topics);
            }
        }
    }

    /// Sets some settings of a topic, puts others back to their defaults; all or nothing.
    pub async fn update_topic(
        &self,
        name: &str,
        set: HashMap<String, String>,
        unset: Vec<String>,
    ) -> Result<v1::Topic, ClientError> {
        let request = v1::UpdateTopicRequest {
            name: name.to_owned(),
            set,
            unset,
        };
        let reply = self
            .call(
                REPEATS,
                Duration::ZERO,
                request,
                async |mut admin, request| admin.update_topic(request).await,
            )
            .await?;
        Ok(reply.topic.unwrap_or_default())
    }

    /// Moves the start of a topic's partitions up to a position in each; what is below is gone for
    /// good. Each partition succeeds or fails by itself.
    pub async fn trim_topic(
        &self,
        trim: TrimTopic,
    ) -> Result<Vec<v1::TrimmedPartition>, ClientError> {
        let request = v1::TrimTopicRequest {
            topic: trim.topic,
            partitions: trim.partitions,
            before: Some(trim.before.into()),
            dry_run: trim.dry_run,
        };
        let reply = self
            .call(
                REPEATS,
                Duration::ZERO,
                request,
                async |mut admin, request| admin.trim_topic(request).await,
            )
            .await?;
        Ok(reply.partitions)
    }

    /// Deletes a topic and everything in it.
    pub async fn delete_topic(&self, name: &str) -> Result<(), ClientError> {
        let request = v1::DeleteTopicRequest {
            name: name.to_owned(),
        };
        self.call(
            WRITES,
            Duration::ZERO,
            request,
            async |mut admin, request| admin.delete_topic(request).await,
        )
        .await?;
        Ok(())
    }

    /// Leader, replicas and their positions, per partition.
    pub async fn describe_partitions(
        &self,
        topic: &str,
    ) -> Result<Vec<v1::PartitionDescription>, ClientError> {
        let request = v1::DescribePartitionsRequest {
            topic: topic.to_owned(),
        };
        let reply = self
            .call(
                READS,
                Duration::ZERO,
                request,
                async |mut admin, request| admin.describe_partitions(request).await,
            )
            .await?;
        Ok(reply.partitions)
    }

    /// The cluster as the answering node sees it; works without a leader.
    pub async fn status(&self) -> Result<v1::GetStatusResponse, ClientError> {
        let request = v1::GetStatusRequest {};
        let reply = self
            .call(
                READS,
                Duration::ZERO,
                request,
                async |mut admin, request| admin.get_status(request).await,
            )
            .await?;
        for node in &reply.nodes {
            self.client.learn_node(node.node_id, &node.client_address);
        }
        Ok(reply)
    }

    /// The limits that the cluster enforces.
    pub async fn limits(&self) -> Result<v1::GetLimitsResponse, ClientError> {
        let request = v1::GetLimitsRequest {};
        self.call(
            READS,
            Duration::ZERO,
            request,
            async |mut admin, request| admin.get_limits(request).await,
        )
        .await
    }

    /// Compares the replicas of a topic's partitions, or of all if `topic` is empty. The servers read
    /// everything they compare: `wait` is time for that, on top of the usual deadline.
    pub async fn verify(
        &self,
        topic: &str,
        wait: Duration,
    ) -> Result<Vec<v1::PartitionVerification>, ClientError> {
        let request = v1::VerifyRequest {
            topic: topic.to_owned(),
        };
        let reply = self
            .call(READS, wait, request, async |mut admin, request| {
                admin.verify(request).await
            })
            .await?;
        Ok(reply.partitions)
    }

    async fn call<Q, T, F, A>(
        &self,
        repeat: Repeat,
        wait: Duration,
        request: Q,
        method: F,
    ) -> Result<T, ClientError>
    where
        Q: Clone,
        F: Fn(AdminServiceClient<Channel>, Request<Q>) -> A,
        A: Future<Output = Result<Response<T>, Status>>,
    {
        let plan = Plan {
            want: Want::Any,
            repeat,
            wait,
        };
        self.client
            .call(plan, |channel, budget| {
                let admin = self.client.admin_service(channel);
                method(admin, timed(request.clone(), budget))
            })
            .await
    }
}
