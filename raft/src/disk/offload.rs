//! Where blocking disk work runs.
//!
//! Who calls [`Offload::run`] holds no lock: an offload may run the job before it returns.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::Io;

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

/// Runs blocking work and waits for what it gives; an error if the work ended without giving anything.
pub async fn offloaded<T: Send + 'static>(
    io: &Io,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (tell, told) = tokio::sync::oneshot::channel();
    // The receiver is only gone when its task was cancelled.
    io.offload.run(Box::new(move || drop(tell.send(work()))));
    told.await
        .map_err(|_| io::Error::other("the blocking work did not finish"))
}

impl<T: Offload + ?Sized> Offload for Arc<T> {
    fn run(&self, job: Box<dyn FnOnce() + Send>) {
        (**self).run(job);
    }

    fn pause(&self, time: Duration) {
        (**self).pause(time);
    }
}
