//! Whether a replica may lead: a replica with a hole in its log, or with a tail that its disk may have lost, votes or serves
//! what it can, but must not campaign.
//!
//! Reasons are independent of each other; the replica campaigns again when the last one is gone. An unfit replica that
//! leads already is asked to hand over by whoever found the reason.

use std::sync::atomic::{AtomicU8, Ordering};

use super::group::Group;

/// Why a replica must not lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Unfit {
    /// Something in its log can't be read.
    Hole = 1,
    /// A write or sync failed in the run before: it may lack what it once acknowledged.
    Suspect = 2,
}

/// The reasons that hold now.
#[derive(Debug, Default)]
pub(crate) struct Fitness(AtomicU8);

impl Fitness {
    /// Adds or takes back a reason; says whether the replica is fit now.
    fn set(&self, reason: Unfit, holds: bool) -> bool {
        let bit = reason as u8;
        let before = if holds {
            self.0.fetch_or(bit, Ordering::AcqRel) | bit
        } else {
            self.0.fetch_and(!bit, Ordering::AcqRel) & !bit
        };
        before == 0
    }

    fn has(&self, reason: Unfit) -> bool {
        self.0.load(Ordering::Acquire) & reason as u8 != 0
    }

    fn is_fit(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

impl Group {
    /// Adds or takes back a reason not to lead.
    pub(crate) fn set_unfit(&self, reason: Unfit, holds: bool) {
        let fit = self.fitness.set(reason, holds);
        self.raft.runtime_config().elect(fit);
    }

    /// Whether this reason not to lead holds.
    pub(crate) fn is_unfit(&self, reason: Unfit) -> bool {
        self.fitness.has(reason)
    }

    /// Whether this replica may campaign and be handed the lead.
    pub fn may_lead(&self) -> bool {
        self.fitness.is_fit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fit_again_when_the_last_reason_is_gone() {
        let fitness = Fitness::default();
        assert!(fitness.is_fit());
        assert!(!fitness.set(Unfit::Hole, true));
        assert!(!fitness.set(Unfit::Suspect, true));
        assert!(!fitness.set(Unfit::Hole, false));
        assert!(fitness.has(Unfit::Suspect) && !fitness.has(Unfit::Hole));
        assert!(fitness.set(Unfit::Suspect, false));
        assert!(fitness.is_fit());
    }
}
