//! Which types a crate's source declares: so that a type that was left off the crate's list shows.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Names of all types declared with `envelope!` or `envelope_union!` below a directory.
pub fn types_below(dir: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    for entry in entries {
        let path = entry.expect("a directory entry").path();
        if path.is_dir() {
            found.extend(types_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("source is text");
            for name in types_in(&text) {
                assert!(found.insert(name.clone()), "{name} is declared twice");
            }
        }
    }
    found
}

fn types_in(source: &str) -> Vec<String> {
    let lines = source.lines().map(str::trim);
    let mut code = lines.filter(|line| !line.starts_with("//"));
    let mut names = Vec::new();
    while let Some(line) = code.next() {
        if line.contains("envelope! {") || line.contains("envelope_union! {") {
            let name = std::iter::once(line).chain(&mut code).find_map(type_name);
            names.push(name.expect("a declaration names a type"));
        }
    }
    names
}

/// `pub struct Name: version 1, ...` is of `Name`.
fn type_name(line: &str) -> Option<String> {
    let (before, _) = line.split_once(": version ")?;
    before.split_whitespace().next_back().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_found_and_comments_are_not() {
        let source = "
            /// envelope! {
            imprint_proto::envelope! {
                /// One.
                #[derive(Debug)]
                pub(crate) struct One: version 0, compat 0 {
                    a: u8,
                }
            }
            envelope_union! { enum Two: version 1, compat 0 { 1 => One(One) } }
        ";
        assert_eq!(types_in(source), ["One", "Two"]);
    }
}
