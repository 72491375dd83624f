//! How long a call may take: what the client says in `grpc-timeout`, within the node's bounds.

use crate::config::Limits;
use std::time::Duration;
use tonic::metadata::MetadataMap;

/// The client's own wish, if it has one. The form is up to eight digits and a unit.
pub(super) fn requested(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(value * 3600)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

/// The time that a call gets; `wait` is what a long poll may wait on top.
pub(super) fn timeout(metadata: &MetadataMap, limits: &Limits, wait: Duration) -> Duration {
    let wait = wait.min(limits.max_wait);
    requested(metadata)
        .unwrap_or(limits.default_deadline + wait)
        .min(limits.max_deadline + wait)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeConfig;
    use imprint_proto::ids::NodeId;

    fn metadata(value: &str) -> MetadataMap {
        let mut map = MetadataMap::new();
        map.insert("grpc-timeout", value.parse().expect("ascii"));
        map
    }

    #[test]
    fn the_wire_form_is_read() {
        for (text, expected) in [
            ("5S", Some(Duration::from_secs(5))),
            ("99999999m", Some(Duration::from_millis(99_999_999))),
            ("10u", Some(Duration::from_micros(10))),
            ("1H", Some(Duration::from_secs(3600))),
            ("999999999S", None),
            ("S", None),
            ("5", None),
            ("-5S", None),
            ("", None),
        ] {
            assert_eq!(requested(&metadata(text)), expected, "{text}");
        }
    }

    #[test]
    fn deadlines_stay_within_the_configured_bounds() {
        let limits = NodeConfig::loopback(NodeId(1), "d".into(), 1, 2, 3).limits;
        let none = MetadataMap::new();
        let wait = Duration::from_secs(20);
        assert_eq!(
            timeout(&none, &limits, Duration::ZERO),
            Duration::from_secs(5)
        );
        assert_eq!(timeout(&none, &limits, wait), Duration::from_secs(25));
        let long = metadata("600S");
        assert_eq!(
            timeout(&long, &limits, Duration::ZERO),
            Duration::from_secs(30)
        );
        assert_eq!(
            timeout(&metadata("100m"), &limits, wait),
            Duration::from_millis(100)
        );
        assert_eq!(
            timeout(&long, &limits, Duration::MAX),
            Duration::from_secs(60)
        );
    }
}
