//! Filling one hole from other replicas.
//!
//! Replicas are asked in turn until one gives something that is accepted, then on from there. Nothing that doesn't stand at
//! the very index, term and offset that this log expects is taken; what a whole round of replicas can't give is reported,
//! with what a leader said about it.

use imprint_proto::ids::NodeId;

use super::sources::Sources;
use super::wire::LogPieces;
use crate::disk::Io;
use crate::disk::offloaded;
use crate::journal::{Mend, RepairBatch, Wanted};

/// How a try to fill a hole ended.
#[derive(Debug)]
pub(crate) enum Filled {
    /// Nothing is missing any more.
    Whole,
    /// Nobody could give what is wanted next.
    Stuck(Stuck),
}

/// What nobody could give.
#[derive(Debug)]
pub(crate) struct Stuck {
    pub wanted: Wanted,
    /// What a leader said.
    pub word: Word,
    /// What each replica said, for people.
    pub heard: Vec<(NodeId, String)>,
}

/// A leader's word on what is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// No leader answered, or it could not tell.
    None,
    /// Its log has something else there, or has ended: what stood here was never committed.
    NeverCommitted { leader: NodeId },
    /// Its log begins above everything that is wanted.
    Trimmed { leader: NodeId, start_offset: u64 },
}

/// Fills as much as the replicas can give. `word` asks leaders to confirm their lead, which costs them a round trip.
///
/// # Errors
/// The mend could not be written.
pub(crate) async fn fill(
    io: &Io,
    mut mend: Mend,
    sources: &Sources,
    word: bool,
) -> Result<(Mend, Filled), String> {
    while let Some(wanted) = mend.wanted() {
        let mut word_heard = Word::None;
        let mut heard = Vec::new();
        let mut progress = false;
        for node in sources.in_order() {
            let answer = match sources.read(node, wanted.offset, word).await {
                Ok(answer) => answer,
                Err(error) => {
                    heard.push((node, error.to_string()));
                    continue;
                }
            };
            if let Some(word) = word_of(&wanted, node, &answer) {
                word_heard = word;
            }
            let (start, end) = (answer.start_offset, answer.end_offset);
            let given = answer.pieces.len();
            let taken;
            (mend, taken) = take(io, mend, answer.pieces).await?;
            progress = taken.count > 0;
            match taken.refused {
                Some(reason) => heard.push((node, reason)),
                None if given == 0 => {
                    heard.push((node, format!("it can't give it; its log is {start}..{end}")));
                }
                None => {}
            }
            if progress {
                break;
            }
        }
        if !progress {
            let stuck = Stuck {
                wanted,
                word: word_heard,
                heard,
            };
            return Ok((mend, Filled::Stuck(stuck)));
        }
    }
    Ok((mend, Filled::Whole))
}

/// What a mend took of an answer.
struct Taken {
    count: usize,
    /// Why it did not take the next one.
    refused: Option<String>,
}

/// Offers batches to a mend, which writes those that it takes.
async fn take(io: &Io, mut mend: Mend, batches: Vec<RepairBatch>) -> Result<(Mend, Taken), String> {
    let offered = offloaded(io, move || {
        let mut taken = Taken {
            count: 0,
            refused: None,
        };
        for batch in batches {
            if mend.wanted().is_none() {
                break;
            }
            match mend.offer(batch) {
                Ok(()) => taken.count += 1,
                Err(error) => {
                    taken.refused = Some(error.to_string());
                    break;
                }
            }
        }
        (mend, taken)
    });
    offered.await.map_err(|error| error.to_string())
}

/// What an answer says about whether `wanted` was ever committed; only a leader's answer says anything.
fn word_of(wanted: &Wanted, leader: NodeId, answer: &LogPieces) -> Option<Word> {
    if !answer.leads {
        return None;
    }
    if answer.start_offset >= wanted.upto_offset && answer.start_offset > wanted.offset {
        return Some(Word::Trimmed {
            leader,
            start_offset: answer.start_offset,
        });
    }
    let ended = answer.end_offset <= wanted.offset;
    let other = wanted.from.is_some_and(|from| {
        let first = answer.pieces.first();
        first.is_some_and(|piece| piece.pos != from || piece.batch.base_offset() != wanted.offset)
    });
    (ended || other).then_some(Word::NeverCommitted { leader })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::LogPos;

    fn wanted() -> Wanted {
        Wanted {
            from: Some(LogPos { term: 3, index: 17 }),
            offset: 10,
            upto_offset: 20,
        }
    }

    fn answer(start_offset: u64, end_offset: u64, leads: bool) -> LogPieces {
        LogPieces {
            start_offset,
            end_offset,
            leads,
            pieces: Vec::new(),
        }
    }

    #[test]
    fn only_a_leader_can_say_that_something_was_never_committed() {
        let node = NodeId(2);
        assert_eq!(word_of(&wanted(), node, &answer(0, 10, false)), None);
        assert_eq!(
            word_of(&wanted(), node, &answer(0, 10, true)),
            Some(Word::NeverCommitted { leader: node })
        );
        // A leader with a hole of its own at the same place says nothing.
        assert_eq!(word_of(&wanted(), node, &answer(0, 30, true)), None);
        let trimmed = Word::Trimmed {
            leader: node,
            start_offset: 25,
        };
        assert_eq!(
            word_of(&wanted(), node, &answer(25, 30, true)),
            Some(trimmed)
        );
    }
}
