//! `imprint cluster`.

use super::args::{ClusterArgs, ClusterCommand};
use super::context::Context;
use super::exit::CliError;
use super::output::{self, Table};
use imprint_client::v1;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Time that `wait-ready` waits unless told otherwise.
const DEFAULT_WAIT: Duration = Duration::from_secs(60);
/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs a cluster command.
pub async fn run(context: &Context, args: ClusterArgs) -> Result<(), CliError> {
    match args.command {
        ClusterCommand::Status => {
            let status = context.admin().status().await?;
            show(context, &status)
        }
        ClusterCommand::WaitReady => wait_ready(context).await,
    }
}

async fn wait_ready(context: &Context) -> Result<(), CliError> {
    let wait = context.timeout.unwrap_or(DEFAULT_WAIT);
    let deadline = Instant::now() + wait;
    let mut seen = "no node answered".to_owned();
    loop {
        match timeout_at(deadline, context.admin().status()).await {
            Ok(Ok(status)) if status.ready => return show(context, &status),
            Ok(Ok(status)) => {
                seen = format!("node {}: {}", status.answered_by, status.not_ready_reason);
            }
            Ok(Err(error)) if error.is_transient() => seen = error.to_string(),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => {}
        }
        if Instant::now() + LOOK_EVERY >= deadline {
            return Err(CliError::NotInTime(format!(
                "not ready within {wait:?}: {seen}"
            )));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn show(context: &Context, status: &v1::GetStatusResponse) -> Result<(), CliError> {
    output::document(context.format, &status_value(status), || described(status))
}

fn described(status: &v1::GetStatusResponse) -> String {
    let or_none = |text: &str| {
        if text.is_empty() {
            "not formed yet".to_owned()
        } else {
            text.to_owned()
        }
    };
    let leader = match status.controller_leader {
        0 => "none known".to_owned(),
        node => format!("node {node}"),
    };
    let ready = match status.ready {
        true => "yes".to_owned(),
        false => format!("no: {}", status.not_ready_reason),
    };
    let mut text = format!(
        "cluster              {}\nanswered by          node {}\nready                {ready}\n\
         controller           {leader}\ntopics               {}\npartitions           {}\n\
         without leader here  {}\n\n",
        or_none(&status.cluster_id),
        status.answered_by,
        status.topics,
        status.partitions,
        status.partitions_without_leader,
    );
    let mut table = Table::new(&[
        "NODE",
        "ALIVE",
        "VERSION",
        "DISK",
        "CLIENT ADDRESS",
        "PEER ADDRESS",
    ]);
    for node in &status.nodes {
        table.row([
            node.node_id.to_string(),
            if node.alive { "yes" } else { "no" }.to_owned(),
            node.version.clone(),
            disk_text(node.disk.as_ref()),
            node.client_address.clone(),
            node.peer_address.clone(),
        ]);
    }
    text.push_str(&table.render());
    if !status.problems.is_empty() {
        text.push_str("\nproblems\n");
    }
    for problem in &status.problems {
        text.push_str(&format!("  {problem}\n"));
    }
    text
}

/// A node's disk in a few words.
fn disk_text(disk: Option<&v1::DiskStatus>) -> String {
    match disk {
        Some(disk) if disk.total_bytes > 0 => {
            let slow = if disk.slow { ", slow" } else { "" };
            format!("{}{slow}, {} MiB free", disk.state, disk.free_bytes >> 20)
        }
        _ => "unknown".to_owned(),
    }
}

fn status_value(status: &v1::GetStatusResponse) -> Value {
    let nodes: Value = status
        .nodes
        .iter()
        .map(|node| {
            json!({
                "node_id": node.node_id,
                "alive": node.alive,
                "version": node.version,
                "disk": node.disk.as_ref().map(|disk| json!({
                    "state": disk.state,
                    "free_bytes": disk.free_bytes,
                    "total_bytes": disk.total_bytes,
                    "soft_floor_bytes": disk.soft_floor_bytes,
                    "slow": disk.slow,
                })),
                "client_address": node.client_address,
                "peer_address": node.peer_address,
            })
        })
        .collect();
    json!({
        "cluster_id": (!status.cluster_id.is_empty()).then_some(&status.cluster_id),
        "answered_by": status.answered_by,
        "ready": status.ready,
        "not_ready_reason": (!status.ready).then_some(&status.not_ready_reason),
        "controller_leader": (status.controller_leader != 0).then_some(status.controller_leader),
        "topics": status.topics,
        "partitions": status.partitions,
        "partitions_without_leader": status.partitions_without_leader,
        "nodes": nodes,
        "problems": status.problems,
    })
}
