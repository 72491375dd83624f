//! AppendEntries as they come in: one ordered, pipelined queue per connection and group.
//!
//! The transport hands requests over in arrival order and must not be blocked; openraft takes a
//! stream of requests and answers in order. A lane joins the two: a queue, a task that runs the
//! stream, and the repliers waiting first in, first out.
//!
//! Invariants:
//! * A lane's requests reach openraft in arrival order, and each is answered exactly once.
//! * When openraft ends a stream early (a conflict, a higher vote), the requests that were already
//!   behind it are refused: their predecessor was. Later ones go through a new stream.
//! * Memory is bounded by the transport's in-flight caps, since a replier holds its permit.
//! * A lane that has been idle for [`LANE_IDLE`] ends, so dead connections leave nothing behind.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use openraft::raft::AppendEntriesRequest;
use tokio::sync::mpsc;

use super::codec::{StreamResult, encode_append_reply};
use super::group::Group;
use super::types::TypeConfig;
use crate::rpc::{Replier, status};

/// How long a lane without requests lives on.
const LANE_IDLE: Duration = Duration::from_secs(10);

type Request = AppendEntriesRequest<TypeConfig>;

/// The sending end of a lane.
#[derive(Clone)]
pub(crate) struct Lane {
    queue: mpsc::UnboundedSender<(Request, Replier)>,
}

impl Lane {
    /// Starts the task of a lane into `group`.
    pub(crate) fn open(group: Arc<Group>) -> Lane {
        let (queue, requests) = mpsc::unbounded_channel();
        tokio::spawn(run(group, requests));
        Lane { queue }
    }

    /// Queues a request; gives it back when the lane has ended meanwhile.
    pub(crate) fn push(
        &self,
        request: Request,
        reply: Replier,
    ) -> Result<(), Box<(Request, Replier)>> {
        self.queue.send((request, reply)).map_err(|e| Box::new(e.0))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }
}

async fn run(group: Arc<Group>, mut requests: mpsc::UnboundedReceiver<(Request, Replier)>) {
    while let Ok(Some(first)) = tokio::time::timeout(LANE_IDLE, requests.recv()).await {
        run_stream(&group, first, &mut requests).await;
    }
    requests.close();
    while let Some((_, reply)) = requests.recv().await {
        reply.error(status::NOT_READY, "the lane ended; send again");
    }
}

/// Feeds one openraft stream until it ends or the lane falls idle.
async fn run_stream(
    group: &Arc<Group>,
    first: (Request, Replier),
    requests: &mut mpsc::UnboundedReceiver<(Request, Replier)>,
) {
    let mut waiting = VecDeque::from([first.1]);
    let (feed, feed_rx) = mpsc::unbounded_channel();
    // A closed feed shows in the results below.
    let _ = feed.send(first.0);
    let input = futures_util::stream::unfold(feed_rx, |mut rx| async move {
        rx.recv().await.map(|request| (request, rx))
    });
    let results = group.raft().stream_append(input);
    futures_util::pin_mut!(results);
    loop {
        let idle = waiting.is_empty();
        tokio::select! {
            biased;
            result = results.next(), if !idle => {
                let reply = waiting.pop_front();
                if !answer(result, reply) {
                    break;
                }
            }
            request = tokio::time::timeout(LANE_IDLE, requests.recv()) => match request {
                Ok(Some((request, reply))) => {
                    waiting.push_back(reply);
                    let _ = feed.send(request);
                }
                Ok(None) => break,
                Err(_) if idle => break,
                Err(_) => {}
            },
        }
    }
    drain_after_end(waiting);
}

/// Answers one request; false when the stream is over.
fn answer(
    result: Option<Result<StreamResult, openraft::errors::Fatal<TypeConfig>>>,
    reply: Option<Replier>,
) -> bool {
    let Some(reply) = reply else { return false };
    match result {
        Some(Ok(result)) => {
            reply.ok(vec![encode_append_reply(&result)]);
            result.is_ok()
        }
        Some(Err(fatal)) => {
            reply.error(
                status::HANDLER_FAILED,
                &format!("the replica stopped: {fatal}"),
            );
            false
        }
        None => {
            reply.error(status::HANDLER_FAILED, "the replica stopped");
            false
        }
    }
}

/// Requests behind the one that ended the stream: their predecessor was refused, so they are too.
/// The leader, told of the conflict, starts over from there.
fn drain_after_end(mut waiting: VecDeque<Replier>) {
    for reply in waiting.drain(..) {
        reply.error(
            status::NOT_READY,
            "an earlier append of this stream was refused",
        );
    }
}
