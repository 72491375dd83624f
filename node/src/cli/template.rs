//! Templates of `consume -f`, in the manner of kcat: text with `%` fields and backslash escapes.
//!
//! Parsed once; writing a record allocates nothing beyond numbers' digits.

use super::time::format_micros;
use super::units::unescape;
use imprint_client::Record;
use std::io::{self, Write};

/// One part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Payload,
    PayloadLength,
    Offset,
    Partition,
    Topic,
    TimeMillis,
    TimeText,
    OriginMillis,
    Id,
    Key,
    KeyLength,
    Headers,
}

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

impl Template {
    /// Reads a template, or says what is wrong with it.
    pub fn parse(text: &str) -> Result<Template, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('%') {
            push_text(&mut pieces, &unescape(&rest[..at])?);
            let mut after = rest[at + 1..].chars();
            let letter = after
                .next()
                .ok_or("a template can't end with a single %; %% is a percent sign")?;
            match field(letter) {
                Some(piece) => pieces.push(piece),
                None if letter == '%' => push_text(&mut pieces, b"%"),
                None => return Err(format!("unknown field %{letter}; see consume --help")),
            }
            rest = after.as_str();
        }
        push_text(&mut pieces, &unescape(rest)?);
        Ok(Template(pieces))
    }

    /// Writes one record.
    pub fn write(
        &self,
        out: &mut impl Write,
        topic: &str,
        partition: u32,
        record: &Record<'_>,
    ) -> io::Result<()> {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.write_all(text)?,
                Piece::Payload => out.write_all(record.payload())?,
                Piece::PayloadLength => write!(out, "{}", record.payload().len())?,
                Piece::Offset => write!(out, "{}", record.offset)?,
                Piece::Partition => write!(out, "{partition}")?,
                Piece::Topic => out.write_all(topic.as_bytes())?,
                Piece::TimeMillis => write!(out, "{}", record.timestamp_us / 1000)?,
                Piece::TimeText => out.write_all(format_micros(record.timestamp_us).as_bytes())?,
                Piece::OriginMillis => write!(out, "{}", record.origin_timestamp_us / 1000)?,
                Piece::Id => write!(out, "{:032x}", record.id())?,
                Piece::Key => out.write_all(record.key().unwrap_or_default())?,
                // As kcat has it: -1 for none, so that an empty key can be told apart.
                Piece::KeyLength => match record.key() {
                    Some(key) => write!(out, "{}", key.len())?,
                    None => out.write_all(b"-1")?,
                },
                Piece::Headers => write_headers(out, record)?,
            }
        }
        Ok(())
    }
}

fn write_headers(out: &mut impl Write, record: &Record<'_>) -> io::Result<()> {
    for (number, (key, value)) in record.headers().enumerate() {
        if number > 0 {
            out.write_all(b",")?;
        }
        out.write_all(key)?;
        out.write_all(b"=")?;
        out.write_all(value)?;
    }
    Ok(())
}

fn push_text(pieces: &mut Vec<Piece>, text: &[u8]) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(Piece::Text(before)) => before.extend_from_slice(text),
        _ => pieces.push(Piece::Text(text.to_vec())),
    }
}

fn field(letter: char) -> Option<Piece> {
    Some(match letter {
        's' => Piece::Payload,
        'S' => Piece::PayloadLength,
        'o' => Piece::Offset,
        'p' => Piece::Partition,
        't' => Piece::Topic,
        'T' => Piece::TimeMillis,
        'U' => Piece::TimeText,
        'P' => Piece::OriginMillis,
        'i' => Piece::Id,
        'k' => Piece::Key,
        'K' => Piece::KeyLength,
        'h' => Piece::Headers,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use imprint_client::{BatchBuilder, BatchLimits, Message, UserHeader, records_of};
    use imprint_proto::batch::{AdmittedBatch, StampedBatch};

    fn stored() -> StampedBatch {
        let limits = BatchLimits::default();
        let mut builder = BatchBuilder::new(limits);
        let message = Message {
            id: 0xab,
            origin_timestamp_us: 1_999_999,
            payload: b"pay\xffload",
            headers: &[UserHeader::text("a", "b"), UserHeader::text("c", "d")],
        };
        builder.push(message).unwrap();
        let bytes = builder.build().unwrap().into_bytes();
        let admitted = AdmittedBatch::admit(bytes, 3, &limits).unwrap();
        admitted.stamp(41, 2_500_000).unwrap()
    }

    fn written(template: &str) -> Vec<u8> {
        let (batch, mut out) = (stored(), Vec::new());
        let template = Template::parse(template).unwrap();
        for record in records_of(&batch) {
            template.write(&mut out, "topic", 7, &record).unwrap();
        }
        out
    }

    #[test]
    fn every_field_is_written() {
        for (template, expected) in [
            ("%s", &b"pay\xffload"[..]),
            ("%S", b"8"),
            ("%o", b"41"),
            ("%p", b"7"),
            ("%t", b"topic"),
            ("%T", b"2500"),
            ("%U", b"1970-01-01T00:00:02.500000Z"),
            ("%P", b"1999"),
            ("%i", b"000000000000000000000000000000ab"),
            ("%k", b""),
            ("%K", b"-1"),
            ("%h", b"a=b,c=d"),
            (r"100%%\t%o\n", b"100%\t41\n"),
            ("", b""),
        ] {
            assert_eq!(written(template), expected, "{template}");
        }
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for bad in ["%", "%z", "%\u{e9}", r"\q", "a%"] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }
}
