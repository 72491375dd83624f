//! Where blocking disk work runs.
//!
//! Who calls [`Offload::run`] holds no lock: an offload may run the job before it returns.

use std::sync::Arc;
use std::time::Duration;

/// Runs blocking jobs away from the caller's task.
pub trait Offload: Send + Sync + 'static {
    /// Runs `job` soon, maybe before this returns. Jobs may run at once beside each other.
    fn run(&self, job: Box<dyn FnOnce() + Send>);

    /// Called in a job: waits, so that background reading leaves room for others. Does nothing where jobs run inline.
    fn pause(&self, _time: Duration) {}
}

/// tokio's pool of blocking threads.
#[derive(Debug, Clone)]
pub struct RealOffload {
    runtime: tokio::runtime::Handle,
}

impl RealOffload {
    /// Uses the blocking threads of `runtime`.
    pub fn new(runtime: tokio::runtime::Handle) -> Self {
        Self { runtime }
    }
}

impl Offload for RealOffload {
    fn run(&self, job: Box<dyn FnOnce() + Send>) {
        drop(self.runtime.spawn_blocking(job));
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Runs every job on the spot: for simulation, where the order of things must depend on nothing but the seed.
#[derive(Debug, Default, Clone, Copy)]
pub struct InlineOffload;

impl Offload for InlineOffload {
    fn run(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}

impl<T: Offload + ?Sized> Offload for Arc<T> {
    fn run(&self, job: Box<dyn FnOnce() + Send>) {
        (**self).run(job);
    }

    fn pause(&self, time: Duration) {
        (**self).pause(time);
    }
}
