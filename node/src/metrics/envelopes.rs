//! Envelopes that were refused, by the rule that they broke: from peers, from disks, from anywhere.

use imprint_proto::envelope::refused;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::counter::ConstCounter,
};
use std::fmt;

/// Reads the process's counters when the page is asked for.
#[derive(Debug)]
pub struct RefusedEnvelopes;

impl Collector for RefusedEnvelopes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let kind = ConstCounter::new(0_u64).metric_type();
        let help = "Envelopes refused, by the rule that they broke";
        let mut metric = encoder.encode_descriptor("envelopes_refused", help, None, kind)?;
        for (rule, count) in refused() {
            let counter = ConstCounter::new(count);
            counter.encode(metric.encode_family(&[("rule", rule.label())])?)?;
        }
        Ok(())
    }
}
