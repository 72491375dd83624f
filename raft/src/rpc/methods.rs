//! The one table of method ids.
//!
//! Ids are pinned: never reused, never derived from a type's name. A method is added by a new line, and a server that
//! doesn't list it answers 404, which is how an older node says that it can't take part.

/// First call on each connection: who is calling.
pub const HELLO: u32 = 1;
/// Liveness of a pair of nodes.
pub const PING: u32 = 2;
/// Raft: entries from a leader, or its heartbeat.
pub const APPEND_ENTRIES: u32 = 10;
/// Raft: request for a vote.
pub const VOTE: u32 = 11;
/// Raft: would you vote for me?
pub const PRE_VOTE: u32 = 12;
/// Raft: a whole snapshot.
pub const SNAPSHOT: u32 = 13;
/// Raft: hand-over of leadership.
pub const TRANSFER_LEADER: u32 = 14;
/// Puts idle groups to sleep.
pub const QUIESCE: u32 = 15;
/// Which groups a node has open.
pub const GROUP_STATE: u32 = 16;
/// Formation: who are you, and which cluster do you belong to?
pub const FORM: u32 = 20;
/// A client's request, passed on to the node that can serve it.
pub const FORWARD: u32 = 30;
/// A command or a query for the controller.
pub const CONTROLLER: u32 = 31;
/// A node's report of its own health to the controller.
pub const HEALTH_REPORT: u32 = 32;
/// Checksums of a replica's bytes, to compare replicas.
pub const DIGEST: u32 = 33;
/// Batches of a log, for a replica that can't read its own.
pub const READ_LOG: u32 = 34;
/// Digests of the sealed segments that a replica has checked.
pub const SEGMENT_DIGESTS: u32 = 35;
/// Where a leader's log begins, for a replica whose whole log is below.
pub const READ_CUT: u32 = 36;

/// Every method with its name in logs and metrics, in order of id.
pub const TABLE: [(u32, &str); 17] = [
    (HELLO, "hello"),
    (PING, "ping"),
    (APPEND_ENTRIES, "append_entries"),
    (VOTE, "vote"),
    (PRE_VOTE, "pre_vote"),
    (SNAPSHOT, "snapshot"),
    (TRANSFER_LEADER, "transfer_leader"),
    (QUIESCE, "quiesce"),
    (GROUP_STATE, "group_state"),
    (FORM, "form"),
    (FORWARD, "forward"),
    (CONTROLLER, "controller"),
    (HEALTH_REPORT, "health_report"),
    (DIGEST, "digest"),
    (READ_LOG, "read_log"),
    (SEGMENT_DIGESTS, "segment_digests"),
    (READ_CUT, "read_cut"),
];

/// The method's row in [`TABLE`], if it has one.
pub fn row(method: u32) -> Option<usize> {
    TABLE.binary_search_by_key(&method, |(id, _)| *id).ok()
}

/// The method's name in logs and metrics.
pub fn name(method: u32) -> &'static str {
    row(method).map_or("unknown", |row| TABLE[row].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_pinned_and_in_order() {
        let ids: Vec<u32> = TABLE.iter().map(|(id, _)| *id).collect();
        assert_eq!(
            ids,
            [
                1, 2, 10, 11, 12, 13, 14, 15, 16, 20, 30, 31, 32, 33, 34, 35, 36
            ]
        );
    }

    #[test]
    fn an_id_outside_of_the_table_has_no_row() {
        assert_eq!(row(3), None);
        assert_eq!(name(3), "unknown");
        assert_eq!(name(DIGEST), "digest");
    }
}
