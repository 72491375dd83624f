//! What to do after a failed attempt: plain decisions, tested without a network.

use crate::error::{ClientError, Outcome};
use crate::options::{ClientOptions, RetryUnknown};
use std::time::Duration;
use tonic::Code;

/// How a call takes being repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It reads, or has the same effect twice as once.
    Harmless,
    /// It writes: after an attempt without an answer the caller's choice counts.
    Writes(RetryUnknown),
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// The error is the caller's.
    GiveUp,
    /// Another attempt, elsewhere if there is an elsewhere.
    TryAgain,
}

/// Decides by the error and by what a repetition could do.
pub(crate) fn next(error: &ClientError, repeat: Repeat) -> Next {
    let lost = error.outcome() == Outcome::Unknown;
    let allowed = !lost || repeat != Repeat::Writes(RetryUnknown::No);
    // An unexplained failure inside a server may be that server's alone; a read may ask another one.
    let worth_it = error.is_transient() || (lost && !is_damage(error.code()));
    if allowed && worth_it {
        Next::TryAgain
    } else {
        Next::GiveUp
    }
}

/// Damage is reported, never asked away.
fn is_damage(code: Code) -> bool {
    code == Code::DataLoss
}

/// The pause before round number `round` (from 0): doubling, capped, with its upper half at random.
pub(crate) fn pause(options: &ClientOptions, round: u32, asked: Option<Duration>) -> Duration {
    let full = options
        .backoff_first
        .saturating_mul(1 << round.min(16))
        .min(options.backoff_max);
    let half = full / 2;
    let jitter_range = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).max(1);
    let jitter = Duration::from_micros(options.ambient.random_u64() % jitter_range);
    (half + jitter).max(asked.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Status;

    const READ: Repeat = Repeat::Harmless;
    const ONCE: Repeat = Repeat::Writes(RetryUnknown::No);
    const OFTEN: Repeat = Repeat::Writes(RetryUnknown::Yes);

    fn refused(code: Code) -> ClientError {
        let mut metadata = tonic::metadata::MetadataMap::new();
        metadata.insert("imprint-reason", "NO_LEADER".parse().unwrap());
        ClientError::from_status(&Status::with_metadata(code, "", metadata), "a:1")
    }

    #[test]
    fn a_refusal_for_the_moment_is_tried_again_whatever_the_call() {
        for repeat in [READ, ONCE, OFTEN] {
            let next = next(&refused(Code::Unavailable), repeat);
            assert_eq!(next, Next::TryAgain, "{repeat:?}");
        }
    }

    #[test]
    fn a_lost_answer_is_repeated_only_when_allowed() {
        let lost = ClientError::timed_out("a:1");
        assert_eq!(next(&lost, READ), Next::TryAgain);
        assert_eq!(next(&lost, ONCE), Next::GiveUp);
        assert_eq!(next(&lost, OFTEN), Next::TryAgain);
    }

    #[test]
    fn final_answers_are_the_callers() {
        for code in [
            Code::InvalidArgument,
            Code::NotFound,
            Code::AlreadyExists,
            Code::OutOfRange,
            Code::FailedPrecondition,
            Code::DataLoss,
            Code::ResourceExhausted,
        ] {
            for repeat in [READ, ONCE, OFTEN] {
                assert_eq!(next(&refused(code), repeat), Next::GiveUp, "{code:?}");
            }
        }
    }

    #[test]
    fn pauses_double_up_to_the_cap_and_honour_the_server() {
        let options = ClientOptions::default();
        for round in 0..40 {
            let full = options.backoff_first * (1 << round.min(10));
            let pause = pause(&options, round, None);
            assert!(pause >= full.min(options.backoff_max) / 2);
            assert!(pause <= full.min(options.backoff_max));
        }
        let asked = Duration::from_secs(4);
        assert_eq!(pause(&options, 0, Some(asked)), asked);
    }
}
