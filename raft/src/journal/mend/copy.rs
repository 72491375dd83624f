//! Copying the good runs of the old file, each batch checked once more on its way.

use super::{Ending, Mend, read_batch};
use crate::journal::damage::is_lost;
use crate::journal::survey::GoodRun;

impl Mend {
    /// Copies the runs that follow on what is there. One that turns out not to follow on is left out: what it held is a hole
    /// then.
    pub(super) fn copy_runs(&mut self) -> std::io::Result<()> {
        while let Some(run) = self.runs.front().copied() {
            let behind = self.offset >= self.plan.end && self.plan.ending != Ending::Log;
            if behind || run.from_offset < self.offset {
                self.runs.pop_front();
                continue;
            }
            if run.from_offset > self.offset {
                if self.offset >= self.plan.end {
                    // Behind all that must be there, and behind a hole: it goes with the torn tail.
                    self.runs.clear();
                }
                return Ok(());
            }
            self.runs.pop_front();
            self.copy_run(run)?;
        }
        Ok(())
    }

    fn copy_run(&mut self, run: GoodRun) -> std::io::Result<()> {
        let Some(source) = self.source.clone() else {
            return Ok(());
        };
        let mut at = run.from_byte;
        while at < run.to_byte {
            if self.plan.ending == Ending::Cut && self.offset >= self.plan.end {
                return Ok(());
            }
            let batch = match read_batch(source.as_ref(), at, self.plan.group) {
                Ok(Ok(batch)) => batch,
                Ok(Err(_)) => return Ok(()),
                Err(error) if is_lost(&error) => return Ok(()),
                Err(error) => return Err(error),
            };
            let follows = batch.verify_chain(self.offset, self.stamp).is_ok();
            let Some(Ok(pos)) = self.expected().filter(|_| follows) else {
                return Ok(());
            };
            self.write(pos, &batch)?;
            at += batch.len();
            self.copied_to = at;
        }
        Ok(())
    }
}
