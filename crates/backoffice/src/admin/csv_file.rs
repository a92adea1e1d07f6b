//! Files of comma-separated values (RFC 4180), in which no cell is a formula. All such files are written here.

use std::borrow::Cow;
use std::io::Write;

use csv::{ReaderBuilder, StringRecord, Terminator, WriterBuilder};
use serde::Serialize;

/// Writes rows of one kind, whose fields are the columns. The first rows of a file come with the columns' names.
pub fn write_csv<T: Serialize>(
    rows: impl Iterator<Item = T>,
    with_columns: bool,
    out: impl Write,
) -> Result<(), csv::Error> {
    let mut file = WriterBuilder::new().terminator(Terminator::CRLF).from_writer(out);
    for record in records(rows, with_columns)? {
        file.write_record(record.iter().map(|cell| no_formula(cell).into_owned()))?;
    }
    Ok(file.flush()?)
}

/// The cells of each row, after the columns' names.
pub fn records<T: Serialize>(
    mut rows: impl Iterator<Item = T>,
    with_columns: bool,
) -> Result<Vec<StringRecord>, csv::Error> {
    let mut lines = WriterBuilder::new().has_headers(with_columns).from_writer(Vec::new());
    rows.try_for_each(|row| lines.serialize(row))?;
    let lines = lines.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    ReaderBuilder::new().has_headers(false).from_reader(&lines[..]).into_records().collect()
}

/// Spreadsheets calculate a cell that begins so, and a formula can call programs and send data away. With an apostrophe before it, the
/// cell is a text. A cell that has one itself gets another, so different cells stay different. A negative number is no formula. Where the
/// machine's separator is a semicolon, a cell begins after each of them.
fn no_formula(cell: &str) -> Cow<'_, str> {
    let is_number =
        |text: &str| text.strip_prefix('-').is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit() || b == b'.'));
    // Some spreadsheets take the wide forms for the narrow ones.
    let begins = ['=', '+', '-', '@', '\'', '\t', '\r', '\n', '＝', '＋', '－', '＠'];
    let is_formula = |text: &str| text.trim_start_matches([' ', '"']).starts_with(begins) && !is_number(text);
    if !cell.split(';').any(is_formula) {
        return cell.into();
    }
    let parts = cell.split(';').map(|part| if is_formula(part) { format!("'{part}") } else { part.to_owned() });
    parts.collect::<Vec<_>>().join(";").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_rfc_4180_without_formulas() {
        let cells = [
            ("=1+1", "'=1+1"),
            ("+49 30", "'+49 30"),
            ("-2+3", "'-2+3"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("\r=1", "\"'\r=1\""),
            ("＝1", "'＝1"),
            ("'=1", "''=1"),
            ("x;=1+1;", "x;'=1+1;"),
            ("x; ＝1", "x;' ＝1"),
            ("a;b", "a;b"),
            ("-1200.50", "-1200.50"),
            ("a=b", "a=b"),
            ("say \"1,5\"", "\"say \"\"1,5\"\"\""),
            ("two\nlines", "\"two\nlines\""),
            ("", ""),
        ];
        for (cell, written) in cells {
            let mut file = Vec::new();
            write_csv([(7, cell)].into_iter(), false, &mut file).unwrap();
            assert_eq!(String::from_utf8(file).unwrap(), format!("7,{written}\r\n"), "{cell:?}");
        }
    }
}
