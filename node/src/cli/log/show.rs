//! Writing what the offline tools found, and the errors of files.

use super::super::args::Format;
use super::super::exit::CliError;
use super::super::output;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use imprint_raft::offline::{Field, Fields};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Bytes of a payload shown where it is not asked for whole.
const PREVIEW_BYTES: usize = 48;

/// stdout as lines or as objects.
pub struct Out {
    to: BufWriter<File>,
    pub json: bool,
}

impl Out {
    /// Lines for people, or one JSON object a line.
    pub fn streaming(format: Format) -> Result<Out, CliError> {
        if format == Format::Yaml {
            let what = "this file is shown as a stream: -o table or -o json".to_owned();
            return Err(CliError::Usage(what));
        }
        Ok(Out {
            to: output::bulk_stdout()?,
            json: format == Format::Json,
        })
    }

    /// One line, in the form asked for.
    pub fn line(
        &mut self,
        value: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> io::Result<()> {
        if self.json {
            writeln!(self.to, "{}", value())
        } else {
            writeln!(self.to, "{}", text().trim_end())
        }
    }

    /// A line that only people need.
    pub fn heading(&mut self, text: impl FnOnce() -> String) -> io::Result<()> {
        match self.json {
            true => Ok(()),
            false => writeln!(self.to, "{}", text().trim_end()),
        }
    }

    /// Writes what is held back.
    pub fn finish(mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// An error of one file.
pub fn file_error(path: &Path, error: io::Error) -> CliError {
    let path = path.display().to_string();
    match error.kind() {
        io::ErrorKind::NotFound => CliError::NoSuchFile { path },
        _ => CliError::File { path, error },
    }
}

/// Decoded fields as JSON.
pub fn value_of(fields: &Fields) -> Map<String, Value> {
    let values = fields.iter();
    values
        .map(|(name, field)| ((*name).to_owned(), field_value(field)))
        .collect()
}

fn field_value(field: &Field) -> Value {
    match field {
        Field::None => Value::Null,
        Field::Number(n) => (*n).into(),
        Field::Flag(yes) => (*yes).into(),
        Field::Text(text) => text.as_str().into(),
        Field::Hex(_) => field.to_string().into(),
        Field::Many(all) => all
            .iter()
            .map(|fields| Value::Object(value_of(fields)))
            .collect(),
    }
}

/// Decoded fields as `name value` on one line.
pub fn inline(fields: &Fields) -> String {
    let words = fields.iter();
    words
        .map(|(name, field)| format!("{name} {field}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Decoded fields as a line each.
pub fn lines(fields: &Fields) -> String {
    let mut text = String::new();
    for (name, field) in fields {
        text.push_str(&format!("{name:18} {field}\n"));
        if let Field::Many(all) = field {
            for one in all {
                text.push_str(&format!("  {}\n", inline(one)));
            }
        }
    }
    text
}

/// Text as it is; other bytes under the name with `_base64` behind it.
pub fn put_bytes(fields: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => fields.insert(name.to_owned(), text.into()),
        Err(_) => fields.insert(format!("{name}_base64"), STANDARD.encode(bytes).into()),
    };
}

/// Bytes on one line, cut short unless `whole`.
pub fn preview(bytes: &[u8], whole: bool) -> String {
    let shown = if whole {
        bytes
    } else {
        bytes.get(..PREVIEW_BYTES).unwrap_or(bytes)
    };
    let text = match std::str::from_utf8(shown) {
        Ok(text) => text.escape_debug().to_string(),
        Err(_) => shown.escape_ascii().to_string(),
    };
    let more = if shown.len() < bytes.len() { "..." } else { "" };
    format!("\"{text}\"{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn previews_stay_on_one_line_and_short() {
        assert_eq!(preview(b"a\nb", false), r#""a\nb""#);
        assert_eq!(preview(b"\xff\0", false), r#""\xff\x00""#);
        assert_eq!(preview(&[b'x'; 100], false).len(), PREVIEW_BYTES + 5);
        assert_eq!(preview(&[b'x'; 100], true).len(), 102);
    }
}
