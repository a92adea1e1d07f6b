//! The bank's file. Each line is one event, and lines are only appended. One thread writes all lines that wait and then syncs
//! the file, so that one sync serves all callers that wait.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, bail};
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::book::Book;
use super::event::Event;
use super::problem::Problem;

pub struct Journal {
    queue: Arc<WriteQueue>,
    /// The number of the last line that is on the disk. The channel closes when the writer ends.
    durable: watch::Receiver<u64>,
    writer: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

/// Lines that wait for the writer. The server bounds the requests in flight, and so the lines.
#[derive(Default)]
struct WriteQueue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    text: Vec<u8>,
    last: u64,
    closing: bool,
}

impl Journal {
    /// Locks the file, reads all its events into a book, and starts the thread that appends to the file.
    pub fn open(path: &Path) -> anyhow::Result<(Self, Book)> {
        let name = path.display();
        let failed = || format!("cannot open, read or write {name} (sandbox.data_file)");
        let fresh = !path.exists();
        let options = OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = options.with_context(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!("{name} (sandbox.data_file) is in use by another process"),
            Err(TryLockError::Error(source)) => return Err(source).with_context(failed),
        }
        if fresh {
            sync_folder(path).with_context(failed)?;
        }
        let book = read_back(&file).with_context(failed)?;
        let (written, durable) = watch::channel(0);
        let queue = Arc::new(WriteQueue::default());
        let for_writer = Arc::clone(&queue);
        let writer = std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || write(&file, &for_writer, &written))
            .with_context(failed)?;
        Ok((Self { queue, durable, writer: Mutex::new(Some(writer)) }, book))
    }

    /// Queues an event for the writer. The caller must append events in the order in which they change the book.
    pub fn append(&self, event: &Event) {
        let mut waiting = self.queue.waiting.lock();
        // This cannot fail: an event has only numbers, names and keys.
        let _ = serde_json::to_writer(&mut waiting.text, event);
        waiting.text.push(b'\n');
        waiting.last += 1;
        self.queue.changed.notify_one();
    }

    /// The number of the last queued line.
    pub fn last(&self) -> u64 {
        self.queue.waiting.lock().last
    }

    /// Waits until this line and all lines before it are on the disk.
    pub async fn durable(&self, line: u64) -> Result<(), Problem> {
        let waited = self.durable.clone().wait_for(|durable| *durable >= line).await.map(|_| ());
        waited.map_err(|_| Problem::Unwritten)
    }

    /// Waits until the writer ends: a write failed, or the journal was closed.
    pub async fn ended(&self) {
        let mut durable = self.durable.clone();
        while durable.changed().await.is_ok() {}
    }

    /// Writes the lines that wait, and ends the writer.
    pub fn close(&self) -> io::Result<()> {
        self.queue.waiting.lock().closing = true;
        self.queue.changed.notify_one();
        let writer = self.writer.lock().take();
        writer.map_or(Ok(()), |writer| {
            writer.join().unwrap_or_else(|_| Err(io::Error::other("the journal's writer thread panicked")))
        })
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "the last lines of the sandbox's file (sandbox.data_file) could not be written");
        }
    }
}

/// Writes and syncs lines until the journal is closed. A failed write or sync ends the writer, because the lines since the last
/// sync may be missing.
fn write(mut file: &File, queue: &WriteQueue, written: &watch::Sender<u64>) -> io::Result<()> {
    loop {
        let mut waiting = queue.waiting.lock();
        while waiting.text.is_empty() && !waiting.closing {
            queue.changed.wait(&mut waiting);
        }
        if waiting.text.is_empty() {
            return Ok(());
        }
        let (text, last) = (std::mem::take(&mut waiting.text), waiting.last);
        drop(waiting);
        file.write_all(&text)?;
        file.sync_data()?;
        written.send_replace(last);
    }
}

/// Syncs the folder: the name of a new file is on the disk only after that.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn read_back(file: &File) -> anyhow::Result<Book> {
    let (mut reader, mut line, mut book) = (BufReader::new(file), Vec::new(), Book::default());
    let (mut whole, mut number) = (0, 0);
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line)? as u64;
        if line.last() != Some(&b'\n') {
            if read > 0 {
                // The line is incomplete, so no caller has seen its event: an answer waits until its line is on the disk.
                tracing::warn!(
                    bytes = read,
                    "the last line of sandbox.data_file is torn (incomplete); removed the line"
                );
                file.set_len(whole)?;
            }
            // A killed process may not have synced its last lines. They are synced here, before callers can see their events.
            file.sync_all()?;
            return Ok(book);
        }
        (whole, number) = (whole + read, number + 1);
        let event: Event = serde_json::from_slice(&line).with_context(|| format!("line {number}"))?;
        book.apply(&event).with_context(|| format!("line {number}"))?;
    }
}
