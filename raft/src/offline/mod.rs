//! Looking at the files of a node that is not running: one file, or a whole data directory.
//!
//! This is for people and their scripts. It reads what the journal and the state log wrote, with their own parsers, and says
//! what is there, what is damaged, and what the next start would make of it. It works on a copy of a directory as well as on
//! the directory itself, needs no cluster, and knows no topics.
//!
//! * Reading never writes: [`check`] looks at a directory; [`kind`], [`segment`], [`statelog`] and [`small`] look at one file.
//! * [`repair`] alone writes, and only what its plan says.
//! * Files may be of any size: a reader holds one batch or one record, never a file.
//! * Damage is a value, not an error: an error is only what keeps the tool itself from going on, such as the disk.

pub mod check;
pub mod fields;
pub mod kind;
pub mod repair;
mod resync;
pub mod segment;
pub mod small;
pub mod statelog;

pub use fields::{Field, Fields};
pub use kind::{FileKind, recognise};
