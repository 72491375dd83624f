//! The driver of a lane: dials when there is something to send, says hello, then writes and reads until the end.
//!
//! One task per lane, and the only one that touches its socket. Names are resolved by each dial, so a peer that comes
//! back under another address is found. TLS has its place between the dial and the hello: [`crate::seams::Wrap::outgoing`].
//!
//! How is a dead connection found out? If nothing can be written, by the writer, after the stall time-out. If it swallows
//! everything (the other end is gone and nobody says so), by a ping on this very connection: it is sent when calls wait
//! and nothing comes, and when not a byte comes back for `silence_timeout` the connection is given up, whatever the peer's
//! other one does.

use std::sync::Arc;
use std::time::Duration;

use imprint_proto::envelope;
use imprint_proto::frame::FRAME_VERSION;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::call::{Failure, Outcome, Received};
use super::lane::{Lane, Sending};
use super::{CallOptions, Class, PeerShared};
use crate::rpc::config::{MAX_HELLO_BYTES, REPLY_CHARGED_FROM};
use crate::rpc::error::Phase;
use crate::rpc::hello::{self, ErrorReply, HELLO_CORRELATION, Hello, HelloRequest};
use crate::rpc::liveness::ping_payload;
use crate::rpc::notices::Notices;
use crate::rpc::wire::{Encoded, FrameReader, Head, WireError};
use crate::rpc::write::WriteBatch;
use crate::rpc::{methods, status};
use crate::seams::BoxStream;

/// A ping on a connection that seems dead.
const LONGEST_PING: Duration = Duration::from_secs(3600);

type Reader = FrameReader<ReadHalf<BoxStream>>;

/// Why a connection ended.
enum End {
    /// Nobody used it.
    Idle,
    /// Asked to: the peer was declared dead, moved, or was removed.
    HungUp,
    Broken(String),
    /// Calls wait on it, a ping too, and nothing comes.
    Silent(Duration),
}

/// Runs a lane until it's closed.
pub(crate) async fn drive(lane: Arc<Lane>, peer: Arc<PeerShared>) {
    let mut last_attempt: Option<Instant> = None;
    let mut log = ConnectionLog::new();
    while wait_for_work(&lane).await {
        if let Some(last) = last_attempt {
            // A peer that accepts and hangs up again must not be dialled in a tight loop.
            sleep_until(last + lane.config.backoff_min).await;
        }
        let begun = Instant::now();
        last_attempt = Some(begun);
        if !lane.connecting() {
            return;
        }
        // Armed before the attempt, so that no kick is lost in between.
        let kicked = lane.kick.notified();
        tokio::pin!(kicked);
        kicked.as_mut().enable();
        let attempt = tokio::select! {
            biased;
            () = kicked.as_mut() => None,
            attempt = connect(&lane, &peer) => Some(attempt),
        };
        match attempt {
            None => lane.connect_again(),
            Some(Err(why)) => {
                log.failed(&lane, &why);
                lane.connect_failed(begun, why);
            }
            Some(Ok((reader, writer))) => {
                log.connected(&lane);
                if !lane.connected() {
                    return;
                }
                let end = tokio::select! {
                    biased;
                    () = kicked => End::HungUp,
                    end = serve(&lane, &peer, reader, writer) => end,
                };
                ended(&lane, &mut log, end);
            }
        }
    }
}

/// False when the lane is closed.
async fn wait_for_work(lane: &Lane) -> bool {
    while !lane.is_closed() {
        if lane.wants_connection() {
            return true;
        }
        lane.work.notified().await;
    }
    false
}

fn ended(lane: &Lane, log: &mut ConnectionLog, end: End) {
    let reason = match end {
        End::Idle => return lane.connection_ended("nobody used it"),
        End::HungUp => "it was hung up".to_owned(),
        End::Broken(reason) => reason,
        End::Silent(silence) => {
            lane.stats().silent.one();
            format!("calls and a ping wait on it, and nothing has come for {silence:?}")
        }
    };
    log.ended(lane, &reason);
    lane.connection_ended(&reason);
    lane.news.notify_one();
}

async fn connect(
    lane: &Lane,
    peer: &PeerShared,
) -> Result<(Reader, WriteHalf<BoxStream>), Failure> {
    let limit = lane.config.connect_timeout;
    match timeout(limit, dial(lane, peer)).await {
        Ok(connected) => connected,
        Err(_) => Err(Failure::Unreachable(
            format!("no connection within {limit:?}").into(),
        )),
    }
}

async fn dial(lane: &Lane, peer: &PeerShared) -> Result<(Reader, WriteHalf<BoxStream>), Failure> {
    let address = peer.address();
    let unreachable =
        |e: &dyn std::fmt::Display| Failure::Unreachable(format!("{address}: {e}").into());
    let stream = peer
        .context
        .net
        .dial(&address)
        .await
        .map_err(|e| unreachable(&e))?;
    let stream = match peer.context.net.wrap() {
        Some(wrap) => wrap
            .outgoing(&address, stream)
            .await
            .map_err(|e| unreachable(&e))?,
        None => stream,
    };
    let (read, mut writer) = tokio::io::split(stream);
    let (stall, received) = (lane.config.stall_timeout, Arc::clone(&lane.received));
    let mut reader = FrameReader::counted(read, stall, received);
    let own = (peer.context.hello)();
    send_hello(lane, &own, &mut writer)
        .await
        .map_err(|e| unreachable(&e))?;
    let theirs = receive_hello(&mut reader, &unreachable).await?;
    accept(peer, &own, &theirs).map_err(|refusal| Failure::Refused(refusal.0.into()))?;
    peer.met(theirs);
    Ok((reader, writer))
}

fn accept(peer: &PeerShared, own: &Hello, theirs: &Hello) -> Result<(), hello::Refusal> {
    hello::check_dialled(peer.node, theirs)?;
    hello::check(own, theirs)?;
    (peer.context.check)(theirs)
}

async fn send_hello(
    lane: &Lane,
    own: &Hello,
    writer: &mut WriteHalf<BoxStream>,
) -> std::io::Result<()> {
    let request = HelloRequest {
        hello: own.clone(),
        urgent: lane.class == Class::Urgent,
    };
    let encoded = Encoded::plain(vec![envelope::encode(&request)]);
    let mut batch = WriteBatch::new();
    batch.push(
        &encoded.header(methods::HELLO, HELLO_CORRELATION),
        &encoded.parts,
        (),
    );
    batch
        .write_to(writer, lane.config.stall_timeout, |()| ())
        .await
}

async fn receive_hello(
    reader: &mut Reader,
    unreachable: &impl Fn(&dyn std::fmt::Display) -> Failure,
) -> Result<Hello, Failure> {
    let header = match reader.head().await.map_err(|e| unreachable(&e))? {
        Some(Head::Frame(header)) => header,
        Some(Head::OtherVersion { version, .. }) => return Err(other_version(version)),
        None => return Err(unreachable(&"it hung up before its hello")),
    };
    let body = reader.need(header).await.map_err(|e| unreachable(&e))?;
    if body.need() > MAX_HELLO_BYTES as u64 {
        return Err(unreachable(&"its hello is too large"));
    }
    let payload = reader.body(body).await.map_err(|e| unreachable(&e))?;
    if header.meta != status::OK {
        let reply: ErrorReply = envelope::decode(payload).map_err(|e| unreachable(&e))?;
        return Err(Failure::Refused(reply.reason.into()));
    }
    envelope::decode(payload).map_err(|e| unreachable(&e))
}

fn other_version(version: u8) -> Failure {
    let reason =
        format!("it speaks version {version} of the internal protocol, this node {FRAME_VERSION}");
    Failure::Refused(reason.into())
}

async fn serve(
    lane: &Arc<Lane>,
    peer: &PeerShared,
    mut reader: Reader,
    mut writer: WriteHalf<BoxStream>,
) -> End {
    tokio::select! {
        biased;
        end = read_replies(lane, &mut reader) => end,
        end = write_calls(lane, &mut writer) => end,
        end = watch_silence(lane, peer) => end,
    }
}

/// Ends when the connection is silent though asked.
async fn watch_silence(lane: &Arc<Lane>, peer: &PeerShared) -> End {
    let limit = lane.config.silence_timeout;
    loop {
        let before = lane.received();
        sleep(limit / 4).await;
        if lane.received() == before && lane.in_flight() > 0 && is_silent(lane, peer).await {
            return End::Silent(limit);
        }
    }
}

/// Pings on this connection; true when not a byte comes back, for too long after the ping left.
async fn is_silent(lane: &Arc<Lane>, peer: &PeerShared) -> bool {
    let limit = lane.config.silence_timeout;
    let Some(node) = peer.found() else {
        return false;
    };
    let options = CallOptions {
        // It ends with the connection, and isn't lost if it takes long to get it written.
        timeout: LONGEST_PING,
        class: lane.class,
        compress: false,
    };
    let parts = vec![ping_payload(peer.context.pings.as_ref(), node)];
    // If too much waits to be written already, the writer sees to it.
    let Ok(ping) = lane.begin(methods::PING, parts, &options) else {
        return false;
    };
    let call = Arc::clone(ping.shared());
    let answer = ping.wait();
    tokio::pin!(answer);
    let (mut received, mut since) = (lane.received(), Instant::now());
    loop {
        tokio::select! {
            biased;
            _ = answer.as_mut() => return false,
            () = sleep(limit / 4) => {}
        }
        if lane.received() != received {
            (received, since) = (lane.received(), Instant::now());
        } else if since.elapsed() >= limit && call.sent_for().is_some_and(|sent| sent >= limit) {
            return true;
        }
    }
}

async fn write_calls(lane: &Arc<Lane>, writer: &mut WriteHalf<BoxStream>) -> End {
    loop {
        let batch = lane.take_batch();
        if batch.frames() == 0 {
            let waited = timeout(lane.config.idle_timeout, lane.work.notified()).await;
            if waited.is_err() && lane.is_idle() {
                return End::Idle;
            }
            continue;
        }
        let mut written = Vec::with_capacity(batch.frames());
        let note = |sending: Sending| written.push(sending.written());
        if let Err(e) = batch
            .write_to(writer, lane.config.stall_timeout, note)
            .await
        {
            return End::Broken(e.to_string());
        }
        for call in written {
            call.end(Phase::Flush);
        }
    }
}

async fn read_replies(lane: &Lane, reader: &mut Reader) -> End {
    loop {
        match read_reply(lane, reader).await {
            Ok(true) => {}
            Ok(false) => return End::Broken("the peer hung up".to_owned()),
            Err(e) => {
                if e.is_bad_bytes() {
                    tracing::warn!(peer = lane.label(), error = %e, "bad bytes in a reply");
                }
                return End::Broken(e.to_string());
            }
        }
    }
}

/// False at the end of the stream.
async fn read_reply(lane: &Lane, reader: &mut Reader) -> Result<bool, WireError> {
    let header = match reader.head().await? {
        None => return Ok(false),
        Some(Head::OtherVersion {
            version,
            correlation_id,
            payload_bytes,
        }) => {
            reader.skip(payload_bytes).await?;
            lane.complete(
                correlation_id,
                payload_bytes,
                Err(Failure::Version(version)),
            );
            return Ok(true);
        }
        Some(Head::Frame(header)) => header,
    };
    let wire_bytes = u64::from(header.payload_size);
    if !lane.is_awaited(header.correlation_id) {
        reader.skip(wire_bytes).await?;
        lane.stats().unknown_replies.one();
        return Ok(true);
    }
    let limit = lane.config.max_frame_bytes;
    // Before the first byte of it is taken into memory.
    header.check_size(u32::try_from(limit).unwrap_or(u32::MAX))?;
    let body = reader.need(header).await?;
    if body.plain_bytes() > limit as u64 {
        return Err(WireError::TooLarge {
            bytes: body.plain_bytes(),
            limit,
        });
    }
    let room = if body.need() > REPLY_CHARGED_FROM as u64 {
        match lane.reply_room(body.need()) {
            Ok(room) => Some(room),
            Err(no_room) => {
                reader.skip(body.unread()).await?;
                lane.complete(header.correlation_id, wire_bytes, Err(no_room));
                return Ok(true);
            }
        }
    } else {
        None
    };
    let payload = reader.body(body).await?;
    let received = Received {
        payload,
        _room: room,
    };
    lane.complete(
        header.correlation_id,
        wire_bytes,
        outcome(header.meta, received)?,
    );
    Ok(true)
}

fn outcome(meta: u32, received: Received) -> Result<Outcome, WireError> {
    if meta == status::OK {
        return Ok(Ok(received));
    }
    let reply: ErrorReply =
        envelope::decode(received.payload).map_err(|e| WireError::Envelope(e.to_string()))?;
    Ok(Err(Failure::Remote {
        status: meta,
        reason: reply.reason,
    }))
}

/// Lines about a connection that comes and goes, per reason and minute.
const FLAPPING_LINES: u32 = 5;

/// Says each reason when it is new, and then once a minute: a peer that refuses or isn't there is tried for ever.
struct ConnectionLog {
    failures: Notices,
    changes: Notices,
}

impl ConnectionLog {
    fn new() -> Self {
        ConnectionLog {
            failures: Notices::new(1),
            changes: Notices::new(FLAPPING_LINES),
        }
    }

    fn failed(&mut self, lane: &Lane, why: &Failure) {
        let (reason, refused) = match why {
            Failure::Refused(reason) => (reason, true),
            Failure::Unreachable(reason) => (reason, false),
            _ => return,
        };
        let Some(unwritten) = self.failures.due(reason) else {
            return;
        };
        let (peer, class) = (lane.label(), lane.class.name());
        if refused {
            tracing::warn!(peer, class, reason = %reason, unwritten, "refused");
        } else {
            tracing::info!(peer, class, reason = %reason, unwritten, "no connection");
        }
    }

    fn connected(&mut self, lane: &Lane) {
        self.failures.forget();
        if let Some(unwritten) = self.changes.due("connected") {
            let (peer, class) = (lane.label(), lane.class.name());
            tracing::info!(peer, class, unwritten, "connected");
        }
    }

    fn ended(&mut self, lane: &Lane, reason: &str) {
        if let Some(unwritten) = self.changes.due(reason) {
            let (peer, class) = (lane.label(), lane.class.name());
            tracing::info!(peer, class, reason, unwritten, "connection ended");
        }
    }
}
