use super::command::CreateTopic;
use super::*;
use bytes::Bytes;
use imprint_proto::ids::{GroupId, NodeId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn node(id: u64, storage: u8) -> Command {
    Command::RegisterNode(NodeRecord {
        node_id: id,
        storage_id: [storage; 16],
        peer_address: format!("n{id}:7461"),
        listeners: BTreeMap::from([("default".to_string(), format!("n{id}:7460"))]),
        version: "0.1.0".into(),
    })
}

fn create(name: &str, partitions: u32, replication: u32, token: u8) -> Command {
    Command::CreateTopic(CreateTopic {
        name: name.into(),
        partitions,
        replication,
        settings: BTreeMap::new(),
        token: [token; 16],
    })
}

fn delete(name: &str) -> Command {
    Command::DeleteTopic { name: name.into() }
}

fn update(name: &str, set: &[(&str, &str)], unset: &[&str]) -> Command {
    let set = set.iter().map(|(k, v)| (k.to_string(), v.to_string()));
    Command::UpdateTopic(UpdateTopic {
        name: name.into(),
        set: set.collect(),
        unset: unset.iter().map(ToString::to_string).collect(),
    })
}

fn three_nodes() -> ControllerState {
    let mut state = ControllerState::default();
    for id in 1..=3 {
        assert_eq!(state.apply(node(id, 7)).verdict, Verdict::Done);
    }
    state
}

#[test]
fn ids_are_given_out_once() {
    let mut state = three_nodes();
    state.apply(create("a", 2, 3, 1));
    let first: Vec<u64> = state.topics["a"]
        .partitions
        .iter()
        .map(|p| p.partition_id)
        .collect();
    assert_eq!(first, [1, 2]);
    assert_eq!(state.topics["a"].partitions[0].replicas[0].replica_id, 1024);
    assert_eq!(state.apply(delete("a")).verdict, Verdict::Done);
    assert!(state.was_deleted(GroupId(1)));
    let answer = state.apply(create("a", 1, 0, 2));
    let topic = answer.topic.expect("created");
    assert_eq!(topic.partitions[0].partition_id, 3);
    assert_eq!(topic.partitions[0].replicas[0].replica_id, 1024 + 6);
    assert_eq!(topic.replication, 3);
    assert!(!state.was_deleted(GroupId(3)) && !state.was_deleted(GroupId(4)));
    assert!(!state.was_deleted(GroupId(0)));
}

#[test]
fn refusals_change_nothing() {
    let mut state = three_nodes();
    state.apply(create("a", 1, 1, 1));
    let before = state.clone();
    for (command, verdict) in [
        (create("a", 1, 1, 2), Verdict::AlreadyExists),
        (create("b", 1, 4, 2), Verdict::NotEnoughNodes),
        (create("b", 0, 1, 2), Verdict::Invalid),
        (create("b", 1001, 1, 2), Verdict::Invalid),
        (create("b/c", 1, 1, 2), Verdict::Invalid),
        (delete("b"), Verdict::NotFound),
        (node(1, 8), Verdict::AlreadyExists),
        (
            update("b", &[("retention_ms", "1d")], &[]),
            Verdict::NotFound,
        ),
        (update("a", &[("retention_ms", "0")], &[]), Verdict::Invalid),
        (update("a", &[], &["color"]), Verdict::Invalid),
        (update("a", &[], &[]), Verdict::Invalid),
    ] {
        let answer = state.apply(command.clone());
        assert_eq!(answer.verdict, verdict, "{command:?}");
        assert!(!answer.reason.is_empty());
        assert_eq!(state, before, "{command:?}");
    }
}

#[test]
fn a_second_try_of_one_call_finds_the_first() {
    let mut state = three_nodes();
    let first = state.apply(create("a", 3, 3, 9));
    assert_eq!(state.apply(create("a", 3, 3, 9)), first);
}

#[test]
fn what_the_logs_began_with_outlives_later_settings() {
    let mut state = three_nodes();
    let with = |name: &str, bytes: &str| {
        let mut settings = BTreeMap::from([("segment_bytes".to_string(), bytes.to_string())]);
        settings.insert("segment_ms".into(), "2s".into());
        Command::CreateTopic(CreateTopic {
            name: name.into(),
            partitions: 1,
            replication: 1,
            settings,
            token: [1; 16],
        })
    };
    state.apply(with("a", "1MiB"));
    let change = update(
        "a",
        &[("segment_bytes", "2MiB"), ("retention_ms", "7d")],
        &["segment_ms"],
    );
    assert_eq!(state.apply(change.clone()).verdict, Verdict::Done);
    let once = state.clone();
    assert_eq!(state.apply(change).verdict, Verdict::Done);
    assert_eq!(state, once);
    let topic = &state.topics["a"];
    let first = topic.first_roll(7);
    assert_eq!(
        (first.segment_bytes, first.segment_span_us),
        (1 << 20, Some(2_000_000))
    );
    assert_eq!(topic.settings["segment_bytes"], "2097152");
    assert_eq!(topic.settings["retention_ms"], "604800000");
    assert!(!topic.settings.contains_key("segment_ms"));
}

#[test]
fn a_topic_from_before_keeps_what_its_logs_began_with() {
    let mut state = three_nodes();
    for (name, segment_bytes) in [("old", None), ("set", Some("1048576"))] {
        state.apply(create(name, 1, 1, 1));
        let mut old = state.topics[name].as_ref().clone();
        old.first_roll = None;
        old.settings = segment_bytes
            .map(|bytes| ("segment_bytes".to_string(), bytes.to_string()))
            .into_iter()
            .collect();
        state.topics.insert(name.into(), old.into());
    }
    let first = |state: &ControllerState, name: &str| state.topics[name].first_roll(70_000);
    let before = ["old", "set"].map(|name| first(&state, name));
    assert_eq!(before.map(|roll| roll.segment_bytes), [70_000, 1 << 20]);
    for name in ["old", "set"] {
        state.apply(update(name, &[("segment_bytes", "3MiB")], &[]));
    }
    assert_eq!(["old", "set"].map(|name| first(&state, name)), before);
}

#[test]
fn hints_follow_the_listener() {
    let state = three_nodes();
    let address = |listener| state.client_address(NodeId(2), listener);
    assert_eq!(address("default").as_deref(), Some("n2:7460"));
    assert_eq!(address("host").as_deref(), Some("n2:7460"));
    assert_eq!(state.client_address(NodeId(9), "default"), None);
}

#[test]
fn what_cannot_be_read_is_answered() {
    let (mut machine, _) = ControllerMachine::new();
    let answer = machine.apply_command(Bytes::from_static(b"garbage"));
    assert_eq!(answer.verdict, Verdict::Unknown);
}

#[test]
fn commands_and_answers_read_back() {
    let mut state = three_nodes();
    for command in [
        node(4, 4),
        create("t", 3, 0, 1),
        update("t", &[("retention_bytes", "1GiB")], &["segment_ms"]),
        delete("t"),
    ] {
        assert_eq!(Command::decode(command.encode()), Ok(command.clone()));
        let answer = state.apply(command);
        assert_eq!(Answer::decode(answer.encode()), Ok(answer));
    }
    batch_for(delete("t").encode(), 5).expect("fits a batch");
}

fn any_command() -> impl Strategy<Value = Command> {
    let name = "[ab/]{1,2}";
    prop_oneof![
        (1u64..6, 0u8..2).prop_map(|(id, storage)| node(id, storage)),
        (name, 0u32..5, 0u32..5, 0u8..3).prop_map(|(n, p, r, t)| create(&n, p, r, t)),
        name.prop_map(|n| delete(&n)),
        (name, 0u32..5).prop_map(|(n, ms)| update(&n, &[("retention_ms", &ms.to_string())], &[])),
    ]
}

fn check_invariants(state: &ControllerState) {
    let mut partitions = BTreeSet::new();
    let mut replicas = BTreeSet::new();
    for (topic, partition) in state.partitions() {
        assert!(partitions.insert(partition.partition_id));
        assert!(!state.was_deleted(GroupId(partition.partition_id)));
        assert_eq!(partition.replicas.len(), topic.replication as usize);
        let nodes: BTreeSet<u64> = partition.replicas.iter().map(|r| r.node_id).collect();
        assert_eq!(nodes.len(), partition.replicas.len());
        for replica in &partition.replicas {
            assert!(replica.replica_id >= 1024 && replicas.insert(replica.replica_id));
            assert!(state.nodes.contains_key(&NodeId(replica.node_id)));
        }
    }
}

proptest! {
    #[test]
    fn replay_is_deterministic_and_snapshots_are_equal(
        commands in proptest::collection::vec(any_command(), 0..40),
        cut in 0usize..40,
    ) {
        let (mut whole, _) = ControllerMachine::new();
        let (mut cut_over, _) = ControllerMachine::new();
        for (i, command) in commands.iter().enumerate() {
            if i == cut {
                let (mut fresh, _) = ControllerMachine::new();
                fresh.restore_state(cut_over.encode_state()).expect("own snapshot");
                cut_over = fresh;
            }
            let answer = whole.apply_command(command.encode());
            prop_assert_eq!(answer, cut_over.apply_command(command.encode()));
        }
        prop_assert_eq!(whole.encode_state(), cut_over.encode_state());
        let (mut restored, view) = ControllerMachine::new();
        restored.restore_state(whole.encode_state()).expect("own snapshot");
        check_invariants(&view.borrow());
    }

    #[test]
    fn damaged_snapshots_are_refused(flip in 0usize..200, bit in 0u8..8) {
        let (mut machine, view) = ControllerMachine::new();
        for id in 1..=3 {
            machine.apply_command(node(id, 1).encode());
        }
        let mut bytes = machine.encode_state().to_vec();
        let at = flip % bytes.len();
        bytes[at] ^= 1 << bit;
        let before = view.borrow().clone();
        if machine.restore_state(bytes.into()).is_err() {
            prop_assert_eq!(&before, &*view.borrow());
        }
    }
}
