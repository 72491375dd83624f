//! The client: one handle to a cluster, cheap to clone, from which everything else is made.
//!
//! A call runs attempts one after another until one succeeds, an error is final, or the deadline is
//! over. Each attempt goes where `routes` says and is judged by `retry`; this module only carries the
//! decisions out.
//!
//! What is cancelled when the future of a call is dropped? The attempt under way: its stream is
//! reset, and a write that was sent may still be stored.

use crate::dial::{Dial, TcpDial};
use crate::error::{ClientError, Outcome, UNREACHABLE};
use crate::options::{ClientOptions, RetryUnknown};
use crate::pool::Pool;
use crate::retry::{self, Next, Repeat};
use crate::routes::{PartitionKey, Routes, Want};
use imprint_proto::batch::ProducerBatch;
use imprint_proto::v1;
use imprint_proto::v1::admin_service_client::AdminServiceClient;
use imprint_proto::v1::log_service_client::LogServiceClient;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

/// Why a client could not be made from what was given.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// The list of servers was empty.
    #[error("no server given")]
    NoServers,
    /// An address does not read as `host:port`.
    #[error("server address {address:?} is not of the form host:port")]
    BadAddress {
        /// What was given.
        address: String,
    },
}

/// A handle to a cluster.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: ClientOptions,
    pool: Pool,
    routes: Routes,
}

/// How one append is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct SendOptions {
    /// Refuse (reason `OFFSET_MISMATCH`) unless the batch would get this offset.
    pub expected_offset: Option<u64>,
    /// What to do when an answer was lost.
    pub retry_unknown: RetryUnknown,
}

/// Where a poll starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// At this offset.
    Offset(u64),
    /// At the first kept offset.
    First,
    /// This many messages before the commit point; 0 is the commit point.
    Last(u64),
    /// At the first message stamped at or after this server time, microseconds since the Unix epoch.
    Timestamp(u64),
}

/// How one poll is made.
#[derive(Debug, Clone, Copy)]
pub struct PollOptions {
    /// Bytes of batches wanted; at least one whole batch comes back if there is one. 0: the server's choice.
    pub max_bytes: u32,
    /// Wait until this much is readable. 0: as soon as there is one batch.
    pub min_bytes: u32,
    /// Longest wait. Zero: answer at once.
    pub max_wait: Duration,
    /// Confirm leadership first, so that everything acknowledged earlier is seen.
    pub linearizable: bool,
    /// Answer from this node's replica.
    pub at_node: Option<u64>,
}

impl Default for PollOptions {
    fn default() -> Self {
        PollOptions {
            max_bytes: 1 << 20,
            min_bytes: 0,
            max_wait: Duration::ZERO,
            linearizable: false,
            at_node: None,
        }
    }
}

/// What decides about a call as a whole.
pub(crate) struct Plan {
    pub want: Want,
    pub repeat: Repeat,
    /// Time that the server was asked to wait, on top of the usual ones.
    pub wait: Duration,
}

impl Client {
    /// A client of the cluster that `servers` (`host:port` each) belong to.
    ///
    /// Nothing is dialled yet: the first call does, so that a cluster that is still starting is no error.
    pub fn connect<S: AsRef<str>>(
        servers: &[S],
        options: ClientOptions,
    ) -> Result<Client, ConnectError> {
        let dial = TcpDial {
            timeout: options.connect_timeout,
        };
        Client::connect_with(servers, options, Arc::new(dial))
    }

    /// The same over another network.
    pub fn connect_with<S: AsRef<str>>(
        servers: &[S],
        options: ClientOptions,
        dial: Arc<dyn Dial>,
    ) -> Result<Client, ConnectError> {
        let servers = servers
            .iter()
            .map(|server| checked_address(server.as_ref()))
            .collect::<Result<Vec<_>, _>>()?;
        if servers.is_empty() {
            return Err(ConnectError::NoServers);
        }
        let routes = Routes::new(servers, options.ambient.random_u64());
        let pool = Pool::new(dial, options.clone());
        let shared = Shared {
            options,
            pool,
            routes,
        };
        Ok(Client {
            shared: Arc::new(shared),
        })
    }

    /// What this client was made with.
    pub fn options(&self) -> &ClientOptions {
        &self.shared.options
    }

    /// The servers that this client was given.
    pub fn servers(&self) -> impl Iterator<Item = &str> {
        self.shared.routes.servers().iter().map(|server| &**server)
    }

    /// Appends one batch. The batch stays the caller's: it is cheap to clone and can be sent again.
    pub async fn send(
        &self,
        topic: &str,
        partition: u32,
        batch: &ProducerBatch,
        options: SendOptions,
    ) -> Result<v1::SendResponse, ClientError> {
        let key = partition_key(topic, partition);
        let request = v1::SendRequest {
            topic: topic.to_owned(),
            partition,
            batch: batch.as_bytes().clone(),
            expected_offset: options.expected_offset,
        };
        let repeat = match (options.retry_unknown, options.expected_offset) {
            (RetryUnknown::Guarded, None) => RetryUnknown::No,
            (chosen, _) => chosen,
        };
        let plan = Plan {
            want: Want::Leader(key.clone()),
            repeat: Repeat::Writes(repeat),
            wait: Duration::ZERO,
        };
        let reply = self
            .call(plan, |channel, budget| {
                let (mut log, request) = (self.log(channel), timed(request.clone(), budget));
                async move { log.send(request).await }
            })
            .await?;
        if let Some(node) = &reply.served_by {
            self.shared.routes.learn_leader(&key, &node.address);
            self.shared.routes.learn_node(node.node_id, &node.address);
        }
        Ok(reply)
    }

    /// Reads whole batches.
    pub async fn poll(
        &self,
        topic: &str,
        partition: u32,
        position: Position,
        options: PollOptions,
    ) -> Result<v1::PollResponse, ClientError> {
        let key = partition_key(topic, partition);
        let wait_ms = u32::try_from(options.max_wait.as_millis()).unwrap_or(u32::MAX);
        let request = v1::PollRequest {
            topic: topic.to_owned(),
            partition,
            position: Some(position.into()),
            max_bytes: options.max_bytes,
            min_bytes: options.min_bytes,
            max_wait_ms: wait_ms,
            linearizable: options.linearizable,
            at_node: options.at_node,
        };
        let want = match options.at_node {
            Some(node) => Want::Node(node),
            None if options.linearizable => Want::Leader(key.clone()),
            None => Want::Replica(key.clone()),
        };
        let plan = Plan {
            want,
            repeat: Repeat::Harmless,
            wait: options.max_wait,
        };
        let reply = self
            .call(plan, |channel, budget| {
                let (mut log, request) = (self.log(channel), timed(request.clone(), budget));
                async move { log.poll(request).await }
            })
            .await?;
        if let Some(node) = &reply.served_by {
            if options.at_node.is_none() {
                self.shared.routes.learn_reader(&key, &node.address);
            }
            self.shared.routes.learn_node(node.node_id, &node.address);
        }
        Ok(reply)
    }

    /// Start, commit point and end of partitions; of all of the topic's if `partitions` is empty.
    pub async fn offsets(
        &self,
        topic: &str,
        partitions: &[u32],
        at_node: Option<u64>,
    ) -> Result<Vec<v1::PartitionOffsets>, ClientError> {
        let request = v1::GetOffsetsRequest {
            topic: topic.to_owned(),
            partitions: partitions.to_vec(),
            at_node,
        };
        let plan = Plan {
            want: at_node.map_or(Want::Any, Want::Node),
            repeat: Repeat::Harmless,
            wait: Duration::ZERO,
        };
        let reply = self
            .call(plan, |channel, budget| {
                let (mut log, request) = (self.log(channel), timed(request.clone(), budget));
                async move { log.get_offsets(request).await }
            })
            .await?;
        Ok(reply.partitions)
    }

    pub(crate) fn learn_node(&self, node: u64, address: &str) {
        self.shared.routes.learn_node(node, address);
    }

    fn log(&self, channel: Channel) -> LogServiceClient<Channel> {
        let max = self.shared.options.max_message_bytes;
        LogServiceClient::new(channel)
            .max_decoding_message_size(max)
            .max_encoding_message_size(max)
    }

    pub(crate) fn admin_service(&self, channel: Channel) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(channel)
            .max_decoding_message_size(self.shared.options.max_message_bytes)
    }

    /// Runs a call: attempts until success, a final error or the deadline.
    pub(crate) async fn call<T, F, A>(&self, plan: Plan, attempt: F) -> Result<T, ClientError>
    where
        F: Fn(Channel, Duration) -> A,
        A: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + self.shared.options.deadline + plan.wait;
        let mut progress = Progress::default();
        loop {
            let error = match self.attempt(&plan, &progress, deadline, &attempt).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            progress.attempts += 1;
            progress.any_unknown |= error.outcome() == Outcome::Unknown;
            // Also when this call gives up: the next one must not go the same way.
            self.learn_from(&plan, &error);
            if retry::next(&error, plan.repeat) == Next::GiveUp {
                return Err(error.after(progress.attempts, progress.any_unknown));
            }
            let pause = self.prepare_next(&plan, &error, &mut progress);
            if Instant::now() + pause >= deadline {
                return Err(error.after(progress.attempts, progress.any_unknown));
            }
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
    }

    async fn attempt<T, F, A>(
        &self,
        plan: &Plan,
        progress: &Progress,
        deadline: Instant,
        attempt: &F,
    ) -> Result<T, ClientError>
    where
        F: Fn(Channel, Duration) -> A,
        A: Future<Output = Result<Response<T>, Status>>,
    {
        let now = Instant::now();
        let Shared {
            pool,
            routes,
            options,
        } = &*self.shared;
        let address = routes.pick(&plan.want, &progress.tried, now);
        let budget = deadline
            .saturating_duration_since(now)
            .min(options.attempt_timeout + plan.wait);
        let channel = pool.channel(&address).map_err(|error| {
            let message = format!("address {address}: {error}");
            ClientError::local(
                Code::Unavailable,
                UNREACHABLE,
                message,
                Outcome::NotSent,
                &address,
            )
        })?;
        match tokio::time::timeout(budget, attempt(channel, budget)).await {
            Ok(Ok(reply)) => {
                routes.reached(&address);
                Ok(reply.into_inner())
            }
            Ok(Err(status)) => Err(ClientError::from_status(&status, &address)),
            Err(_) => Err(ClientError::timed_out(&address)),
        }
    }

    /// Notes what the error teaches and says how long to wait before the next attempt.
    fn learn_from(&self, plan: &Plan, error: &ClientError) {
        let Shared { pool, routes, .. } = &*self.shared;
        let address: Arc<str> = Arc::from(error.server());
        tracing::debug!(server = %address, reason = error.reason(), %error, "attempt failed");
        if error.is_silence() {
            routes.failed(&address, Instant::now());
            pool.forget(&address);
        } else {
            routes.reached(&address);
            routes.refused(&plan.want, &address);
        }
    }

    fn prepare_next(&self, plan: &Plan, error: &ClientError, progress: &mut Progress) -> Duration {
        let Shared {
            routes, options, ..
        } = &*self.shared;
        let address: Arc<str> = Arc::from(error.server());
        if !progress.tried.contains(&address) {
            progress.tried.push(address);
        }
        if self.follow_hint(plan, error, progress) {
            return Duration::ZERO;
        }
        // An overloaded cluster is not helped by asking its other nodes at once.
        let overloaded = error.code() == Code::ResourceExhausted;
        if !overloaded && !routes.exhausted(&progress.tried) {
            return Duration::ZERO;
        }
        progress.tried.clear();
        let pause = retry::pause(options, progress.rounds, error.retry_after());
        progress.rounds += 1;
        pause
    }

    /// Whether the error named a leader that has not been asked in this round.
    fn follow_hint(&self, plan: &Plan, error: &ClientError, progress: &Progress) -> bool {
        let (Want::Leader(key), Some(hint)) = (&plan.want, error.leader()) else {
            return false;
        };
        self.shared.routes.learn_node(hint.node_id, &hint.address);
        if hint.address.is_empty() || progress.tried.iter().any(|tried| **tried == *hint.address) {
            return false;
        }
        self.shared.routes.learn_leader(key, &hint.address);
        true
    }
}

/// Where a call stands.
#[derive(Default)]
struct Progress {
    attempts: u32,
    /// Full rounds over the servers.
    rounds: u32,
    any_unknown: bool,
    /// Addresses that failed in this round.
    tried: Vec<Arc<str>>,
}

impl From<Position> for v1::Position {
    fn from(position: Position) -> v1::Position {
        use v1::position::At;
        let at = match position {
            Position::Offset(offset) => At::Offset(offset),
            Position::First => At::First(true),
            Position::Last(count) => At::Last(count),
            Position::Timestamp(micros) => At::TimestampUs(micros),
        };
        v1::Position { at: Some(at) }
    }
}

pub(crate) fn partition_key(topic: &str, partition: u32) -> PartitionKey {
    PartitionKey {
        topic: Arc::from(topic),
        partition,
    }
}

/// The request with its time budget told to the server, so that work nobody waits for ends there too.
pub(crate) fn timed<T>(message: T, budget: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(budget);
    request
}

fn checked_address(given: &str) -> Result<Arc<str>, ConnectError> {
    let address = given.trim();
    let bad = || ConnectError::BadAddress {
        address: given.to_owned(),
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
    let plain_host = !host.is_empty() && !host.contains(['/', '@', ' ']);
    let bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    match port.parse::<u16>() {
        Ok(port) if port != 0 && plain_host && !bare_v6 => Ok(Arc::from(address)),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_need_host_and_port() {
        for good in ["localhost:7460", " 10.0.0.1:1 ", "[::1]:7460"] {
            assert!(checked_address(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "localhost",
            ":7460",
            "a:0",
            "a:70000",
            "http://a:7460",
            "::1:7460",
        ] {
            assert!(checked_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_client_needs_a_server() {
        let none: [&str; 0] = [];
        let made = Client::connect(&none, ClientOptions::default());
        assert_eq!(made.err(), Some(ConnectError::NoServers));
    }
}
