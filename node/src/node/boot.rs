//! From a node that listens to a member of the cluster: form or find it, open the controller's
//! replica, register, and from then on keep what the controller gives to this node.

use super::{Addresses, NodeError, VERSION, replication::bootstrap_delay};
use crate::{
    config::NodeConfig,
    controller::{Command, ControllerMachine, NodeRecord, Verdict},
    core::{CONTROLLER, Core},
    formation::{Formation, FormationRecord},
    forward::CallContext,
    reconciler, retention,
};
use imprint_proto::ids::NodeId;
use imprint_raft::consensus::{GroupSpec, Groups, OpenGroupError};
use std::{sync::Arc, time::Duration};

/// One try to register; elections may take a part of it.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two tries.
const REGISTER_PAUSE: Duration = Duration::from_millis(50);
/// The controller's log is small.
const CONTROLLER_SEGMENT_BYTES: u64 = 16 << 20;

/// What booting needs.
pub(super) struct Boot {
    pub config: NodeConfig,
    pub addresses: Addresses,
    pub core: Arc<Core>,
    pub groups: Arc<Groups>,
    pub formation: Arc<Formation>,
    pub storage_id: [u8; 16],
}

impl Boot {
    /// Boots, then reconciles and retains until the node stops.
    pub async fn run(self, machine: ControllerMachine) -> Result<(), NodeError> {
        let record = self.formation.form().await?;
        self.open_controller(&record, machine).await?;
        let segment_bytes = self.config.storage.segment_bytes;
        let reconcile = reconciler::run(Arc::clone(&self.core), segment_bytes);
        let every = self.config.storage.retention_check;
        let retain = retention::run(Arc::clone(&self.core), every);
        let ((), (), registered) = tokio::join!(reconcile, retain, self.register());
        registered
    }

    async fn open_controller(
        &self,
        record: &FormationRecord,
        machine: ControllerMachine,
    ) -> Result<(), NodeError> {
        let members = record.members.iter().map(|member| {
            let node = (NodeId(member.node_id), member.address.clone());
            (member.replica_id, node)
        });
        let own = self.config.node_id.0;
        let own = record.members.iter().find(|member| member.node_id == own);
        let own = own.ok_or_else(|| {
            let reason = "the formation record does not name this node";
            NodeError::Replication(reason.to_string())
        })?;
        let first = record.members.iter().map(|member| member.replica_id).min();
        let spec = GroupSpec {
            group_id: CONTROLLER.0,
            replica_id: own.replica_id,
            members: members.collect(),
            bootstrap_delay: Some(bootstrap_delay(first == Some(own.replica_id))),
            machine: Box::new(machine),
            segment_bytes: CONTROLLER_SEGMENT_BYTES,
            segment_span_us: None,
        };
        match self.groups.open_group(spec).await {
            Ok(_) => Ok(()),
            // It opens once it was repaired from the other replicas; nothing can be known before.
            Err(OpenGroupError::Damaged { group, .. }) => {
                self.groups.wait_open(group).await;
                Ok(())
            }
            Err(error) => Err(NodeError::Replication(error.to_string())),
        }
    }

    /// Tells the controller who this node is and where; until it has heard it.
    async fn register(&self) -> Result<(), NodeError> {
        let listeners = self.addresses.clients.iter();
        let listeners = listeners.map(|(name, address)| (name.clone(), address.to_string()));
        let record = NodeRecord {
            node_id: self.config.node_id.0,
            storage_id: self.storage_id,
            peer_address: self.addresses.peer.to_string(),
            listeners: listeners.collect(),
            version: VERSION.to_string(),
        };
        let command = Command::RegisterNode(record.clone());
        loop {
            let context = CallContext::new(crate::config::DEFAULT_LISTENER, REGISTER_TIMEOUT);
            match self.core.repeatable_command(&command, &context).await {
                Ok(answer) if answer.verdict == Verdict::Done => {
                    tracing::info!("registered with the controller");
                    return Ok(());
                }
                Ok(answer) => return Err(NodeError::Refused(answer.reason)),
                Err(failure) => {
                    tracing::debug!(%failure, "could not register yet");
                    tokio::time::sleep(REGISTER_PAUSE).await;
                }
            }
            if self.core.is_stopping() {
                return Ok(());
            }
        }
    }
}
