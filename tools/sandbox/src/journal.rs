//! The bank's file. Each line is one event, and lines are only appended. A killed process loses no line. A machine that loses its power
//! may lose the last ones, because nothing is synced.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use anyhow::{Context, bail};

use super::book::Book;
use super::event::Event;

pub(crate) struct Journal {
    file: File,
    /// The last line may be incomplete, so no other line may follow it.
    has_failed: bool,
}

impl Journal {
    /// Locks the file, and reads all its events into a book.
    pub(crate) fn open(path: &Path) -> anyhow::Result<(Self, Book)> {
        let name = path.display();
        let failed = || format!("cannot open, read or write {name} (sandbox.data_file)");
        let options = OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = options.with_context(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!("{name} (sandbox.data_file) is in use by another process"),
            Err(TryLockError::Error(source)) => return Err(source).with_context(failed),
        }
        let book = read_back(&file).with_context(failed)?;
        Ok((Self { file, has_failed: false }, book))
    }

    /// Writes an event. After a failed write, every call fails.
    pub(crate) fn append(&mut self, event: &Event) -> io::Result<()> {
        if self.has_failed {
            return Err(io::Error::other("an earlier write has failed"));
        }
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.file.write_all(&line).inspect_err(|_| self.has_failed = true)
    }
}

fn read_back(file: &File) -> anyhow::Result<Book> {
    let (mut reader, mut line, mut book) = (BufReader::new(file), Vec::new(), Book::default());
    let (mut whole, mut number) = (0, 0);
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line)? as u64;
        if line.last() != Some(&b'\n') {
            if read > 0 {
                // The line is incomplete, so no caller has seen its event.
                tracing::warn!(
                    bytes = read,
                    "the last line of sandbox.data_file is torn (incomplete); removed the line"
                );
                file.set_len(whole)?;
            }
            return Ok(book);
        }
        (whole, number) = (whole + read, number + 1);
        let event: Event = serde_json::from_slice(&line).with_context(|| format!("line {number}"))?;
        book.apply(&event).with_context(|| format!("line {number}"))?;
    }
}
