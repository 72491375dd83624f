//! What the records of the state log add up to.

use std::collections::BTreeMap;

use super::record::{Record, records_of};
use super::types::{ControlKind, GroupState};

/// The kept state of all groups of the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeState {
    /// By group id.
    pub groups: BTreeMap<u64, GroupState>,
}

impl NodeState {
    fn group(&mut self, group: u64) -> &mut GroupState {
        self.groups.entry(group).or_default()
    }

    /// Adds one record.
    pub fn apply(&mut self, record: &Record) {
        match record {
            Record::Head { .. } | Record::Flush { .. } => {}
            Record::Vote { group, vote } => self.group(*group).vote = Some(*vote),
            Record::Control {
                group,
                index,
                control,
            } => {
                self.group(*group).controls.insert(*index, control.clone());
            }
            Record::CutBegin {
                group,
                from_index,
                cut,
                purged,
            } => {
                let state = self.group(*group);
                state.controls.split_off(from_index);
                state.cut = Some(*cut);
                state.purged = purged.or(state.purged);
                state.empty_end = cut.offset;
                state.marks.synced_offset = state.marks.synced_offset.min(cut.offset);
                if cut.whole {
                    state.start_offset = cut.offset;
                    state.marks.synced_offset = cut.offset;
                }
            }
            Record::CutDone { group } => self.group(*group).cut = None,
            Record::Marks { group, marks } => self.group(*group).marks = *marks,
            Record::Purged { group, pos } => self.group(*group).purged = Some(*pos),
            Record::Start {
                group,
                start_offset,
            } => self.group(*group).start_offset = *start_offset,
            Record::ControlsDropped { group, below } => {
                drop_controls(&mut self.group(*group).controls, *below, |c| &c.kind)
            }
            Record::Base {
                group,
                purged,
                start_offset,
                empty_end,
                cut,
            } => {
                let state = self.group(*group);
                (state.purged, state.cut) = (*purged, *cut);
                (state.start_offset, state.empty_end) = (*start_offset, *empty_end);
            }
            Record::Replica { group, replica } => self.group(*group).replica = Some(*replica),
            Record::CleanStop { group, at } => self.group(*group).clean = Some(*at),
            Record::Opened => self
                .groups
                .values_mut()
                .for_each(|state| state.clean = None),
            Record::Dropped { group } => drop(self.groups.remove(group)),
        }
    }

    /// All records that make this state from nothing.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        self.groups
            .iter()
            .flat_map(|(group, state)| records_of(*group, state))
    }
}

/// Forgets control entries below an index, but for the last membership and the last settings among them: they may be those
/// in force.
pub fn drop_controls<T>(
    controls: &mut BTreeMap<u64, T>,
    below: u64,
    kind: impl Fn(&T) -> &ControlKind,
) {
    let kept = controls.split_off(&below);
    let dropped = std::mem::replace(controls, kept);
    let (mut has_membership, mut has_settings) = (false, false);
    let in_force = dropped.into_iter().rev().filter(|(_, c)| {
        let seen = match kind(c) {
            ControlKind::Membership(_) => &mut has_membership,
            ControlKind::Settings(_) => &mut has_settings,
            _ => return false,
        };
        !std::mem::replace(seen, true)
    });
    controls.extend(in_force);
}
