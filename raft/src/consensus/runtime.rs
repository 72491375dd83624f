//! The async runtime that openraft sees: tokio, with the random generator behind a seam.
//!
//! openraft draws random numbers for election timeouts only. In production they come from the
//! operating system's entropy; a simulation seeds the thread that runs the whole cluster, and the
//! same seed then gives the same timeouts. Nothing here knows about groups or storage.

#![allow(clippy::disallowed_methods, reason = "a seam")]

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use openraft::OptionalSend;
use openraft_rt::AsyncRuntime;
use openraft_rt_tokio::TokioRuntime;
use rand10::SeedableRng;
use rand10::rngs::SmallRng;

thread_local! {
    /// The next seed of this thread's generator; `None` outside of a simulation.
    static THREAD_SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Makes openraft's random numbers on this thread a function of `seed`; `None` restores entropy.
///
/// Meant for single-threaded simulations: other threads are not affected.
pub fn seed_this_thread(seed: Option<u64>) {
    THREAD_SEED.with(|cell| cell.set(seed));
}

/// The increment of splitmix64: consecutive seeds land far apart.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// tokio for everything, [`seed_this_thread`] for random numbers.
pub struct SeamRuntime {
    inner: TokioRuntime,
}

impl fmt::Debug for SeamRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeamRuntime").finish_non_exhaustive()
    }
}

impl AsyncRuntime for SeamRuntime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> =
        <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = <TokioRuntime as AsyncRuntime>::Watch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        TokioRuntime::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        THREAD_SEED.with(|cell| match cell.get() {
            Some(seed) => {
                cell.set(Some(seed.wrapping_add(SEED_STEP)));
                SmallRng::seed_from_u64(seed)
            }
            None => SmallRng::from_rng(&mut rand10::rng()),
        })
    }

    fn new(threads: usize) -> Self {
        SeamRuntime {
            inner: TokioRuntime::new(threads),
        }
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.inner.block_on(future)
    }

    fn spawn_blocking<F, T>(f: F) -> impl Future<Output = Result<T, std::io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        TokioRuntime::spawn_blocking(f)
    }
}
