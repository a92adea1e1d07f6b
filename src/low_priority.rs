//! Threads that give way to all others where processors are short.

use std::io;

/// The least that a thread can ask of the scheduler: it gets a processor when no other thread wants it, and a small share
/// (about a seventieth of an ordinary thread's) when one does.
#[cfg(target_os = "linux")]
const NICE: i32 = 19;

/// Starts a thread of the lowest priority.
///
/// # Errors
/// The system has no thread left.
pub fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name);
    let started = thread.spawn(move || {
        // The priority of this thread alone, because it is set in it.
        #[cfg(target_os = "linux")]
        if let Err(error) = rustix::process::setpriority_process(None, NICE) {
            tracing::warn!(%error, "a background thread does not give way to purchases");
        }
        work();
    });
    started.map(drop)
}
