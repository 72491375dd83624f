//! Power cuts: before every single change of the disk in a script that does everything, and at random in random scripts.

mod journal_support;

use imprint_raft::disk::sim::Loss;
use journal_support::history::{History, Op};
use journal_support::small;
use proptest::prelude::*;

const LOSSES: [Loss; 4] = [Loss::DropAll, Loss::KeepSome, Loss::Tear, Loss::KeepAll];

fn script() -> Vec<Op> {
    vec![
        Op::Vote,
        Op::Elected(2),
        Op::Flush,
        Op::Data(5),
        Op::Membership,
        Op::Data(6),
        Op::Flush,
        Op::Truncate(4),
        Op::Elected(3),
        Op::PurgeBut(4),
        Op::Trim,
        Op::Flush,
        Op::Truncate(2),
        Op::Settings(700),
        Op::Data(4),
        Op::TrimBut(3),
        Op::Settings(3_000),
        Op::Data(3),
        Op::Truncate(4),
        Op::Install(3),
        Op::Elected(4),
        Op::TrimBut(0),
        Op::Vote,
        Op::PurgeBut(1),
    ]
}

/// Runs the script with the power going at the `n`-th change; says whether it went at all.
fn run_until(n: u64, seed: u64, loss: Loss) -> bool {
    let mut history = History::new(small());
    history.disk.power_off_at(n);
    let whole = history.open().is_ok() && history.run(&script()) == script().len();
    history.crash(seed, loss);
    // Life goes on, and what was there stays.
    let after = [
        Op::Data(2),
        Op::Elected(3),
        Op::Flush,
        Op::Truncate(1),
        Op::Data(3),
    ];
    assert_eq!(history.run(&after), after.len(), "after {loss:?} at {n}");
    history.crash(seed, Loss::DropAll);
    !whole
}

#[test]
fn nothing_acknowledged_is_lost_wherever_the_power_goes() {
    for loss in LOSSES {
        let seeds = if matches!(loss, Loss::KeepSome | Loss::Tear) {
            2
        } else {
            1
        };
        for seed in 0..seeds {
            let mut n = 1;
            while run_until(n, seed, loss) {
                n += 1;
            }
            assert!(n > 100, "the script made only {n} changes");
        }
    }
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1_u32..4).prop_map(Op::Data),
        2 => (0_u32..4).prop_map(Op::Elected),
        1 => Just(Op::Membership),
        2 => (0_u64..8).prop_map(Op::Truncate),
        2 => (0_u64..8).prop_map(Op::PurgeBut),
        1 => Just(Op::Trim),
        1 => Just(Op::Vote),
        2 => Just(Op::Flush),
        1 => (0_u64..5).prop_map(Op::Install),
        1 => (400_u64..4_000).prop_map(Op::Settings),
        1 => (0_u64..20).prop_map(Op::TrimBut),
    ]
}

fn any_loss() -> impl Strategy<Value = Loss> {
    prop_oneof![
        Just(Loss::DropAll),
        Just(Loss::KeepSome),
        Just(Loss::Tear),
        Just(Loss::KeepAll)
    ]
}

/// A life: a script, the change at which the power goes, and what that does.
fn any_life() -> impl Strategy<Value = (Vec<Op>, u64, u64, Loss)> {
    (
        prop::collection::vec(any_op(), 1..20),
        1_u64..200,
        any::<u64>(),
        any_loss(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_lives_lose_nothing(lives in prop::collection::vec(any_life(), 1..5)) {
        let mut history = History::new(small());
        history.open().unwrap();
        for (script, off_at, seed, loss) in lives {
            history.disk.power_off_at(history.disk.changes() + off_at);
            history.run(&script);
            history.crash(seed, loss);
        }
    }
}
