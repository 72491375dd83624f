//! A server that keeps batches in memory and fails on command, on a real socket of this machine.

use bytes::{Bytes, BytesMut};
use imprint_client::v1;
use imprint_proto::batch::{AdmittedBatch, StampedBatch};
use imprint_proto::limits::BatchLimits;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::metadata::MetadataMap;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};
use v1::admin_service_server::{AdminService, AdminServiceServer};
use v1::log_service_server::{LogService, LogServiceServer};

/// The partition id that every topic's only partition has.
pub const PARTITION_ID: u64 = 7;

/// What a call meets.
pub enum Fault {
    /// It is refused.
    Refuse(Status),
    /// A send is stored, and the answer is lost in this way.
    StoreThen(Status),
    /// It is never answered.
    Silence,
}

/// The log that all fake servers of a test share.
#[derive(Default)]
pub struct Log {
    pub batches: Vec<StampedBatch>,
    pub next_offset: u64,
}

/// One fake server.
pub struct Fake {
    pub address: String,
    pub state: Arc<State>,
    /// Its own, so that stopping it closes the connections too.
    runtime: Option<Runtime>,
}

pub struct State {
    node_id: u64,
    address: String,
    log: Arc<Mutex<Log>>,
    script: Mutex<VecDeque<Fault>>,
    pub calls: Mutex<u64>,
    /// Where sends are said to have been served.
    pub leader: Mutex<Option<String>>,
}

impl Fake {
    pub async fn start(node_id: u64, log: &Arc<Mutex<Log>>) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let state = Arc::new(State {
            node_id,
            address: address.to_string(),
            log: Arc::clone(log),
            script: Mutex::default(),
            calls: Mutex::default(),
            leader: Mutex::default(),
        });
        let service = Service(Arc::clone(&state));
        let serving = Server::builder()
            .add_service(LogServiceServer::new(service.clone()))
            .add_service(AdminServiceServer::new(service));
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let listener = listener.into_std().unwrap();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let incoming = TcpListenerStream::new(listener);
            serving.serve_with_incoming(incoming).await.unwrap();
        });
        Fake {
            address: address.to_string(),
            state,
            runtime: Some(runtime),
        }
    }

    /// The next calls meet these, one each.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state.script.lock().unwrap().extend(faults);
    }

    pub fn calls(&self) -> u64 {
        *self.state.calls.lock().unwrap()
    }
}

impl Drop for Fake {
    /// Stops serving and closes every connection.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A runtime may not wait for its end inside another one.
            let ended = std::thread::spawn(move || drop(runtime)).join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

/// A refusal with a reason, as servers give it.
pub fn refusal(code: Code, reason: &str) -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert("imprint-reason", reason.parse().unwrap());
    Status::with_metadata(code, format!("refused: {reason}"), metadata)
}

/// The same with a leader's address.
pub fn refusal_naming(code: Code, reason: &str, leader: &str) -> Status {
    let mut status = refusal(code, reason);
    let metadata = status.metadata_mut();
    metadata.insert("imprint-leader-address", leader.parse().unwrap());
    status
}

#[derive(Clone)]
struct Service(Arc<State>);

impl Service {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.log.lock().unwrap()
    }

    fn next_fault(&self) -> Option<Fault> {
        *self.0.calls.lock().unwrap() += 1;
        self.0.script.lock().unwrap().pop_front()
    }

    async fn obstacle(&self) -> Result<(), Status> {
        match self.next_fault() {
            None => Ok(()),
            Some(Fault::Refuse(status) | Fault::StoreThen(status)) => Err(status),
            Some(Fault::Silence) => std::future::pending().await,
        }
    }

    fn store(&self, request: &v1::SendRequest) -> Result<v1::SendResponse, Status> {
        let limits = BatchLimits::default();
        let admitted = AdmittedBatch::admit(request.batch.clone(), PARTITION_ID, &limits)
            .map_err(|(error, _)| Status::invalid_argument(error.to_string()))?;
        let mut log = self.log();
        if request
            .expected_offset
            .is_some_and(|expected| expected != log.next_offset)
        {
            return Err(refusal(Code::FailedPrecondition, "OFFSET_MISMATCH"));
        }
        let base = log.next_offset;
        let stamped = admitted
            .stamp(base, 1_000_000 + base)
            .map_err(|(error, _)| error);
        let stamped = stamped.map_err(|error| Status::internal(error.to_string()))?;
        log.next_offset = stamped.next_offset();
        let reply = v1::SendResponse {
            base_offset: base,
            last_offset: log.next_offset - 1,
            base_timestamp_us: stamped.base_timestamp(),
            leader_epoch: 1,
            durability: 1,
            served_by: Some(self.leader()),
        };
        log.batches.push(stamped);
        Ok(reply)
    }

    fn leader(&self) -> v1::NodeRef {
        match &*self.0.leader.lock().unwrap() {
            Some(address) => v1::NodeRef {
                node_id: 99,
                address: address.clone(),
            },
            None => self.node(),
        }
    }

    fn node(&self) -> v1::NodeRef {
        v1::NodeRef {
            node_id: self.0.node_id,
            address: self.0.address.clone(),
        }
    }

    fn read(&self, from: u64, max_bytes: u32) -> (Bytes, u64) {
        let (mut bytes, mut next) = (BytesMut::new(), from);
        for batch in &self.log().batches {
            if batch.next_offset() <= from {
                continue;
            }
            if !bytes.is_empty() && bytes.len() as u64 + batch.len() > u64::from(max_bytes) {
                break;
            }
            bytes.extend_from_slice(&batch.to_contiguous());
            next = batch.next_offset();
        }
        (bytes.freeze(), next)
    }
}

#[tonic::async_trait]
impl LogService for Service {
    async fn send(
        &self,
        request: Request<v1::SendRequest>,
    ) -> Result<Response<v1::SendResponse>, Status> {
        match self.next_fault() {
            None => self.store(request.get_ref()).map(Response::new),
            Some(Fault::Refuse(status)) => Err(status),
            Some(Fault::StoreThen(status)) => {
                self.store(request.get_ref())?;
                Err(status)
            }
            Some(Fault::Silence) => std::future::pending().await,
        }
    }

    async fn poll(
        &self,
        request: Request<v1::PollRequest>,
    ) -> Result<Response<v1::PollResponse>, Status> {
        use v1::position::At;
        self.obstacle().await?;
        let request = request.into_inner();
        let end = self.log().next_offset;
        let from = match request.position.and_then(|position| position.at) {
            Some(At::Offset(offset)) => offset,
            Some(At::Last(count)) => end.saturating_sub(count),
            _ => 0,
        };
        let (batches, next_offset) = self.read(from, request.max_bytes);
        Ok(Response::new(v1::PollResponse {
            batches,
            start_offset: 0,
            commit_offset: end,
            end_offset: end,
            next_offset,
            position_offset: from,
            epochs: Vec::new(),
            served_by: Some(self.node()),
        }))
    }

    async fn get_offsets(
        &self,
        _: Request<v1::GetOffsetsRequest>,
    ) -> Result<Response<v1::GetOffsetsResponse>, Status> {
        self.obstacle().await?;
        let end = self.log().next_offset;
        let only = v1::PartitionOffsets {
            partition: 0,
            start_offset: 0,
            commit_offset: end,
            end_offset: end,
        };
        let partitions = vec![only];
        Ok(Response::new(v1::GetOffsetsResponse { partitions }))
    }

    async fn send_text(
        &self,
        _: Request<v1::SendTextRequest>,
    ) -> Result<Response<v1::SendResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn poll_text(
        &self,
        _: Request<v1::PollTextRequest>,
    ) -> Result<Response<v1::PollTextResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

#[tonic::async_trait]
impl AdminService for Service {
    async fn get_topic(
        &self,
        request: Request<v1::GetTopicRequest>,
    ) -> Result<Response<v1::GetTopicResponse>, Status> {
        self.obstacle().await?;
        if request.get_ref().name == "missing" {
            return Err(refusal(Code::NotFound, "TOPIC_NOT_FOUND"));
        }
        let partition = v1::Partition {
            index: 0,
            partition_id: PARTITION_ID,
            replicas: Vec::new(),
        };
        let topic = v1::Topic {
            name: request.into_inner().name,
            partitions: vec![partition],
            ..v1::Topic::default()
        };
        Ok(Response::new(v1::GetTopicResponse { topic: Some(topic) }))
    }

    async fn get_status(
        &self,
        _: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        self.obstacle().await?;
        Ok(Response::new(v1::GetStatusResponse {
            answered_by: self.0.node_id,
            ..v1::GetStatusResponse::default()
        }))
    }

    async fn create_topic(
        &self,
        _: Request<v1::CreateTopicRequest>,
    ) -> Result<Response<v1::CreateTopicResponse>, Status> {
        self.obstacle().await?;
        Ok(Response::new(v1::CreateTopicResponse::default()))
    }

    async fn list_topics(
        &self,
        request: Request<v1::ListTopicsRequest>,
    ) -> Result<Response<v1::ListTopicsResponse>, Status> {
        self.obstacle().await?;
        let token = request.into_inner().page_token;
        let name = if token.is_empty() { "a" } else { "b" };
        let topic = v1::Topic {
            name: name.to_owned(),
            ..v1::Topic::default()
        };
        Ok(Response::new(v1::ListTopicsResponse {
            topics: vec![topic],
            next_page_token: if token.is_empty() { "more" } else { "" }.to_owned(),
        }))
    }

    async fn update_topic(
        &self,
        _: Request<v1::UpdateTopicRequest>,
    ) -> Result<Response<v1::UpdateTopicResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn trim_partition(
        &self,
        _: Request<v1::TrimPartitionRequest>,
    ) -> Result<Response<v1::TrimPartitionResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn trim_topic(
        &self,
        _: Request<v1::TrimTopicRequest>,
    ) -> Result<Response<v1::TrimTopicResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn delete_topic(
        &self,
        _: Request<v1::DeleteTopicRequest>,
    ) -> Result<Response<v1::DeleteTopicResponse>, Status> {
        self.obstacle().await?;
        Ok(Response::new(v1::DeleteTopicResponse {}))
    }

    async fn describe_partitions(
        &self,
        _: Request<v1::DescribePartitionsRequest>,
    ) -> Result<Response<v1::DescribePartitionsResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_limits(
        &self,
        _: Request<v1::GetLimitsRequest>,
    ) -> Result<Response<v1::GetLimitsResponse>, Status> {
        self.obstacle().await?;
        let limits = BatchLimits::default();
        Ok(Response::new(v1::GetLimitsResponse {
            max_batch_bytes: limits.max_batch_bytes,
            max_messages_per_batch: limits.max_messages,
            max_user_headers_bytes: limits.max_user_headers_bytes,
            max_header_field_bytes: limits.max_header_field_bytes,
            ..v1::GetLimitsResponse::default()
        }))
    }

    async fn verify(
        &self,
        request: Request<v1::VerifyRequest>,
    ) -> Result<Response<v1::VerifyResponse>, Status> {
        self.obstacle().await?;
        let topic = request.into_inner().topic;
        let partition = v1::PartitionVerification {
            equal: topic != "different",
            problem: if topic == "different" {
                "digests differ"
            } else {
                ""
            }
            .to_owned(),
            topic,
            ..v1::PartitionVerification::default()
        };
        let partitions = vec![partition];
        Ok(Response::new(v1::VerifyResponse { partitions }))
    }
}
