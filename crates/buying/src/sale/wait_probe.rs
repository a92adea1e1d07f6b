//! Measures how long a request waits until its worker thread reads it. A late timer does not show that: the system hands over at
//! most a thousand ready connections at a time, and timers run in between, while thousands of connections wait. So a byte is
//! sent through a pair of sockets, and waits in the same line as the requests.

use std::cell::Cell;
use std::io;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

/// The probe of one worker thread.
pub(crate) struct WaitProbe {
    to: UnixStream,
    /// When the byte was sent that has not been read yet.
    sent_at: Cell<Option<Instant>>,
    /// The longest wait of a byte since `take_wait` was called last.
    waited: Cell<Duration>,
}

impl WaitProbe {
    /// A probe for this thread, which must run a `LocalSet`.
    ///
    /// # Errors
    /// The system gives the process no more files.
    pub(crate) fn start() -> io::Result<Rc<Self>> {
        let (to, from) = UnixStream::pair()?;
        let probe = Rc::new(Self { to, sent_at: Cell::default(), waited: Cell::default() });
        tokio::task::spawn_local(Self::read(Rc::downgrade(&probe), from));
        Ok(probe)
    }

    /// Reads until the probe is dropped.
    async fn read(probe: Weak<Self>, mut from: UnixStream) {
        let mut bytes = [0; 16];
        while let Ok(1..) = from.read(&mut bytes).await
            && let Some(probe) = probe.upgrade()
        {
            let waited = probe.sent_at.take().map_or(Duration::ZERO, |sent_at| sent_at.elapsed());
            probe.waited.set(waited.max(probe.waited.get()));
        }
    }

    /// How long the last byte waited, or waits, since this was last asked for. Sends another when it has been read.
    pub(crate) fn take_wait(&self, now: Instant) -> Duration {
        let Some(sent_at) = self.sent_at.get() else {
            if self.to.try_write(&[0]).is_ok() {
                self.sent_at.set(Some(now));
            }
            return self.waited.take();
        };
        now.saturating_duration_since(sent_at)
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::{LocalSet, yield_now};

    use super::*;

    #[tokio::test]
    async fn a_thread_that_is_busy_makes_the_byte_wait() {
        let busy = Duration::from_millis(30);
        let wait = async {
            let probe = WaitProbe::start().unwrap();
            assert_eq!(probe.take_wait(Instant::now()), Duration::ZERO);
            std::thread::sleep(busy);
            assert!(probe.take_wait(Instant::now()) >= busy, "it waits");
            while probe.sent_at.get().is_some() {
                yield_now().await;
            }
            assert!(probe.take_wait(Instant::now()) >= busy, "it has waited");
            assert!(probe.sent_at.get().is_some(), "the next is on its way");
            while probe.sent_at.get().is_some() {
                yield_now().await;
            }
        };
        LocalSet::new().run_until(wait).await;
    }
}
