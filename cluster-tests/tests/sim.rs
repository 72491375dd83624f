//! The simulated cluster: the audit holds, one seed has one history, and a broken disk is noticed.

use std::process::{Command, Output};

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sim"))
        .args(args)
        .output()
        .expect("the simulator is built beside this test")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_killed_leader_loses_nothing_and_the_same_seed_gives_the_same_history() {
    for seed in ["1", "2", "3"] {
        let first = sim(&["--seed", seed]);
        assert!(
            first.status.success(),
            "{}\n{}",
            text(&first.stdout),
            text(&first.stderr)
        );
        let history = text(&first.stdout);
        assert!(history.contains("kill n"), "{history}");
        assert!(history.contains("audit: "), "{history}");
        let second = sim(&["--seed", seed]);
        assert_eq!(
            history,
            text(&second.stdout),
            "seed {seed} has two histories"
        );
    }
}

#[test]
fn different_seeds_give_different_histories() {
    let one = sim(&["--seed", "11"]);
    let two = sim(&["--seed", "12"]);
    assert_ne!(text(&one.stdout), text(&two.stdout));
}

#[test]
fn a_disk_that_lies_about_its_syncs_is_noticed() {
    let run = sim(&["--seed", "1", "--break-sync"]);
    assert!(!run.status.success(), "the audit held on a lying disk");
}
