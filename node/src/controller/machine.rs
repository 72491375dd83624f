//! The controller as the state machine of group 0.
//!
//! Each applied batch makes a new version of the state visible to watchers (the reconciler, the
//! services) before its proposer is answered, so a caller that was told "created" finds the topic
//! on this node.

use super::{
    command::{Answer, Command, Verdict},
    records::StateRecord,
    state::ControllerState,
};
use bytes::Bytes;
use imprint_proto::{batch::StampedBatch, envelope};
use std::sync::Arc;
use tokio::sync::watch;

/// Applies committed commands.
#[derive(Debug)]
pub struct ControllerMachine {
    state: ControllerState,
    visible: watch::Sender<Arc<ControllerState>>,
}

impl ControllerMachine {
    /// An empty state, and a view of it that follows.
    pub fn new() -> (Self, watch::Receiver<Arc<ControllerState>>) {
        let state = ControllerState::default();
        let (visible, watch) = watch::channel(Arc::new(state.clone()));
        (Self { state, visible }, watch)
    }

    /// An empty state with the same view, which shows the old one until something was applied.
    pub fn anew(&self) -> Self {
        Self {
            state: ControllerState::default(),
            visible: self.visible.clone(),
        }
    }

    /// Applies every command of a batch; the answer is the last one's.
    pub fn apply_batch(&mut self, batch: &StampedBatch) -> Bytes {
        let mut answer = Answer::refused(Verdict::Unknown, "the batch holds no command");
        for frame in batch.frames() {
            answer = self.apply_command(Bytes::copy_from_slice(frame.payload));
        }
        self.publish();
        answer.encode()
    }

    pub(super) fn apply_command(&mut self, payload: Bytes) -> Answer {
        match Command::decode(payload) {
            Ok(command) => self.state.apply(command),
            // Every node that can't read it refuses it alike; nothing is changed.
            Err(error) => Answer::refused(Verdict::Unknown, error.to_string()),
        }
    }

    fn publish(&self) {
        self.visible.send_replace(Arc::new(self.state.clone()));
    }

    /// The whole state as versioned bytes.
    pub fn encode_state(&self) -> Bytes {
        envelope::encode_checked(&self.state.to_record())
    }

    /// Replaces the state.
    pub fn restore_state(&mut self, snapshot: Bytes) -> Result<(), String> {
        let record: StateRecord = envelope::decode_checked(snapshot)
            .map_err(|error| format!("the controller's snapshot can't be read: {error}"))?;
        self.state = ControllerState::from_record(record);
        self.publish();
        Ok(())
    }
}
