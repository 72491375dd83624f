//! Gauges that mirror the node's state, read when the page is asked for.

use super::process;
use crate::core::{CONTROLLER, Core};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::gauge::ConstGauge,
};
use std::{fmt, sync::Weak};

/// More counts from below the node, by metric name, help and value; they only rise.
pub type Counts = Box<dyn Fn() -> Vec<(&'static str, &'static str, u64)> + Send + Sync>;

/// Reads a node's state.
pub struct NodeCollector {
    /// Weak: the registry must not keep the node alive.
    core: Weak<Core>,
    counts: Counts,
}

impl NodeCollector {
    pub fn new(core: Weak<Core>, counts: Counts) -> Self {
        Self { core, counts }
    }
}

impl fmt::Debug for NodeCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCollector").finish_non_exhaustive()
    }
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// One partition's values.
struct Row {
    labels: Vec<(&'static str, String)>,
    start: u64,
    commit: u64,
    end: u64,
    bytes: u64,
    segments: u32,
    leads: bool,
}

impl NodeCollector {
    fn gauge(
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: u64,
    ) -> fmt::Result {
        let gauge = ConstGauge::new(number(value));
        let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
        gauge.encode(metric)
    }

    fn rows(core: &Core) -> Vec<Row> {
        let state = core.controller();
        let mut rows = Vec::new();
        for topic in state.topics.values() {
            for (index, partition) in topic.partitions.iter().enumerate() {
                let group = imprint_proto::ids::GroupId(partition.partition_id);
                let Some(replica) = core.replica_for_metrics(group) else {
                    continue;
                };
                let log = replica.offsets();
                let (bytes, segments) = replica.size();
                rows.push(Row {
                    labels: vec![
                        ("topic", topic.name.clone()),
                        ("partition", index.to_string()),
                    ],
                    start: log.start,
                    commit: log.commit,
                    end: log.end,
                    bytes,
                    segments,
                    leads: replica.is_leader(),
                });
            }
        }
        rows
    }

    fn partitions(&self, encoder: &mut DescriptorEncoder<'_>, core: &Core) -> fmt::Result {
        let rows = Self::rows(core);
        type Read = fn(&Row) -> u64;
        let gauges: [(&str, &str, Read); 6] = [
            (
                "partition_start_offset",
                "First kept offset of this node's replica",
                |r| r.start,
            ),
            (
                "partition_commit_offset",
                "First offset not committed, as this node's replica knows",
                |r| r.commit,
            ),
            (
                "partition_end_offset",
                "First unwritten offset of this node's replica",
                |r| r.end,
            ),
            ("partition_bytes", "Bytes of this node's replica", |r| {
                r.bytes
            }),
            (
                "partition_segments",
                "Segments of this node's replica",
                |r| u64::from(r.segments),
            ),
            (
                "partition_leader",
                "1 where this node leads the partition",
                |r| u64::from(r.leads),
            ),
        ];
        for (name, help, read) in gauges {
            let kind = ConstGauge::new(0i64).metric_type();
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for row in &rows {
                let gauge = ConstGauge::new(number(read(row)));
                gauge.encode(metric.encode_family(&row.labels)?)?;
            }
        }
        Ok(())
    }
}

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(bytes) = process::resident_bytes() {
            let help = "Resident memory of the process, bytes";
            Self::gauge(&mut encoder, "process_resident_bytes", help, bytes)?;
        }
        if let Some(open) = process::open_files() {
            let help = "Open file descriptors of the process";
            Self::gauge(&mut encoder, "process_open_files", help, open)?;
        }
        if let Some(most) = process::max_open_files() {
            let help = "File descriptors that the process may open";
            Self::gauge(&mut encoder, "process_max_open_files", help, most)?;
        }
        let Some(core) = self.core.upgrade() else {
            return Ok(());
        };
        let state = core.controller();
        let others = state.nodes.keys().filter(|node| **node != core.node_id());
        let alive = others.filter(|node| core.is_alive(**node)).count() as u64;
        let leads = core
            .replica_for_metrics(CONTROLLER)
            .is_some_and(|replica| replica.is_leader());
        let (disk, hard) = (core.parts.room.own(), core.parts.room.hard_bytes());
        let (damaged, down) = core.damage_for_metrics();
        let gauges = [
            (
                "disk_free_bytes",
                "Free bytes on the disk of the data directory",
                disk.free_bytes,
            ),
            (
                "disk_total_bytes",
                "Bytes of that disk in all",
                disk.total_bytes,
            ),
            (
                "disk_state",
                "0 room enough, 1 below the soft floor, 2 below the hard floor or a write found no space",
                disk.level as u64,
            ),
            (
                "disk_soft_floor_bytes",
                "Free bytes below which this node gives leadership away and refuses writes",
                disk.soft_bytes,
            ),
            (
                "disk_hard_floor_bytes",
                "Free bytes below which this node appends no data",
                hard,
            ),
            (
                "disk_waiting",
                "Logs and files of this node that wait for room on the disk",
                core.parts.room.waiting(),
            ),
            (
                "disk_slow",
                "1 while a write or sync has been under way for too long",
                u64::from(disk.slow),
            ),
            (
                "damaged_ranges",
                "Ranges of offsets that are damaged here and wait for their repair",
                damaged,
            ),
            (
                "replicas_down",
                "Replicas that are closed because of damage until they were repaired",
                down,
            ),
            ("peers_alive", "Other nodes that give a sign of life", alive),
            (
                "controller_leader",
                "1 on the node that leads the controller",
                u64::from(leads),
            ),
            (
                "ready",
                "1 when a write through this node would work",
                u64::from(core.readiness().is_ok()),
            ),
            (
                "append_bytes_in_flight",
                "Bytes of batches being appended through this node",
                core.append_bytes_in_flight(),
            ),
        ];
        for (name, help, value) in gauges {
            Self::gauge(&mut encoder, name, help, value)?;
        }
        for (name, help, value) in (self.counts)() {
            let counter = prometheus_client::metrics::counter::ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        self.partitions(&mut encoder, &core)
    }
}
