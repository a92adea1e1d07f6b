//! Threads and processes that give way when processors are short.

use std::io;

/// The lowest priority: the thread runs when no other needs the processor, and otherwise gets a small share (about 1/70 of an ordinary
/// thread's).
#[cfg(target_os = "linux")]
const NICE: i32 = 19;

/// The priority of a process of workers: about 10 % of an ordinary process's share while processors are short. That is enough for thousands
/// of orders per second, because an order costs microseconds here. PostgreSQL does most of the work, and keeps its priority.
#[cfg(target_os = "linux")]
const NICE_OF_WORKERS: i32 = 10;

/// Lowers the priority of the calling thread and of all threads that it starts later, so that workers give way to purchases on the same
/// machine. If the process was started with a lower priority, keeps that.
pub fn give_way() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpriority_process, setpriority_process};
        let lowered = getpriority_process(None).and_then(|nice| setpriority_process(None, nice.max(NICE_OF_WORKERS)));
        if let Err(error) = lowered {
            tracing::warn!(%error, "the workers do not give way to purchases");
        }
    }
}

/// Starts a thread of the lowest priority.
///
/// # Errors
/// The system has no thread left.
pub fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name);
    let started = thread.spawn(move || {
        // Set in the thread, so it applies to this thread alone.
        #[cfg(target_os = "linux")]
        if let Err(error) = rustix::process::setpriority_process(None, NICE) {
            tracing::warn!(%error, "a background thread does not give way to purchases");
        }
        work();
    });
    started.map(drop)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn workers_and_the_threads_that_they_start_give_way() {
        let priorities = std::thread::spawn(|| {
            give_way();
            let own = getpriority_process(None).unwrap();
            (own, std::thread::spawn(|| getpriority_process(None).unwrap()).join().unwrap())
        });
        let (own, started) = priorities.join().unwrap();
        assert!(own >= NICE_OF_WORKERS && started == own, "{own}, {started}");
    }
}
