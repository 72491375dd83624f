//! One accepted connection: hello, then requests in and replies out until it ends.
//!
//! The order of steps for a request keeps memory bounded: a place among the requests in flight, then the header, then the
//! checks that need nothing else (version, method, size), then the bytes of the budget, and only then the body. Whatever
//! is missing, the socket isn't read meanwhile, and the peer feels it.

use std::sync::Arc;

use bytes::Bytes;
use imprint_proto::envelope;
use imprint_proto::frame::FrameHeader;
use imprint_proto::ids::NodeId;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};

use super::reply::{Hold, Replier, Reply};
use super::{ConnInfo, ServerShared};
use crate::rpc::config::MAX_HELLO_BYTES;
use crate::rpc::hello::{self, Hello, HelloRequest, Refusal, error_payload};
use crate::rpc::liveness::{PingMessage, answer_payload};
use crate::rpc::wire::{Encoded, FrameReader, Head, WireError};
use crate::rpc::write::WriteBatch;
use crate::rpc::{methods, status};
use crate::seams::BoxStream;

/// Replies put into one write at most.
const REPLIES_PER_WRITE: usize = 64;

/// Why a connection never got past its hello.
#[derive(Debug, thiserror::Error)]
enum GreetError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("node {node} is refused: {refusal}")]
    Refused { node: NodeId, refusal: Refusal },
    #[error("{0}")]
    Protocol(&'static str),
}

impl From<std::io::Error> for GreetError {
    fn from(e: std::io::Error) -> Self {
        GreetError::Wire(e.into())
    }
}

type Reader = FrameReader<ReadHalf<BoxStream>>;
type Writer = WriteHalf<BoxStream>;

/// Serves a connection until it ends.
pub(crate) async fn serve(
    server: Arc<ServerShared>,
    conn_id: u64,
    from: String,
    stream: BoxStream,
) {
    let (read, mut writer) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, server.config().stall_timeout);
    let limit = server.config().hello_timeout;
    let greeted = match timeout(limit, greet(&server, &mut reader, &mut writer)).await {
        Ok(greeted) => greeted,
        Err(_) => Err(GreetError::Protocol("it said no hello in time")),
    };
    match greeted {
        Ok((theirs, urgent)) => {
            let admitted = server.admit(conn_id, &theirs);
            let conn = Conn::new(
                server,
                ConnInfo {
                    peer: theirs.node_id,
                    conn_id,
                },
                urgent,
            );
            tokio::select! {
                biased;
                () = admitted.cancelled() => tracing::debug!(peer = %theirs.node_id, "connection replaced"),
                () = conn.run(&mut reader, &mut writer) => {}
            }
        }
        Err(e) => server.stranger(&from, &e),
    }
}

/// Turns a connection away that is one too many: its hello is answered, so that the peer can log why.
pub(crate) async fn turn_away(server: Arc<ServerShared>, stream: BoxStream) {
    let (read, mut writer) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, server.config().stall_timeout);
    let answer = async {
        let (correlation_id, _) = read_hello(&server, &mut reader, &mut writer).await?;
        refuse(
            &server,
            &mut writer,
            status::NOT_READY,
            correlation_id,
            "too many connections",
        )
        .await
    };
    // It's turned away in any case.
    let _ = timeout(server.config().hello_timeout, answer).await;
}

async fn greet(
    server: &ServerShared,
    reader: &mut Reader,
    writer: &mut Writer,
) -> Result<(Hello, bool), GreetError> {
    let (correlation_id, request) = read_hello(server, reader, writer).await?;
    let theirs = request.hello;
    let own = server.peers.own_hello();
    let accepted = hello::check(&own, &theirs).and_then(|()| server.dispatcher.hello(&theirs));
    match accepted {
        Ok(own) => {
            server.peers.heard(&theirs);
            send(
                server,
                writer,
                status::OK,
                correlation_id,
                envelope::encode(&own),
            )
            .await?;
            Ok((theirs, request.urgent))
        }
        Err(refusal) => {
            refuse(
                server,
                writer,
                status::NOT_READY,
                correlation_id,
                &refusal.0,
            )
            .await?;
            Err(GreetError::Refused {
                node: theirs.node_id,
                refusal,
            })
        }
    }
}

async fn read_hello(
    server: &ServerShared,
    reader: &mut Reader,
    writer: &mut Writer,
) -> Result<(u32, HelloRequest), GreetError> {
    let header = match reader.head().await? {
        None => return Err(GreetError::Protocol("it hung up without a hello")),
        Some(Head::OtherVersion {
            correlation_id,
            payload_bytes,
            ..
        }) => {
            reader
                .skip(payload_bytes.min(MAX_HELLO_BYTES as u64))
                .await?;
            refuse(
                server,
                writer,
                status::VERSION,
                correlation_id,
                VERSION_REASON,
            )
            .await?;
            return Err(GreetError::Protocol(
                "it speaks another version of the internal protocol",
            ));
        }
        Some(Head::Frame(header)) => header,
    };
    if header.meta != methods::HELLO {
        let reason = "the first call on a connection is the hello";
        refuse(
            server,
            writer,
            status::NOT_READY,
            header.correlation_id,
            reason,
        )
        .await?;
        return Err(GreetError::Protocol("its first call is not a hello"));
    }
    let body = reader.need(header).await?;
    if body.need() > MAX_HELLO_BYTES as u64 {
        refuse(
            server,
            writer,
            status::TOO_LARGE,
            header.correlation_id,
            "the hello is too large",
        )
        .await?;
        return Err(GreetError::Protocol("its hello is too large"));
    }
    let payload = reader.body(body).await?;
    let request = envelope::decode(payload).map_err(|e| WireError::Envelope(e.to_string()))?;
    Ok((header.correlation_id, request))
}

const VERSION_REASON: &str = "this version of the internal protocol is not spoken here";

async fn refuse(
    server: &ServerShared,
    writer: &mut Writer,
    status: u32,
    correlation_id: u32,
    reason: &str,
) -> Result<(), GreetError> {
    send(
        server,
        writer,
        status,
        correlation_id,
        error_payload(reason),
    )
    .await
}

async fn send(
    server: &ServerShared,
    writer: &mut Writer,
    status: u32,
    correlation_id: u32,
    payload: Bytes,
) -> Result<(), GreetError> {
    let encoded = Encoded::plain(vec![payload]);
    let mut batch = WriteBatch::new();
    batch.push(&encoded.header(status, correlation_id), &encoded.parts, ());
    Ok(batch
        .write_to(writer, server.config().stall_timeout, |()| ())
        .await?)
}

/// A connection of a known peer.
struct Conn {
    server: Arc<ServerShared>,
    info: ConnInfo,
    budget: Arc<Semaphore>,
    max_bytes: usize,
    in_flight: Arc<Semaphore>,
}

impl Conn {
    fn new(server: Arc<ServerShared>, info: ConnInfo, urgent: bool) -> Self {
        let config = server.config();
        let pool = if urgent {
            config.server_urgent_bytes
        } else {
            config.server_bulk_bytes
        };
        Conn {
            budget: Arc::clone(if urgent {
                &server.urgent_budget
            } else {
                &server.bulk_budget
            }),
            max_bytes: pool.min(config.max_frame_bytes),
            in_flight: Arc::new(Semaphore::new(config.server_in_flight_calls)),
            server,
            info,
        }
    }

    async fn run(&self, reader: &mut Reader, writer: &mut Writer) {
        let (queue, replies) = mpsc::unbounded_channel();
        let ended = tokio::select! {
            biased;
            ended = self.write_replies(replies, writer) => ended,
            ended = self.read_requests(reader, queue) => ended,
        };
        let stats = &self.server.stats().server;
        match ended {
            Ok(()) => tracing::debug!(peer = %self.info.peer, "peer hung up"),
            Err(error) if error.is_bad_bytes() => {
                stats.bad_frames.one();
                tracing::warn!(peer = %self.info.peer, %error, "bad bytes in a request; connection closed");
            }
            Err(error) => {
                if error.is_stall() {
                    stats.stalled.one();
                }
                tracing::info!(peer = %self.info.peer, %error, "connection ended");
            }
        }
    }

    async fn write_replies(
        &self,
        mut replies: mpsc::UnboundedReceiver<Reply>,
        writer: &mut Writer,
    ) -> Result<(), WireError> {
        let mut taken = Vec::with_capacity(REPLIES_PER_WRITE);
        while replies.recv_many(&mut taken, REPLIES_PER_WRITE).await > 0 {
            let mut batch = WriteBatch::new();
            for reply in taken.drain(..) {
                batch.push(&reply.header, &reply.parts, reply.hold);
            }
            batch
                .write_to(writer, self.server.config().stall_timeout, drop)
                .await?;
        }
        Ok(())
    }

    async fn read_requests(
        &self,
        reader: &mut Reader,
        queue: mpsc::UnboundedSender<Reply>,
    ) -> Result<(), WireError> {
        loop {
            // Never closed.
            let Ok(place) = Arc::clone(&self.in_flight).acquire_owned().await else {
                return Ok(());
            };
            if !self.readable(reader).await? {
                return Ok(());
            }
            let Some(head) = reader.head().await? else {
                return Ok(());
            };
            self.server.stats().server.requests.one();
            match head {
                Head::Frame(header) => self.request(reader, header, place, &queue).await?,
                Head::OtherVersion {
                    correlation_id,
                    payload_bytes,
                    ..
                } => {
                    self.replier(correlation_id, None, place, &queue)
                        .error(status::VERSION, VERSION_REASON);
                    reader.skip(payload_bytes).await?;
                }
            }
        }
    }

    /// Waits for the next request; false at the end of the stream. A connection that is silent for long, with nothing in
    /// flight, is taken for a dead one.
    async fn readable(&self, reader: &mut Reader) -> Result<bool, WireError> {
        let idle = self.server.config().server_idle_timeout;
        loop {
            match timeout(idle, reader.readable()).await {
                Ok(readable) => return Ok(readable?),
                Err(_) if self.nothing_in_flight() => return Ok(false),
                Err(_) => {}
            }
        }
    }

    /// But the place that the next request has already.
    fn nothing_in_flight(&self) -> bool {
        self.in_flight.available_permits() + 1 == self.server.config().server_in_flight_calls
    }

    async fn request(
        &self,
        reader: &mut Reader,
        header: FrameHeader,
        place: OwnedSemaphorePermit,
        queue: &mpsc::UnboundedSender<Reply>,
    ) -> Result<(), WireError> {
        let id = header.correlation_id;
        if methods::row(header.meta).is_none() {
            self.replier(id, None, place, queue)
                .error(status::NOT_FOUND, "the method is not known here");
            return reader.skip(u64::from(header.payload_size)).await;
        }
        if header.payload_size as usize > self.max_bytes {
            self.replier(id, None, place, queue)
                .error(status::TOO_LARGE, "the request is over the limit");
            return reader.skip(u64::from(header.payload_size)).await;
        }
        let body = reader.need(header).await?;
        if body.plain_bytes() > self.max_bytes as u64 || body.need() > self.budget_bytes() as u64 {
            let unread = body.unread();
            self.replier(id, None, place, queue)
                .error(status::TOO_LARGE, "the request is over the limit");
            return reader.skip(unread).await;
        }
        let memory = self.reserve(body.need()).await;
        let replier = self.replier(id, memory, place, queue);
        let payload = reader.body(body).await?;
        self.server
            .stats()
            .server
            .bytes_received
            .add(u64::from(header.payload_size));
        self.handle(header.meta, payload, replier);
        Ok(())
    }

    /// Waits for bytes of the budget. The socket isn't read meanwhile.
    async fn reserve(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let permits = u32::try_from(bytes).ok()?;
        if permits == 0 {
            return None;
        }
        let begun = Instant::now();
        let permit = Arc::clone(&self.budget)
            .acquire_many_owned(permits)
            .await
            .ok();
        self.server
            .stats()
            .server
            .memory_wait_us
            .add_duration(begun.elapsed());
        permit
    }

    fn budget_bytes(&self) -> usize {
        // A permit is counted in 32 bits.
        self.server.budget_of(&self.budget).min(u32::MAX as usize)
    }

    fn replier(
        &self,
        correlation_id: u32,
        memory: Option<OwnedSemaphorePermit>,
        place: OwnedSemaphorePermit,
        queue: &mpsc::UnboundedSender<Reply>,
    ) -> Replier {
        let hold = Hold::new(Arc::clone(self.server.stats()), memory, place);
        Replier::new(
            correlation_id,
            self.server.config().max_frame_bytes,
            hold,
            queue.clone(),
        )
    }

    fn handle(&self, method: u32, payload: Bytes, replier: Replier) {
        match method {
            methods::HELLO => replier.error(status::NOT_READY, "hello was said already"),
            methods::PING => match envelope::decode::<PingMessage>(payload) {
                Ok(ping) => {
                    let answer =
                        answer_payload(self.server.peers.ping_source(), self.info.peer, ping);
                    replier.ok(vec![answer]);
                }
                Err(e) => replier.error(status::HANDLER_FAILED, &e.to_string()),
            },
            _ => self
                .server
                .dispatcher
                .dispatch(self.info, method, payload, replier),
        }
    }
}
