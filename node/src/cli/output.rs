//! Writing: data to stdout as a table, JSON or YAML, talk to stderr.
//!
//! Nothing here panics on a closed pipe, which is why `println!` is not used.

use super::args::Format;
use super::context::Context;
use super::exit::CliError;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;

/// Bytes gathered before a write to stdout.
const STDOUT_BUFFER_BYTES: usize = 1 << 20;

/// stdout for volume: without the standard library's line buffering.
pub fn bulk_stdout() -> io::Result<BufWriter<File>> {
    let fd = io::stdout().as_fd().try_clone_to_owned()?;
    Ok(BufWriter::with_capacity(
        STDOUT_BUFFER_BYTES,
        File::from(fd),
    ))
}

/// A line of talk; a closed stderr is not worth a word.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Whether error lines are coloured.
pub fn stderr_color(no_color: bool) -> bool {
    let refused = no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && io::stderr().is_terminal()
}

/// Writes one document in the form asked for; `table` is made only if needed.
pub fn document(
    format: Format,
    value: &Value,
    table: impl FnOnce() -> String,
) -> Result<(), CliError> {
    let text = match format {
        Format::Table => table(),
        Format::Json => format!("{value:#}\n"),
        Format::Yaml => yaml(value),
    };
    let mut stdout = io::stdout().lock();
    quiet_if_closed(
        stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush()),
    )?;
    Ok(())
}

/// A reader that went away is the end of the output, not an error.
pub fn quiet_if_closed(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// `imprint version`.
pub fn version(context: &Context) -> Result<(), CliError> {
    let version = env!("CARGO_PKG_VERSION");
    document(context.format, &json!({ "version": version }), || {
        format!("imprint {version}\n")
    })
}

/// Columns aligned by their widest cell.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(headings: &[&str]) -> Table {
        Table {
            rows: vec![
                headings
                    .iter()
                    .map(|heading| (*heading).to_owned())
                    .collect(),
            ],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The text, each line ended by a newline and without spaces before it.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:width$}  "));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A JSON value as a YAML document. Strings and keys are written in YAML's double-quoted form, which
/// JSON's strings are a part of, so that nothing is ever read as another type.
pub fn yaml(value: &Value) -> String {
    let mut text = String::new();
    yaml_node(value, 0, &mut text);
    text
}

fn yaml_node(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, field) in fields {
                let key = Value::from(key.as_str());
                text.push_str(&format!("{indent}{key}:"));
                yaml_below(field, depth, text);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                text.push_str(&format!("{indent}-"));
                yaml_below(item, depth, text);
            }
        }
        scalar => text.push_str(&format!("{indent}{scalar}\n")),
    }
}

fn yaml_below(value: &Value, depth: usize, text: &mut String) {
    let nested = match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    if nested {
        text.push('\n');
        yaml_node(value, depth + 1, text);
    } else {
        text.push_str(&format!(" {value}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align() {
        let mut table = Table::new(&["NAME", "N"]);
        table.row(["a".to_owned(), "10".to_owned()]);
        table.row(["longer".to_owned(), String::new()]);
        assert_eq!(table.render(), "NAME    N\na       10\nlonger\n");
    }

    #[test]
    fn yaml_nests_and_quotes() {
        let value = json!({ "a": [1, { "b": "no", "c": [] }], "d": null });
        let expected = "\"a\":\n  - 1\n  -\n    \"b\": \"no\"\n    \"c\": []\n\"d\": null\n";
        assert_eq!(yaml(&value), expected);
        assert_eq!(yaml(&json!("x")), "\"x\"\n");
    }
}
