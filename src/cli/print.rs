//! How commands print: tables for people, JSON and CSV for programs. All output to stdout passes here.

use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind, Write};

use comfy_table::{LineStyle, Table, TableStyle};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::arguments::Format;
pub(super) use seckill_backoffice::admin::order_lines::time;

/// A writer that discards all bytes once its reader has gone: `seckill orders | head` is no error.
struct UntilClosed<W>(W);

impl<W: Write> Write for UntilClosed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(bytes.len()),
            result => result,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0.flush() {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }
}

fn stdout() -> impl Write {
    BufWriter::new(UntilClosed(io::stdout().lock()))
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

/// Prints rows of one kind; the fields of `T` are the columns.
pub(super) fn rows<T: Serialize>(rows: impl Iterator<Item = T>, format: Format) -> anyhow::Result<()> {
    let mut out = stdout();
    match format {
        Format::Json => write_json(&rows.collect::<Vec<_>>(), &mut out)?,
        Format::Csv => write_csv(rows, &mut out)?,
        Format::Table => write_table(rows, &mut out)?,
    }
    Ok(out.flush()?)
}

pub(super) fn json(document: &impl Serialize) -> anyhow::Result<()> {
    let mut out = stdout();
    write_json(document, &mut out)?;
    Ok(out.flush()?)
}

pub(super) fn lines<T: Display>(texts: impl IntoIterator<Item = T>) -> anyhow::Result<()> {
    let mut out = stdout();
    for text in texts {
        writeln!(out, "{text}")?;
    }
    Ok(out.flush()?)
}

fn write_json(document: &impl Serialize, mut out: impl Write) -> anyhow::Result<()> {
    serde_json::to_writer(&mut out, document)?;
    Ok(writeln!(out)?)
}

fn write_csv<T: Serialize>(rows: impl Iterator<Item = T>, out: impl Write) -> anyhow::Result<()> {
    let mut csv = csv::Writer::from_writer(out);
    for row in rows {
        csv.serialize(row)?;
    }
    Ok(csv.flush()?)
}

fn write_table<T: Serialize>(rows: impl Iterator<Item = T>, mut out: impl Write) -> anyhow::Result<()> {
    // The CSV writer turns fields into cells; a table is the same cells, aligned.
    let mut bytes = Vec::new();
    write_csv(rows, &mut bytes)?;
    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')));
    for (place, record) in csv::ReaderBuilder::new().has_headers(false).from_reader(&bytes[..]).records().enumerate() {
        let record = record?;
        let cells: Vec<&str> = record.iter().collect();
        if place == 0 {
            table.set_header(cells)
        } else {
            table.add_row(cells)
        };
    }
    if table.row_count() == 0 {
        return Ok(writeln!(out, "no rows")?);
    }
    Ok(writeln!(out, "{}", table.trim_fmt())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> impl Iterator<Item = Row<3>> {
        let row = |id: i64, name: &str| Row([("id", id.into()), ("name", name.into()), ("ends_at", Value::Null)]);
        [row(1, "kettle"), row(20, "phone, red")].into_iter()
    }

    #[test]
    fn a_row_has_its_columns_in_order() {
        let (mut csv, mut json, mut table) = (Vec::new(), Vec::new(), Vec::new());
        write_csv(rows(), &mut csv).unwrap();
        write_json(&rows().next(), &mut json).unwrap();
        write_table(rows(), &mut table).unwrap();
        let [csv, json, table] = [csv, json, table].map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(csv, "id,name,ends_at\n1,kettle,\n20,\"phone, red\",\n");
        assert_eq!(json, "{\"id\":1,\"name\":\"kettle\",\"ends_at\":null}\n");
        // A line below the header, and none below the rows.
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4, "{table}");
        assert!(lines[0].contains("name") && lines[1].chars().all(|c| c == '─') && lines[3].contains("phone, red"));
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
        assert!(write_csv(rows(), UntilClosed(Failing(ErrorKind::BrokenPipe))).is_ok());
        assert!(write_json(&1, UntilClosed(Failing(ErrorKind::BrokenPipe))).is_ok());
        assert!(write_csv(rows(), UntilClosed(Failing(ErrorKind::StorageFull))).is_err());
    }
}
