//! Cuts a stream of bytes into messages at a delimiter, a chunk at a time.
//!
//! Holds at most one unfinished message, and refuses one that could not be sent anyway.

use memchr::memmem::Finder;
use thiserror::Error;

/// A message longer than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("message {number} is longer than {limit} bytes, the most that a batch may hold")]
pub struct TooLong {
    /// Number of the message in the input, from 1.
    pub number: u64,
    /// The limit.
    pub limit: usize,
}

/// Cuts at a delimiter; without one, everything is one message.
#[derive(Debug)]
pub struct Splitter {
    finder: Option<Finder<'static>>,
    keep: bool,
    limit: usize,
    /// The unfinished message, or the whole of what was pushed while it is being cut.
    held: Vec<u8>,
    /// Where the next message begins in `held`.
    begin: usize,
    /// Where the search for its end goes on: what is before was searched.
    searched: usize,
    found: u64,
}

impl Splitter {
    /// `keep` leaves the delimiter at the end of each message. No message may exceed `limit` bytes.
    pub fn new(delimiter: &[u8], keep: bool, limit: usize) -> Splitter {
        Splitter {
            finder: (!delimiter.is_empty()).then(|| Finder::new(delimiter).into_owned()),
            keep,
            limit,
            held: Vec::new(),
            begin: 0,
            searched: 0,
            found: 0,
        }
    }

    /// Adds input. Take all messages out before adding more.
    pub fn push(&mut self, chunk: &[u8]) {
        self.held.drain(..self.begin);
        self.searched -= self.begin;
        self.begin = 0;
        self.held.extend_from_slice(chunk);
    }

    /// The next whole message of what was added.
    pub fn next_message(&mut self) -> Result<Option<&[u8]>, TooLong> {
        let Some(finder) = &self.finder else {
            return self.checked_rest().map(|()| None);
        };
        let width = finder.needle().len();
        let Some(at) = finder.find(&self.held[self.searched..]) else {
            // A delimiter may be cut in two by the chunks: its first part is searched again.
            let keep_back = self.held.len().saturating_sub(width - 1);
            self.searched = keep_back.max(self.begin);
            return self.checked_rest().map(|()| None);
        };
        let end = self.searched + at;
        let message_end = if self.keep { end + width } else { end };
        let begin = self.begin;
        self.begin = end + width;
        self.searched = self.begin;
        self.found += 1;
        if message_end - begin > self.limit {
            return Err(TooLong {
                number: self.found,
                limit: self.limit,
            });
        }
        Ok(Some(&self.held[begin..message_end]))
    }

    /// What is left when the input is over: a last message without a delimiter, if there is any byte.
    pub fn rest(&mut self) -> Option<&[u8]> {
        let begin = self.begin;
        self.begin = self.held.len();
        self.searched = self.begin;
        (begin < self.held.len()).then(|| &self.held[begin..])
    }

    fn checked_rest(&self) -> Result<(), TooLong> {
        if self.held.len() - self.begin > self.limit {
            return Err(TooLong {
                number: self.found + 1,
                limit: self.limit,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cuts `input`, given in chunks of `size`; the last one may lack its delimiter.
    fn cut(input: &[u8], delimiter: &[u8], keep: bool, size: usize) -> Vec<Vec<u8>> {
        let mut splitter = Splitter::new(delimiter, keep, 100);
        let mut messages = Vec::new();
        for chunk in input.chunks(size) {
            splitter.push(chunk);
            while let Some(message) = splitter.next_message().unwrap() {
                messages.push(message.to_vec());
            }
        }
        messages.extend(splitter.rest().map(<[u8]>::to_vec));
        messages
    }

    #[test]
    fn chunks_make_no_difference() {
        let input = b"one\r\ntwo\r\r\n\r\nlast\r";
        for size in 1..=input.len() {
            let expected: [&[u8]; 4] = [b"one", b"two\r", b"", b"last\r"];
            assert_eq!(cut(input, b"\r\n", false, size), expected, "{size}");
        }
    }

    #[test]
    fn a_last_line_counts_with_and_without_its_end() {
        assert_eq!(cut(b"a\nb", b"\n", false, 2), [b"a", b"b"]);
        assert_eq!(cut(b"a\nb\n", b"\n", false, 2), [b"a", b"b"]);
        assert_eq!(cut(b"\n", b"\n", false, 2), [b""]);
        assert!(cut(b"", b"\n", false, 2).is_empty());
    }

    #[test]
    fn kept_delimiters_join_to_the_input() {
        let input = b"a\n\nbc\nlast";
        for size in 1..=input.len() {
            let messages = cut(input, b"\n", true, size);
            assert_eq!(messages.concat(), input);
            assert_eq!(messages.len(), 4);
        }
    }

    #[test]
    fn without_a_delimiter_all_is_one() {
        assert_eq!(cut(b"a\nb\n", b"", false, 1), [b"a\nb\n"]);
    }

    #[test]
    fn a_message_above_the_limit_is_named() {
        let mut splitter = Splitter::new(b"\n", false, 3);
        splitter.push(b"abc\nabcd");
        assert_eq!(splitter.next_message(), Ok(Some(&b"abc"[..])));
        let too_long = TooLong {
            number: 2,
            limit: 3,
        };
        assert_eq!(splitter.next_message(), Err(too_long));
        let mut splitter = Splitter::new(b"", false, 3);
        splitter.push(b"abcd");
        assert!(splitter.next_message().is_err());
    }
}
