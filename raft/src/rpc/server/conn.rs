//! One accepted connection: hello, then requests in and replies out until it ends.
//!
//! The order of steps for a request keeps memory bounded: a place among the requests in flight, then the header, then the
//! checks that need nothing else (version, method, size), then the bytes of the budget, and only then the body. Whatever
//! is missing, the socket isn't read meanwhile, and the peer feels it.
//!
//! TLS has its place before the hello: [`crate::seams::Wrap::incoming`] is asked on the connection's own task, within the
//! time for the hello, so that a slow handshake holds up nobody.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use imprint_proto::envelope;
use imprint_proto::frame::FrameHeader;
use imprint_proto::ids::NodeId;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};

use super::budget::{self, Allowance};
use super::reply::{Answering, Hold, Replier, Reply};
use super::{ConnInfo, ServerShared};
use crate::rpc::client::Class;
use crate::rpc::config::MAX_HELLO_BYTES;
use crate::rpc::hello::{self, Hello, HelloRequest, Refusal, error_payload};
use crate::rpc::liveness::{PingMessage, answer_payload};
use crate::rpc::wire::{Encoded, FrameReader, Head, WireError};
use crate::rpc::write::WriteBatch;
use crate::rpc::{methods, status};
use crate::seams::BoxStream;

/// Replies put into one write at most.
const REPLIES_PER_WRITE: usize = 64;

/// A peer's calls lift the hold on attempts to reach it at most once in this time: if it can call and can't be called, it
/// must not be dialled with each of its calls.
const HEARD_EVERY: Duration = Duration::from_secs(1);

/// Why a connection never got past its hello.
#[derive(Debug, thiserror::Error)]
enum GreetError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("node {node} is refused: {refusal}")]
    Refused { node: NodeId, refusal: Refusal },
    #[error("{0}")]
    Protocol(&'static str),
    #[error("no hello within {0:?}")]
    Late(Duration),
    #[error("it made room for later ones without a hello")]
    PushedOut,
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
    from: SocketAddr,
    stream: BoxStream,
) {
    let greeting = server.greeting(conn_id);
    let limit = server.config().hello_timeout;
    let greeted = tokio::select! {
        biased;
        () = greeting.cancelled() => Err(GreetError::PushedOut),
        greeted = timeout(limit, greet_wrapped(&server, from, stream)) => {
            greeted.unwrap_or(Err(GreetError::Late(limit)))
        }
    };
    drop(greeting);
    match greeted {
        Ok(greeted) => serve_peer(server, conn_id, greeted).await,
        Err(e) => server.stranger(from, &e),
    }
}

struct Greeted {
    reader: Reader,
    writer: Writer,
    theirs: Hello,
    class: Class,
}

async fn greet_wrapped(
    server: &ServerShared,
    from: SocketAddr,
    stream: BoxStream,
) -> Result<Greeted, GreetError> {
    let (mut reader, mut writer) = open(server, from, stream).await?;
    let (theirs, urgent) = greet(server, &mut reader, &mut writer).await?;
    Ok(Greeted {
        reader,
        writer,
        theirs,
        class: if urgent { Class::Urgent } else { Class::Bulk },
    })
}

/// Where TLS goes on this side.
async fn open(
    server: &ServerShared,
    from: SocketAddr,
    stream: BoxStream,
) -> std::io::Result<(Reader, Writer)> {
    let stream = match server.peers.wrap() {
        Some(wrap) => wrap.incoming(from, stream).await?,
        None => stream,
    };
    let (read, writer) = tokio::io::split(stream);
    let reader = FrameReader::new(read, server.config().stall_timeout);
    Ok((reader, writer))
}

async fn serve_peer(server: Arc<ServerShared>, conn_id: u64, mut greeted: Greeted) {
    let admitted = server.admit(conn_id, &greeted.theirs);
    let peer = greeted.theirs.node_id;
    let conn = Conn::new(server, ConnInfo { peer, conn_id }, greeted.class);
    tokio::select! {
        biased;
        () = admitted.cancelled() => tracing::debug!(%peer, "connection replaced"),
        () = conn.run(&mut greeted.reader, &mut greeted.writer) => {}
    }
}

/// Turns a connection away that is one too many: its hello is answered, so that the peer can log why.
pub(crate) async fn turn_away(server: Arc<ServerShared>, from: SocketAddr, stream: BoxStream) {
    let answer = async {
        let (mut reader, mut writer) = open(&server, from, stream).await?;
        let (correlation_id, _) = read_hello(&server, &mut reader, &mut writer).await?;
        let reason = format!(
            "too many connections: {} are open",
            server.config().max_connections
        );
        refuse(
            &server,
            &mut writer,
            status::NOT_READY,
            correlation_id,
            &reason,
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

/// Of a frame of another version, whose method may mean anything.
const NO_METHOD: u32 = 0;

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
    requests: Allowance,
    replies: Arc<Allowance>,
    in_flight: Arc<Semaphore>,
}

impl Conn {
    fn new(server: Arc<ServerShared>, info: ConnInfo, class: Class) -> Self {
        let (requests, replies) = server.budgets.of(info.peer, class);
        let calls = server.config().server_in_flight_calls;
        Conn {
            requests,
            replies: Arc::new(replies),
            in_flight: Arc::new(Semaphore::new(calls)),
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
        let mut heard = Instant::now();
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
            if heard.elapsed() >= HEARD_EVERY {
                heard = Instant::now();
                self.server.peers.called_by(self.info.peer);
            }
            match head {
                Head::Frame(header) => self.request(reader, header, place, &queue).await?,
                Head::OtherVersion {
                    correlation_id,
                    payload_bytes,
                    ..
                } => {
                    self.unread(NO_METHOD, correlation_id, place, &queue)
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
        let (method, id) = (header.meta, header.correlation_id);
        self.server.stats().server.method(method).requests.one();
        let size = u64::from(header.payload_size);
        if methods::row(method).is_none() {
            self.unread(method, id, place, queue)
                .error(status::NOT_FOUND, "the method is not known here");
            return reader.skip(size).await;
        }
        if let Err(reason) = Self::check_size("a payload", size, self.requests.largest_payload()) {
            self.unread(method, id, place, queue)
                .error(status::TOO_LARGE, &reason);
            return reader.skip(size).await;
        }
        let body = reader.need(header).await?;
        let plain = Self::check_size(
            "a payload, decompressed,",
            body.plain_bytes(),
            self.requests.largest_payload(),
        );
        let all = Self::check_size(
            "a payload, before and after decompression,",
            body.need(),
            self.requests.limit(),
        );
        if let Err(reason) = plain.and(all) {
            let unread = body.unread();
            self.unread(method, id, place, queue)
                .error(status::TOO_LARGE, &reason);
            return reader.skip(unread).await;
        }
        let memory = self.reserve(body.need()).await;
        let hold = self.hold(memory, place);
        let payload = reader.body(body).await?;
        self.server.stats().server.bytes_received.add(size);
        let replier = self.answering(method, id, hold, queue);
        self.handle(method, payload, replier);
        Ok(())
    }

    fn check_size(what: &str, bytes: u64, limit: usize) -> Result<(), String> {
        if bytes > limit as u64 {
            return Err(format!(
                "{what} of {bytes} bytes is over the limit of {limit}"
            ));
        }
        Ok(())
    }

    /// Waits for bytes of the budget. The socket isn't read meanwhile.
    async fn reserve(&self, bytes: u64) -> Option<budget::Bytes> {
        let begun = Instant::now();
        let taken = self.requests.take(bytes).await;
        self.server
            .stats()
            .server
            .memory_wait_us
            .add_duration(begun.elapsed());
        taken
    }

    fn hold(&self, memory: Option<budget::Bytes>, place: OwnedSemaphorePermit) -> Hold {
        Hold::new(Arc::clone(self.server.stats()), memory, place)
    }

    /// For a request whose body isn't read.
    fn unread(
        &self,
        method: u32,
        correlation_id: u32,
        place: OwnedSemaphorePermit,
        queue: &mpsc::UnboundedSender<Reply>,
    ) -> Replier {
        self.answering(method, correlation_id, self.hold(None, place), queue)
    }

    fn answering(
        &self,
        method: u32,
        correlation_id: u32,
        hold: Hold,
        queue: &mpsc::UnboundedSender<Reply>,
    ) -> Replier {
        let request = Answering {
            method,
            correlation_id,
            begun: Instant::now(),
        };
        Replier::new(request, hold, Arc::clone(&self.replies), queue.clone())
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
