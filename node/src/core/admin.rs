//! Topics: create, get, list, update, delete.

use super::{
    Core,
    control::refusal,
    lookup::{Found, all_partitions},
};
use crate::{
    controller::{Command, CreateTopic, TopicRecord, UpdateTopic, Verdict, settings},
    failure::{Failure, Reason},
    forward::CallContext,
};
use imprint_proto::{ids::NodeId, limits::BatchLimits, v1};
use std::{ops::Bound, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Topics on a page when the caller doesn't say, and at most.
const PAGE_SIZE: usize = 1000;
/// Between two questions after a leader on another node.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// An answer about leadership from another node may take this long before the next one is asked.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);
/// This node applies what it has just heard to be committed within a heartbeat or two.
const UPDATE_SEEN_WITHIN: Duration = Duration::from_secs(1);

impl Core {
    /// Creates a topic and answers once it is usable: each partition has a leader that this node
    /// knows of.
    pub async fn create_topic(
        &self,
        request: v1::CreateTopicRequest,
        context: &CallContext,
    ) -> Result<v1::CreateTopicResponse, Failure> {
        self.check_not_stopping()?;
        let given = request.settings.into_iter().collect();
        let mut settings = settings::check_name(&request.name)
            .and_then(|()| settings::check_partitions(request.partitions))
            .and_then(|()| settings::canonical("settings", &given))
            .map_err(invalid)?;
        settings::write_out_roll(&mut settings, self.parts.segment_bytes);
        self.check_formed()?;
        self.wait_all_registered(context).await?;
        let mut token = [0; 16];
        self.parts.entropy.fill(&mut token);
        let command = Command::CreateTopic(CreateTopic {
            name: request.name,
            partitions: request.partitions,
            replication: request.replication,
            settings,
            token,
        });
        let answer = self.repeatable_command(&command, context).await?;
        let topic = match (answer.verdict, answer.topic.clone()) {
            (Verdict::Done, Some(topic)) => Arc::new(topic),
            _ => return Err(refusal(answer)),
        };
        self.wait_usable(&topic, context).await?;
        Ok(v1::CreateTopicResponse {
            topic: Some(to_wire(&topic)),
        })
    }

    /// Where replicas go depends on the nodes that are there, so the first topic waits for all.
    async fn wait_all_registered(&self, context: &CallContext) -> Result<(), Failure> {
        let mut states = self.parts.controller.clone();
        let founders = self.parts.founders;
        let all = states.wait_for(|state| state.nodes.len() >= founders);
        match tokio::time::timeout_at(context.deadline, all).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Failure::new(
                Reason::NotReady,
                format!("fewer than {founders} nodes have registered with the controller"),
            )),
        }
    }

    async fn wait_usable(
        &self,
        topic: &Arc<TopicRecord>,
        context: &CallContext,
    ) -> Result<(), Failure> {
        let mut states = self.parts.controller.clone();
        let known = states.wait_for(|state| {
            let known = state.topics.get(&topic.name);
            known.is_some_and(|known| known.topic_id >= topic.topic_id)
        });
        let not_yet = |what: String| {
            let message = format!(
                "topic {:?} is created but not usable yet: {what}",
                topic.name
            );
            Failure::new(Reason::NotUsableYet, message)
        };
        match tokio::time::timeout_at(context.deadline, known).await {
            Ok(Ok(_)) => {}
            _ => return Err(not_yet("this node has not heard of it".into())),
        }
        let partitions = all_partitions(topic);
        let waits = partitions.iter().map(|found| self.wait_led(found, context));
        let led = futures_util::future::join_all(waits).await;
        match led.iter().position(|led| !led) {
            None => Ok(()),
            Some(index) => Err(not_yet(format!("partition {index} has no leader"))),
        }
    }

    async fn wait_led(&self, found: &Found, context: &CallContext) -> bool {
        let nodes = found.nodes();
        let hosted = nodes.contains(&self.node_id());
        let mut tries = 0;
        loop {
            let replica = self.replica(found.group());
            if let Some(replica) = replica {
                return replica.wait_leader(context.deadline).await.is_some();
            }
            if !hosted && let Some(node) = nodes.get(tries % nodes.len().max(1)) {
                let context = CallContext {
                    deadline: context.deadline.min(Instant::now() + ASK_TIMEOUT),
                    ..context.clone()
                };
                if let Ok(state) = self.state_at(found, *node, &context).await
                    && state.leader != 0
                {
                    self.remember_leader(found.group(), NodeId(state.leader));
                    return true;
                }
            }
            tries += 1;
            if Instant::now() + ASK_AGAIN_AFTER >= context.deadline {
                return false;
            }
            tokio::time::sleep(ASK_AGAIN_AFTER).await;
        }
    }

    /// One topic.
    pub async fn get_topic(
        &self,
        request: v1::GetTopicRequest,
        context: &CallContext,
    ) -> Result<v1::GetTopicResponse, Failure> {
        let topic = self.find_topic(&request.name, context).await?;
        Ok(v1::GetTopicResponse {
            topic: Some(to_wire(&topic)),
        })
    }

    /// Topics by name, a page at a time; the token of the next page is the last name given.
    pub async fn list_topics(
        &self,
        request: v1::ListTopicsRequest,
        context: &CallContext,
    ) -> Result<v1::ListTopicsResponse, Failure> {
        self.check_formed()?;
        // Best effort: without a leader, what this node knows is still worth telling.
        let _ = self.catch_up_with_controller(context).await;
        let state = self.controller();
        let size = match request.page_size as usize {
            0 => PAGE_SIZE,
            size => size.min(PAGE_SIZE),
        };
        let after = match request.page_token.as_str() {
            "" => Bound::Unbounded,
            token => Bound::Excluded(token),
        };
        let mut rest = state.topics.range::<str, _>((after, Bound::Unbounded));
        let topics: Vec<v1::Topic> = rest.by_ref().take(size).map(|(_, t)| to_wire(t)).collect();
        let next_page_token = match (rest.next(), topics.last()) {
            (Some(_), Some(last)) => last.name.clone(),
            _ => String::new(),
        };
        Ok(v1::ListTopicsResponse {
            topics,
            next_page_token,
        })
    }

    /// Changes a topic's settings, all or nothing.
    pub async fn update_topic(
        &self,
        request: v1::UpdateTopicRequest,
        context: &CallContext,
    ) -> Result<v1::UpdateTopicResponse, Failure> {
        self.check_not_stopping()?;
        let set = request.set.into_iter().collect();
        let change = settings::Change::check(&set, &request.unset).map_err(invalid)?;
        let change = change.write_out_roll(self.parts.segment_bytes);
        let command = Command::UpdateTopic(UpdateTopic {
            name: request.name,
            set: change.set,
            unset: change.unset,
        });
        let answer = self.repeatable_command(&command, context).await?;
        let topic = match (answer.verdict, answer.topic.clone()) {
            (Verdict::Done, Some(topic)) => topic,
            _ => return Err(refusal(answer)),
        };
        self.wait_updated(&topic, context).await;
        Ok(v1::UpdateTopicResponse {
            topic: Some(to_wire(&topic)),
        })
    }

    /// So that what this node answers next has the new settings; others follow by themselves.
    async fn wait_updated(&self, topic: &TopicRecord, context: &CallContext) {
        let mut states = self.parts.controller.clone();
        let updated = states.wait_for(|state| {
            let known = state.topics.get(&topic.name);
            known.is_none_or(|known| {
                known.topic_id != topic.topic_id || known.settings == topic.settings
            })
        });
        // Another change may have come right behind: then these settings are never seen here.
        let until = context.deadline.min(Instant::now() + UPDATE_SEEN_WITHIN);
        let _ = tokio::time::timeout_at(until, updated).await;
    }

    /// Deletes a topic with all its data.
    pub async fn delete_topic(
        &self,
        request: v1::DeleteTopicRequest,
        context: &CallContext,
    ) -> Result<v1::DeleteTopicResponse, Failure> {
        self.check_not_stopping()?;
        let name = request.name.clone();
        let answer = self
            .command(&Command::DeleteTopic { name }, context)
            .await?;
        if answer.verdict != Verdict::Done {
            return Err(refusal(answer));
        }
        // What this node answers from now on no longer knows the topic.
        let mut states = self.parts.controller.clone();
        let deleted = answer.topic.map_or(0, |topic| topic.topic_id);
        let gone = states.wait_for(|state| {
            let known = state.topics.get(&request.name);
            known.is_none_or(|known| known.topic_id != deleted)
        });
        let _ = tokio::time::timeout_at(context.deadline, gone).await;
        Ok(v1::DeleteTopicResponse {})
    }

    /// What a client must stay within.
    pub fn get_limits(&self) -> v1::GetLimitsResponse {
        let limits = self.limits();
        let batch: BatchLimits = super::batch_limits(limits);
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        v1::GetLimitsResponse {
            max_batch_bytes: batch.max_batch_bytes,
            max_messages_per_batch: batch.max_messages,
            max_user_headers_bytes: batch.max_user_headers_bytes,
            max_header_field_bytes: batch.max_header_field_bytes,
            max_poll_bytes: small(limits.max_poll_bytes),
            max_wait_ms: u32::try_from(limits.max_wait.as_millis()).unwrap_or(u32::MAX),
            max_topic_name_bytes: small(settings::MAX_TOPIC_NAME_BYTES as u64),
            max_partitions_per_topic: settings::MAX_PARTITIONS_PER_TOPIC,
        }
    }
}

fn invalid(refusal: settings::Refusal) -> Failure {
    Failure::field(Reason::InvalidArgument, &refusal.field, refusal.problem)
}

fn to_wire(topic: &TopicRecord) -> v1::Topic {
    let partitions = all_partitions(&Arc::new(topic.clone()));
    v1::Topic {
        name: topic.name.clone(),
        topic_id: topic.topic_id,
        replication: topic.replication,
        settings: topic.settings.clone().into_iter().collect(),
        partitions: partitions
            .iter()
            .map(|found| v1::Partition {
                index: found.index,
                partition_id: found.group().0,
                replicas: found
                    .partition()
                    .replicas
                    .iter()
                    .map(|replica| v1::Replica {
                        replica_id: replica.replica_id,
                        node_id: replica.node_id,
                    })
                    .collect(),
            })
            .collect(),
    }
}
