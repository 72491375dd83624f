use super::*;
use std::path::Path;

fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

fn from_file(text: &str) -> Result<NodeConfig, ConfigErrors> {
    let mut problems = Vec::new();
    let mut written = Written::default();
    written.add_file(Path::new("imprint.toml"), text, &mut problems);
    let config = check::check(&written, &mut problems);
    if problems.is_empty() {
        Ok(config)
    } else {
        Err(ConfigErrors(problems))
    }
}

fn refusal(text: &str) -> String {
    from_file(text).expect_err("must be refused").to_string()
}

#[test]
fn defaults_make_a_loopback_cluster_of_one() {
    let (config, _) = load(&ServeArgs::default(), &env(&[])).expect("defaults");
    assert_eq!(config.node_id, NodeId(1));
    assert_eq!(config.listeners[0].listen.to_string(), "127.0.0.1:7460");
    assert_eq!(config.peer.advertise.to_string(), "127.0.0.1:7461");
    assert_eq!(config.http.to_string(), "127.0.0.1:7462");
    assert_eq!(config.seeds, vec![config.peer.advertise.clone()]);
}

#[test]
fn flags_beat_environment_beats_file() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("imprint.toml");
    std::fs::write(
        &path,
        "node_id = 7\nlog_level = \"warn\"\ndata_dir = \"from file\"\n",
    )
    .expect("write");
    let args = ServeArgs {
        config: Some(path),
        node_id: Some("9".into()),
        ..ServeArgs::default()
    };
    let env = env(&[("IMPRINT_NODE_ID", "8"), ("IMPRINT_LOG_LEVEL", "debug")]);
    let (config, written) = load(&args, &env).expect("configuration");
    assert_eq!(config.node_id, NodeId(9));
    assert_eq!(config.log.level, "debug");
    assert_eq!(config.data_dir, PathBuf::from("from file"));
    assert_eq!(
        written.entries["node_id"].origin,
        Origin::Flag("--node-id".into())
    );
}

#[test]
fn the_environment_alone_describes_a_node() {
    let env = env(&[
        ("IMPRINT_NODE_ID", "2"),
        ("IMPRINT_SEEDS", "a:7461,b:7461,c:7461"),
        ("IMPRINT_ADVERTISE_CLIENT", "b:7460"),
        ("IMPRINT_ADVERTISE_PEER", "b:7461"),
        ("IMPRINT_LISTENERS", "host=0.0.0.0:7463@localhost:7470"),
        ("IMPRINT_LIMITS_MAX_BATCH_BYTES", "1MiB"),
        ("IMPRINT_SERVICE_HOST", "10.0.0.1"),
        ("PATH", "/bin"),
    ]);
    let (config, _) = load(&ServeArgs::default(), &env).expect("configuration");
    assert_eq!(config.seeds.len(), 3);
    assert_eq!(config.listeners[0].listen.to_string(), "0.0.0.0:7460");
    assert_eq!(config.peer.listen.to_string(), "0.0.0.0:7461");
    assert_eq!(config.http.to_string(), "0.0.0.0:7462");
    assert_eq!(config.advertised("host").to_string(), "localhost:7470");
    assert_eq!(config.advertised("other").to_string(), "b:7460");
    assert_eq!(config.limits.max_batch_bytes, 1 << 20);
}

#[test]
fn an_unknown_key_names_file_line_and_the_nearest_key() {
    let message = refusal("node_id = 1\n\n[listen]\nclinet = \"127.0.0.1:1\"\n");
    assert_eq!(
        message,
        "imprint.toml:4: unknown key listen.clinet, did you mean listen.client?"
    );
    let unknown = load(&ServeArgs::default(), &env(&[("IMPRINT_SEED", "a:1")]));
    assert_eq!(
        unknown.expect_err("unknown").to_string(),
        "environment variable IMPRINT_SEED: unknown key IMPRINT_SEED, did you mean seeds?"
    );
}

#[test]
fn a_bad_value_names_key_value_and_range() {
    assert_eq!(
        refusal("\nnode_id = 0\n"),
        "imprint.toml:2: node_id = \"0\" is out of range; allowed: a whole number in 1..=1023"
    );
    let message = refusal("[limits]\nmax_batch_bytes = \"1.5MiB\"\n");
    assert!(
        message.contains("limits.max_batch_bytes = \"1.5MiB\" is not a size"),
        "{message}"
    );
    assert!(
        message.contains("allowed: a size in 256..=64MiB"),
        "{message}"
    );
}

#[test]
fn every_problem_is_reported() {
    let error = from_file("node_id = \"x\"\nlog_format = \"xml\"\nseeds = [\"a:1\", \"a:1\"]\n")
        .expect_err("three problems");
    assert_eq!(error.0.len(), 3, "{error}");
}

#[test]
fn contradictions_are_refused() {
    for (text, part) in [
        ("[listen]\nclient = \"0.0.0.0:7460\"\n", "advertise.client"),
        ("[advertise]\npeer = \"0.0.0.0:7461\"\n", "wildcard"),
        ("[advertise]\nclient = \"[::]:7460\"\n", "wildcard"),
        (
            "[listen]\npeer = \"127.0.0.1:7460\"\n",
            "also used by listen.client",
        ),
        (
            "[raft]\nelection_timeout_max = \"400ms\"\n",
            "not above raft.election_timeout_min",
        ),
        (
            "[raft]\nheartbeat_interval = \"400ms\"\n",
            "twice raft.heartbeat_interval",
        ),
        (
            "[limits]\npartition_bytes = \"1MiB\"\n",
            "below limits.max_batch_bytes",
        ),
        (
            "[[listener]]\nname = \"default\"\nlisten = \"h:1\"\nadvertise = \"h:1\"\n",
            "two listeners",
        ),
        (
            "[[listener]]\nname = \"a\"\nlisten = \"h:1\"\n",
            "listener.advertise",
        ),
        (
            "[[listener]]\nname = \"a\"\nlisten = \"h:1\"\nadvertise = \"h:1\"\nx = 1\n",
            "listener.x",
        ),
    ] {
        let message = refusal(text);
        assert!(message.contains(part), "{text}: {message}");
    }
}

#[test]
fn strings_are_kept_exactly() {
    let config = from_file("data_dir = \" a b/\\u00e9 \"\n").expect("configuration");
    assert_eq!(config.data_dir, PathBuf::from(" a b/é "));
    assert!(refusal("seeds = [\" a:1\"]\n").contains("\" a:1\""));
}

#[test]
fn a_broken_file_names_its_line() {
    assert!(refusal("node_id = 1\nseeds = [\n").starts_with("imprint.toml:"));
    let args = ServeArgs {
        config: Some("does-not-exist.toml".into()),
        ..ServeArgs::default()
    };
    let error = load(&args, &env(&[])).expect_err("no file");
    assert!(error.to_string().starts_with("does-not-exist.toml: "));
}

#[test]
fn what_is_printed_reads_back_the_same() {
    let env = env(&[
        ("IMPRINT_ADVERTISE_CLIENT", "b:7460"),
        ("IMPRINT_LISTENERS", "host=0.0.0.0:7463@localhost:7470"),
        ("IMPRINT_SEEDS", "a:7461,b:7461"),
        ("IMPRINT_DATA_DIR", "d\"q"),
    ]);
    let (config, written) = load(&ServeArgs::default(), &env).expect("configuration");
    let printed = print(&config, &written);
    let again = from_file(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(format!("{config:?}"), format!("{again:?}"));
    assert!(
        printed.contains("# environment variable IMPRINT_SEEDS"),
        "{printed}"
    );
}

#[test]
fn floors_and_times_of_the_disk_that_contradict_each_other_are_refused() {
    let text = refusal("[storage]\ndisk_soft_floor = \"1GiB\"\ndisk_hard_floor = \"1GiB\"\n");
    assert!(text.contains("storage.disk_soft_floor") && text.contains("storage.disk_hard_floor"));
    let text = refusal("[storage]\nslow_sync = \"30s\"\n");
    assert!(
        text.contains("storage.stuck_sync") && text.contains("30s"),
        "{text}"
    );
    let config = from_file("[storage]\ndisk_hard_floor = \"64MiB\"\n").expect("fine");
    assert_eq!(config.storage.disk_hard_floor, Some(64 << 20));
    assert_eq!(config.storage.disk_soft_floor, None);
}
