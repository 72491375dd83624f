//! The transport between nodes: every counter, wait and bound of it, by peer and method.
//!
//! A row is shown for the methods that were used, so that a page doesn't grow by peers times methods times phases from the
//! start. All of it is read when the page is asked for; the transport itself only counts.

use imprint_raft::rpc::stats::{MethodStats, PeerStats, ServedStats, ServerStats};
use imprint_raft::rpc::{Class, PeerTable, Phase, RpcPeer};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};
use std::{
    fmt,
    sync::{Arc, Weak},
};

/// Reads the transport's counters.
pub struct RpcCollector {
    /// Weak: the registry must not keep connections open.
    peers: Weak<PeerTable>,
}

impl RpcCollector {
    pub fn new(peers: &Arc<PeerTable>) -> Self {
        Self {
            peers: Arc::downgrade(peers),
        }
    }
}

impl fmt::Debug for RpcCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcCollector").finish_non_exhaustive()
    }
}

type Labels = Vec<(&'static str, String)>;
type Rows<V> = Vec<(Labels, V)>;

/// Name, help, and how to read one counter of a `T`.
type Read<T> = (&'static str, &'static str, fn(&T) -> u64);

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    rows: Rows<u64>,
) -> fmt::Result {
    let kind = ConstCounter::new(0_u64).metric_type();
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    rows.into_iter().try_for_each(|(labels, value)| {
        ConstCounter::new(value).encode(metric.encode_family(&labels)?)
    })
}

fn times(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    rows: Rows<u64>,
) -> fmt::Result {
    let kind = ConstCounter::new(0_f64).metric_type();
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    rows.into_iter().try_for_each(|(labels, micros)| {
        ConstCounter::new(seconds(micros)).encode(metric.encode_family(&labels)?)
    })
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    rows: Rows<f64>,
) -> fmt::Result {
    let kind = ConstGauge::new(0_f64).metric_type();
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    rows.into_iter().try_for_each(|(labels, value)| {
        ConstGauge::new(value).encode(metric.encode_family(&labels)?)
    })
}

/// Counters of one peer.
const PEER: [Read<PeerStats>; 8] = [
    (
        "rpc_connects",
        "Connections made to this peer, hello included",
        |p| p.connects.get(),
    ),
    (
        "rpc_connect_failures",
        "Attempts to connect to this peer that failed",
        |p| p.connect_failures.get(),
    ),
    (
        "rpc_disconnects",
        "Connections to this peer that ended",
        |p| p.disconnects.get(),
    ),
    (
        "rpc_silent_connections",
        "Connections to this peer taken for dead because nothing came back, not even the answer to a ping",
        |p| p.silent.get(),
    ),
    (
        "rpc_overloaded",
        "Calls to this peer refused at once for want of room",
        |p| p.overloaded.get(),
    ),
    (
        "rpc_unknown_replies",
        "Replies of this peer that nobody waited for any more",
        |p| p.unknown_replies.get(),
    ),
    (
        "rpc_dropped_replies",
        "Replies of this peer skipped because callers held too many that they had not taken",
        |p| p.dropped_replies.get(),
    ),
    (
        "rpc_peer_deaths",
        "Times this peer was declared dead",
        |p| p.deaths.get(),
    ),
];

/// Counters of one method to one peer.
const CALLS: [Read<MethodStats>; 5] = [
    ("rpc_calls", "Calls begun", |m| m.calls.get()),
    ("rpc_call_errors", "Calls that failed in any way", |m| {
        m.errors.get()
    }),
    (
        "rpc_calls_cancelled",
        "Calls given up by their caller",
        |m| m.cancelled.get(),
    ),
    (
        "rpc_call_bytes_sent",
        "Payload bytes of requests as on the wire",
        |m| m.bytes_sent.get(),
    ),
    (
        "rpc_call_bytes_received",
        "Payload bytes of replies as on the wire",
        |m| m.bytes_received.get(),
    ),
];

/// Gauges of one connection to one peer.
type ReadLane = (&'static str, &'static str, fn(&RpcPeer, Class) -> usize);

const LANES: [ReadLane; 5] = [
    ("rpc_in_flight", "Calls sent and not answered", |p, c| {
        p.in_flight(c)
    }),
    (
        "rpc_pool_bytes",
        "Bytes of requests queued or being written",
        |p, c| p.reserved_bytes(c),
    ),
    (
        "rpc_waiting_calls",
        "Calls that wait for bytes of the pool",
        |p, c| p.waiting(c).0,
    ),
    (
        "rpc_waiting_bytes",
        "Bytes of the calls that wait for the pool",
        |p, c| p.waiting(c).1,
    ),
    (
        "rpc_untaken_reply_bytes",
        "Bytes of large replies that callers have not taken",
        |p, c| p.reply_bytes(c),
    ),
];

/// Counters of the receiving side.
const SERVER: [Read<ServerStats>; 11] = [
    (
        "rpc_accepted",
        "Connections accepted from other nodes",
        |s| s.accepted.get(),
    ),
    (
        "rpc_over_limit",
        "Connections turned away because there were too many",
        |s| s.over_limit.get(),
    ),
    (
        "rpc_pushed_out",
        "Connections without a hello that made room for later ones",
        |s| s.pushed_out.get(),
    ),
    (
        "rpc_strangers",
        "Connections whose hello was refused or never came",
        |s| s.strangers.get(),
    ),
    (
        "rpc_bad_frames",
        "Connections closed because of bytes that can't be trusted",
        |s| s.bad_frames.get(),
    ),
    (
        "rpc_stalled",
        "Connections closed because they made no progress",
        |s| s.stalled.get(),
    ),
    ("rpc_requests", "Requests of other nodes", |s| {
        s.requests.get()
    }),
    ("rpc_error_replies", "Those answered with an error", |s| {
        s.error_replies.get()
    }),
    (
        "rpc_refused_replies",
        "Replies that found no room and became a status 503",
        |s| s.refused_replies.get(),
    ),
    (
        "rpc_bytes_received",
        "Payload bytes of those requests as on the wire",
        |s| s.bytes_received.get(),
    ),
    (
        "rpc_bytes_sent",
        "Payload bytes of the replies as on the wire",
        |s| s.bytes_sent.get(),
    ),
];

/// Gauges of the receiving side.
const SERVER_NOW: [Read<ServerStats>; 4] = [
    ("rpc_connections", "Open connections of other nodes", |s| {
        s.connections.get()
    }),
    ("rpc_serving", "Requests read and not answered", |s| {
        s.in_flight.get()
    }),
    (
        "rpc_request_bytes",
        "Bytes of the budget for requests in use",
        |s| s.memory_bytes.get(),
    ),
    (
        "rpc_reply_bytes",
        "Bytes of replies that the peers have not taken",
        |s| s.reply_bytes.get(),
    ),
];

/// Counters of one method as it is served.
const SERVED: [Read<ServedStats>; 2] = [
    ("rpc_served", "Requests of this method", |m| {
        m.requests.get()
    }),
    ("rpc_served_errors", "Those answered with an error", |m| {
        m.errors.get()
    }),
];

fn peers(encoder: &mut DescriptorEncoder<'_>, of: &[(String, Arc<PeerStats>)]) -> fmt::Result {
    for (name, help, read) in PEER {
        let rows = of
            .iter()
            .map(|(peer, stats)| (vec![("peer", peer.clone())], read(stats)));
        counters(encoder, (name, help), rows.collect())?;
    }
    let pings = of
        .iter()
        .map(|(peer, stats)| (vec![("peer", peer.clone())], seconds(stats.ping_us.get())));
    let help = "The last ping's round trip";
    gauges(encoder, ("rpc_ping_seconds", help), pings.collect())
}

fn methods(of: &[(String, Arc<PeerStats>)]) -> impl Iterator<Item = (Labels, &MethodStats)> {
    of.iter().flat_map(|(peer, stats)| {
        let used = stats.methods().filter(|(_, method)| method.calls.get() > 0);
        used.map(|(name, method)| {
            let labels = vec![("peer", peer.clone()), ("method", name.to_string())];
            (labels, method)
        })
    })
}

fn calls(encoder: &mut DescriptorEncoder<'_>, of: &[(String, Arc<PeerStats>)]) -> fmt::Result {
    for (name, help, read) in CALLS {
        let rows = methods(of).map(|(labels, method)| (labels, read(method)));
        counters(encoder, (name, help), rows.collect())?;
    }
    let by_phase = |read: fn(&MethodStats, usize) -> u64| -> Rows<u64> {
        let rows = methods(of).flat_map(|(labels, method)| {
            Phase::ALL.map(|phase| {
                let mut labels = labels.clone();
                labels.push(("phase", phase.name().to_string()));
                (labels, read(method, phase as usize))
            })
        });
        rows.collect()
    };
    let help = "Calls that timed out, by the phase in which they did";
    let timeouts = by_phase(|method, phase| method.timeouts[phase].get());
    counters(encoder, ("rpc_call_timeouts", help), timeouts)?;
    let help = "Time that calls spent in each phase of their way, however they ended";
    let waits = by_phase(|method, phase| method.waits_us[phase].get());
    times(encoder, ("rpc_call_seconds", help), waits)
}

fn lanes(encoder: &mut DescriptorEncoder<'_>, table: &PeerTable) -> fmt::Result {
    let peers: Vec<_> = table
        .nodes()
        .into_iter()
        .filter_map(|node| Some((node, table.get(node)?)))
        .collect();
    for (name, help, read) in LANES {
        let rows = peers.iter().flat_map(|(node, peer)| {
            [Class::Urgent, Class::Bulk].map(|class| {
                let labels = vec![
                    ("peer", node.to_string()),
                    ("class", class.name().to_string()),
                ];
                (labels, read(peer, class) as f64)
            })
        });
        gauges(encoder, (name, help), rows.collect())?;
    }
    Ok(())
}

fn server(encoder: &mut DescriptorEncoder<'_>, stats: &ServerStats) -> fmt::Result {
    for (name, help, read) in SERVER {
        counters(encoder, (name, help), vec![(Vec::new(), read(stats))])?;
    }
    for (name, help, read) in SERVER_NOW {
        gauges(
            encoder,
            (name, help),
            vec![(Vec::new(), read(stats) as f64)],
        )?;
    }
    let help = "Time that sockets went unread for want of memory";
    let waited = vec![(Vec::new(), stats.memory_wait_us.get())];
    times(encoder, ("rpc_memory_wait_seconds", help), waited)?;
    let rows = |read: fn(&ServedStats) -> u64| -> Rows<u64> {
        let used = stats
            .methods()
            .filter(|(_, method)| method.requests.get() > 0);
        used.map(|(name, method)| (vec![("method", name.to_string())], read(method)))
            .collect()
    };
    for (name, help, read) in SERVED {
        counters(encoder, (name, help), rows(read))?;
    }
    let help = "Time from a request's last byte to its answer";
    let handling = rows(|method| method.handling_us.get());
    times(encoder, ("rpc_served_seconds", help), handling)
}

impl Collector for RpcCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(table) = self.peers.upgrade() else {
            return Ok(());
        };
        let stats = table.stats();
        let mut of: Vec<(String, Arc<PeerStats>)> = stats
            .peers()
            .into_iter()
            .map(|(node, stats)| (node.to_string(), stats))
            .collect();
        // Those that are called before their node is known, in formation.
        of.push(("addresses".to_string(), stats.addresses()));
        peers(&mut encoder, &of)?;
        calls(&mut encoder, &of)?;
        lanes(&mut encoder, &table)?;
        server(&mut encoder, &stats.server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use imprint_proto::ids::NodeId;
    use imprint_raft::rpc::{
        CallOptions, ConnInfo, Dispatcher, Hello, Refusal, Replier, RpcConfig, RpcServer,
        TableParts, methods, status,
    };
    use imprint_raft::seams::{Net, TcpNet};
    use std::time::Duration;

    /// Answers what is forwarded, refuses digests, and keeps all else.
    struct Answers(Hello, parking_lot::Mutex<Vec<Replier>>);

    impl Dispatcher for Answers {
        fn hello(&self, _theirs: &Hello) -> Result<Hello, Refusal> {
            Ok(self.0.clone())
        }

        fn dispatch(&self, _conn: ConnInfo, method: u32, payload: Bytes, reply: Replier) {
            match method {
                methods::FORWARD => reply.ok(vec![payload]),
                methods::DIGEST => reply.error(status::NOT_READY, "not now"),
                _ => self.1.lock().push(reply),
            }
        }
    }

    async fn node(id: u64) -> (Arc<PeerTable>, RpcServer) {
        let listener = TcpNet.listen("127.0.0.1:0").await.expect("listening");
        let own = Hello {
            cluster_id: None,
            node_id: NodeId(id),
            storage_id: [u8::try_from(id).expect("small"); 16],
            incarnation: id,
            earliest_version: 1,
            latest_version: 1,
            peer_address: listener.local_addr().expect("an address").to_string(),
            client_address: String::new(),
            seeds_hash: 0,
        };
        let hello = own.clone();
        let table = PeerTable::new(TableParts {
            net: Arc::new(TcpNet),
            node_id: NodeId(id),
            hello: Arc::new(move || hello.clone()),
            check: Arc::new(|_| Ok(())),
            config: RpcConfig::default(),
        });
        let answers = Answers(own, parking_lot::Mutex::default());
        let server = RpcServer::serve(listener, Arc::new(answers), Arc::clone(&table));
        (table, server)
    }

    fn page_of(table: &Arc<PeerTable>) -> String {
        let metrics = crate::metrics::Metrics::new("1.2.3");
        metrics.add_collector(Box::new(RpcCollector::new(table)));
        metrics.encode().expect("page")
    }

    /// The value of a line of the page.
    fn value(page: &str, line: &str) -> f64 {
        let found = page
            .lines()
            .find_map(|candidate| candidate.strip_prefix(line)?.strip_prefix(' '));
        let found = found.unwrap_or_else(|| panic!("{line} is not in\n{page}"));
        found.parse().expect("a number")
    }

    #[tokio::test]
    async fn a_scraper_sees_every_counter_and_wait_by_peer_and_method() {
        let ((caller, _one), (callee, _two)) = (node(1).await, node(2).await);
        caller.add(NodeId(2), callee.own_hello().peer_address);
        let peer = caller.get(NodeId(2)).expect("just added");
        let options = |millis| CallOptions {
            timeout: Duration::from_millis(millis),
            class: Class::Bulk,
            compress: false,
        };
        let payload = Bytes::from_static(b"12345");
        let echo = peer.call(methods::FORWARD, payload.clone().into(), options(20_000));
        echo.await.expect("an echo");
        let refused = peer.call(methods::DIGEST, payload.clone().into(), options(20_000));
        refused.await.expect_err("refused");
        let kept = peer.call(methods::CONTROLLER, payload.into(), options(50));
        kept.await.expect_err("timed out");

        let page = page_of(&caller);
        let exact = [
            (
                "imprint_rpc_calls_total{peer=\"2\",method=\"forward\"}",
                1.0,
            ),
            (
                "imprint_rpc_call_bytes_sent_total{peer=\"2\",method=\"forward\"}",
                5.0,
            ),
            (
                "imprint_rpc_call_bytes_received_total{peer=\"2\",method=\"forward\"}",
                5.0,
            ),
            (
                "imprint_rpc_call_errors_total{peer=\"2\",method=\"forward\"}",
                0.0,
            ),
            (
                "imprint_rpc_call_errors_total{peer=\"2\",method=\"digest\"}",
                1.0,
            ),
            (
                "imprint_rpc_call_timeouts_total{peer=\"2\",method=\"controller\",phase=\"reply\"}",
                1.0,
            ),
            (
                "imprint_rpc_call_timeouts_total{peer=\"2\",method=\"controller\",phase=\"memory\"}",
                0.0,
            ),
            ("imprint_rpc_connect_failures_total{peer=\"2\"}", 0.0),
            ("imprint_rpc_in_flight{peer=\"2\",class=\"bulk\"}", 0.0),
            ("imprint_rpc_pool_bytes{peer=\"2\",class=\"bulk\"}", 0.0),
        ];
        for (line, expected) in exact {
            assert_eq!(value(&page, line), expected, "{line}");
        }
        let waited = value(
            &page,
            "imprint_rpc_call_seconds_total{peer=\"2\",method=\"controller\",phase=\"reply\"}",
        );
        assert!((0.04..20.0).contains(&waited), "{waited} s");
        assert!(value(&page, "imprint_rpc_connects_total{peer=\"2\"}") >= 1.0);
        assert!(
            !page.contains("method=\"snapshot\""),
            "rows of unused methods"
        );

        let page = page_of(&callee);
        for (line, expected) in [
            ("imprint_rpc_served_total{method=\"forward\"}", 1.0),
            ("imprint_rpc_served_errors_total{method=\"digest\"}", 1.0),
            ("imprint_rpc_serving", 1.0),
            ("imprint_rpc_request_bytes", 5.0),
            ("imprint_rpc_refused_replies_total", 0.0),
        ] {
            assert_eq!(value(&page, line), expected, "{line}");
        }
        assert!(
            value(
                &page,
                "imprint_rpc_served_seconds_total{method=\"forward\"}"
            ) < 1.0
        );
        assert!(value(&page, "imprint_rpc_connections") >= 1.0);
    }

    #[tokio::test]
    async fn every_metric_of_the_lists_is_on_the_page_with_its_help() {
        let (table, _server) = node(1).await;
        table.add(NodeId(2), "127.0.0.1:1".to_string());
        let page = page_of(&table);
        let names = PEER
            .iter()
            .map(|(name, help, _)| (name, help))
            .chain(CALLS.iter().map(|(name, help, _)| (name, help)))
            .chain(LANES.iter().map(|(name, help, _)| (name, help)))
            .chain(SERVER.iter().map(|(name, help, _)| (name, help)))
            .chain(SERVER_NOW.iter().map(|(name, help, _)| (name, help)))
            .chain(SERVED.iter().map(|(name, help, _)| (name, help)));
        for (name, help) in names {
            let shown = ["", "_total"]
                .map(|kind| format!("# HELP imprint_{name}{kind} {help}\n"))
                .iter()
                .any(|line| page.contains(line));
            assert!(shown, "{name} is not in\n{page}");
        }
    }
}
