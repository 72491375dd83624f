//! Values of every type, made without anybody writing them down: for the corpus and the fuzzers.
//!
//! The same shape gives the same value in every build, since the corpus keeps its bytes; a change
//! here changes them all. Values need not make sense to whoever gets them, only to the encoding.

use super::Envelope;
use std::collections::BTreeMap;

/// Envelopes in one another beyond this get no more items: a type may contain itself.
const MAX_DEPTH: u32 = 4;

/// What sort of value is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Zero, empty, none; and each declared default.
    Defaults,
    /// Everything is there, and no two numbers are alike.
    Full,
    /// The ends of each range, long byte strings, text outside of ASCII.
    Edge,
}

impl Shape {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Defaults, Self::Full, Self::Edge];

    /// Its name in the corpus.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Defaults => "defaults",
            Self::Full => "full",
            Self::Edge => "edge",
        }
    }
}

/// Makes the fields of one value, one after the other.
#[derive(Debug)]
pub struct Specimens {
    shape: Shape,
    made: u128,
    depth: u32,
    nested: BTreeMap<&'static str, u8>,
}

impl Specimens {
    /// Makes values of one shape.
    pub const fn new(shape: Shape) -> Self {
        Self {
            shape,
            made: 0,
            depth: 0,
            nested: BTreeMap::new(),
        }
    }

    /// The types that were made inside of the first one, with their versions.
    pub fn nested_types(&self) -> &BTreeMap<&'static str, u8> {
        &self.nested
    }

    /// Whether fields with a default take it.
    pub fn takes_defaults(&self) -> bool {
        self.shape == Shape::Defaults
    }

    /// A value by shape; each is told how many were made before it.
    pub fn choose<T>(
        &mut self,
        defaults: fn(u128) -> T,
        full: fn(u128) -> T,
        edge: fn(u128) -> T,
    ) -> T {
        self.made += 1;
        let make = match self.shape {
            Shape::Defaults => defaults,
            Shape::Full => full,
            Shape::Edge => edge,
        };
        make(self.made)
    }

    /// One of so many variants.
    pub fn choice(&mut self, variants: usize) -> usize {
        let number = self.choose(|_| 0, |n| n, |_| u128::MAX);
        (number % variants as u128) as usize
    }

    /// How many items a list, a map or an optional gets.
    pub fn items(&mut self) -> usize {
        if self.depth > MAX_DEPTH {
            return 0;
        }
        self.choose(|_| 0, |_| 2, |_| 1)
    }

    /// A value of a type with a version.
    pub fn nested<T: Envelope>(&mut self) -> T {
        if self.depth > 0 {
            self.nested.insert(T::NAME, T::VERSION);
        }
        self.depth += 1;
        let value = T::specimen_fields(self);
        self.depth -= 1;
        value
    }
}
