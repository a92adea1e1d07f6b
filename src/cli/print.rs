//! How commands print: tables for people, JSON and CSV for programs. All output to stdout passes here.

use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind, Write};

use comfy_table::{ColumnConstraint, LineStyle, Table, TableStyle, Width};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::CutList;
use super::arguments::{Format, ListArgs};
use seckill_backoffice::admin::csv_file;
pub(super) use seckill_backoffice::admin::order_lines::time;
use seckill_postgres::LedgerError;

/// Rows that are read, and in memory, at a time.
const PAGE: i64 = 1000;

/// A writer that discards all bytes once its reader has gone: `seckill orders | head` is no error.
struct UntilClosed<W> {
    out: W,
    closed: bool,
}

impl<W: Write> UntilClosed<W> {
    fn checked<T>(&mut self, result: io::Result<T>, without_reader: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(without_reader)
            }
            result => result,
        }
    }
}

impl<W: Write> Write for UntilClosed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.checked(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.checked(flushed, ())
    }
}

fn buffered<W: Write>(out: W) -> BufWriter<UntilClosed<W>> {
    BufWriter::new(UntilClosed { out, closed: false })
}

fn stdout() -> BufWriter<UntilClosed<impl Write>> {
    buffered(io::stdout())
}

/// A row of a table, which is an object in JSON: its columns in order.
pub(super) struct Row<const N: usize>(pub(super) [(&'static str, Value); N]);

impl<const N: usize> Serialize for Row<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_struct("Row", N)?;
        self.0.iter().try_for_each(|(column, value)| row.serialize_field(column, value))?;
        row.end()
    }
}

/// Prints all rows of a short list; the fields of `T` are the columns.
pub(super) fn rows<T: Serialize>(rows: impl Iterator<Item = T>, format: Format) -> anyhow::Result<()> {
    let mut list = List::new(stdout(), format);
    list.append(rows)?;
    list.end()
}

/// Prints a list of any length, a page in memory at a time. `next` reads the entries after the last one of the page before, at most so
/// many; an empty page is the end. Fails with `CutList` after the last printed row if the limit leaves out further rows.
pub(super) async fn pages<E: Clone, T: Serialize>(
    args: &ListArgs,
    mut next: impl AsyncFnMut(Option<E>, i64) -> Result<Vec<E>, LedgerError>,
    row: impl Fn(E) -> T,
) -> anyhow::Result<()> {
    let (limit, mut last) = (args.rows_max(), None);
    let (mut list, mut left) = (None, limit.unwrap_or(i64::MAX));
    let is_cut = loop {
        // One row more than is printed shows that there are more.
        let mut page = next(last, PAGE.min(left.saturating_add(1))).await?;
        // Nothing is printed before the first answer: the list may be unreadable.
        let list = list.get_or_insert_with(|| List::new(stdout(), args.format));
        last = page.last().cloned();
        let read = i64::try_from(page.len())?;
        page.truncate(usize::try_from(left)?);
        list.append(page.into_iter().map(&row))?;
        if read == 0 || read > left || list.out.get_ref().closed {
            break read > left;
        }
        left -= read;
    };
    list.map_or(Ok(()), List::end)?;
    match limit {
        Some(limit) if is_cut => Err(CutList(limit).into()),
        _ => Ok(()),
    }
}

/// Prints a list that PostgreSQL has to compute as a whole. It was read with `ListArgs::read_max`.
pub(super) fn whole<E, T: Serialize>(args: &ListArgs, mut entries: Vec<E>, row: impl Fn(E) -> T) -> anyhow::Result<()> {
    let cut = args.rows_max().filter(|limit| i64::try_from(entries.len()).is_ok_and(|read| read > *limit));
    if let Some(limit) = cut {
        entries.truncate(usize::try_from(limit)?);
    }
    rows(entries.into_iter().map(row), args.format)?;
    cut.map_or(Ok(()), |limit| Err(CutList(limit).into()))
}

pub(super) fn json(document: &impl Serialize) -> anyhow::Result<()> {
    let mut out = stdout();
    serde_json::to_writer(&mut out, document)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

pub(super) fn lines<T: Display>(texts: impl IntoIterator<Item = T>) -> anyhow::Result<()> {
    let mut out = stdout();
    for text in texts {
        writeln!(out, "{text}")?;
    }
    Ok(out.flush()?)
}

/// A list that is printed in parts.
struct List<W: Write> {
    out: BufWriter<UntilClosed<W>>,
    format: Format,
    rows: usize,
    /// The widths of the table's columns in the parts before.
    widths: Vec<u16>,
}

impl<W: Write> List<W> {
    fn new(out: BufWriter<UntilClosed<W>>, format: Format) -> Self {
        Self { out, format, rows: 0, widths: Vec::new() }
    }

    fn append<T: Serialize>(&mut self, rows: impl Iterator<Item = T>) -> anyhow::Result<()> {
        let (is_first, mut n) = (self.rows == 0, self.rows);
        let mut rows = rows.inspect(|_| n += 1);
        match self.format {
            Format::Json => {
                for (place, row) in rows.enumerate() {
                    self.out.write_all(if is_first && place == 0 { b"[" } else { b"," })?;
                    serde_json::to_writer(&mut self.out, &row)?;
                }
            }
            Format::Csv => csv_file::write_csv(&mut rows, is_first, &mut self.out)?,
            Format::Table => self.widths = write_table(&mut rows, is_first, &self.widths, &mut self.out)?,
        }
        self.rows = n;
        Ok(())
    }

    fn end(mut self) -> anyhow::Result<()> {
        match (self.format, self.rows) {
            (Format::Json, 0) => writeln!(self.out, "[]")?,
            (Format::Json, _) => writeln!(self.out, "]")?,
            (Format::Table, 0) => writeln!(self.out, "no rows")?,
            _ => {}
        }
        Ok(self.out.flush()?)
    }
}

/// Writes a part of a table, whose columns are at least so wide. Returns how wide they are.
fn write_table<T: Serialize>(
    rows: impl Iterator<Item = T>,
    with_columns: bool,
    widths: &[u16],
    mut out: impl Write,
) -> anyhow::Result<Vec<u16>> {
    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')));
    for (place, record) in csv_file::records(rows, with_columns)?.into_iter().enumerate() {
        // What other people wrote must not control the terminal.
        let shown = |cell: &str| cell.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}");
        let cells: Vec<String> = record.iter().map(shown).collect();
        if with_columns && place == 0 {
            table.set_header(cells);
        } else {
            table.add_row(cells);
        }
    }
    if table.row_count() == 0 {
        return Ok(widths.to_vec());
    }
    let padding = 2;
    table.set_constraints(widths.iter().map(|width| ColumnConstraint::LowerBoundary(Width::Fixed(width + padding))));
    writeln!(out, "{}", table.trim_fmt())?;
    let own = table.column_max_content_widths();
    Ok(own.iter().enumerate().map(|(n, own)| widths.get(n).map_or(*own, |before| *own.max(before))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> impl Iterator<Item = Row<3>> {
        let row = |id: i64, name: &str| Row([("id", id.into()), ("name", name.into()), ("ends_at", Value::Null)]);
        [row(1, "kettle"), row(20, "phone, red"), row(-3, "=1\u{1b}[2J")].into_iter()
    }

    /// A list as it is printed, in parts of so many rows.
    fn printed(format: Format, part: usize) -> String {
        let (mut out, mut rest) = (Vec::new(), rows().peekable());
        let mut list = List::new(buffered(&mut out), format);
        while rest.peek().is_some() {
            list.append(rest.by_ref().take(part)).unwrap();
        }
        list.end().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_list_in_parts_is_one_list() {
        let json = r#"[{"id":1,"name":"kettle","ends_at":null},{"id":20,"name":"phone, red","ends_at":null},"#;
        for part in 1..=3 {
            let csv = "id,name,ends_at\r\n1,kettle,\r\n20,\"phone, red\",\r\n-3,'=1\u{1b}[2J,\r\n";
            assert_eq!(printed(Format::Csv, part), csv);
            assert!(printed(Format::Json, part).starts_with(json));
            assert_eq!(serde_json::from_str::<Vec<Value>>(&printed(Format::Json, part)).unwrap()[2]["id"], -3);
            // A line below the header, and none below the rows.
            let table = printed(Format::Table, part);
            let lines: Vec<&str> = table.lines().collect();
            assert_eq!(lines.len(), 5, "{table}");
            assert!(lines[0].contains("name") && lines[1].chars().all(|c| c == '─') && lines[3].contains("phone, red"));
            assert!(lines[4].contains("=1\u{fffd}[2J"), "{table}");
            // Columns stay in line after a wider row.
            assert_eq!(lines[3].find("phone"), lines[4].find("=1"), "{table}");
        }
        let empty = |format| {
            let mut out = Vec::new();
            List::new(buffered(&mut out), format).end().unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!([Format::Json, Format::Csv, Format::Table].map(empty), ["[]\n", "", "no rows\n"]);
    }

    #[test]
    fn a_closed_pipe_is_no_error_and_another_failure_is() {
        struct Failing(ErrorKind);
        impl Write for Failing {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(self.0.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Err(self.0.into())
            }
        }
        let print = |kind, format| {
            let mut list = List::new(buffered(Failing(kind)), format);
            let appended = list.append(rows());
            appended.and_then(|()| list.end())
        };
        for format in [Format::Csv, Format::Json, Format::Table] {
            assert!(print(ErrorKind::BrokenPipe, format).is_ok());
            assert!(print(ErrorKind::StorageFull, format).is_err());
        }
    }
}
