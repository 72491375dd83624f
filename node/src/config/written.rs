//! What the operator wrote, exactly, and where: the first of the two configuration types.
//!
//! Nothing is judged here beyond names: a [`Written`] holds the text of each known key with its
//! [`Origin`], the later source winning (file, then environment, then flags), and the list of names
//! that no key has. Values are neither trimmed nor converted; `check` turns them into what the
//! program may use.

use super::{ConfigError, ServeArgs, keys};
use std::{collections::BTreeMap, fmt, path::Path};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    File { path: String, line: usize },
    Env(String),
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::File { path, line } => write!(f, "{path}:{line}"),
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// A value's text: a list keeps its items apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text {
    One(String),
    Many(Vec<String>),
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(text) => write!(f, "{text:?}"),
            Self::Many(items) => write!(f, "{items:?}"),
        }
    }
}

/// One written value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub text: Text,
    pub origin: Origin,
}

/// One `[[listener]]` as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenListener {
    pub name: String,
    pub listen: String,
    pub advertise: String,
    pub origin: Origin,
}

/// Everything that was written.
#[derive(Debug, Clone, Default)]
pub struct Written {
    pub entries: BTreeMap<&'static str, Entry>,
    pub listeners: Vec<WrittenListener>,
}

/// Variables with the prefix that belong to the command line or to container orchestration, which
/// sets names such as `IMPRINT_SERVICE_HOST` for a service called "imprint".
const FOREIGN_VARIABLES: &[&str] = &[
    "IMPRINT_CONFIG",
    "IMPRINT_SERVER",
    "IMPRINT_TIMEOUT",
    "IMPRINT_OUTPUT",
    "IMPRINT_CONTEXT",
];

impl Written {
    /// Gathers file, environment and flags; every problem found is added to `problems`.
    pub fn gather(
        args: &ServeArgs,
        env: &BTreeMap<String, String>,
        problems: &mut Vec<ConfigError>,
    ) -> Self {
        let mut written = Self::default();
        let config = args
            .config
            .clone()
            .or_else(|| env.get("IMPRINT_CONFIG").map(Into::into));
        if let Some(path) = config {
            match std::fs::read_to_string(&path) {
                Ok(text) => written.add_file(&path, &text, problems),
                Err(error) => problems.push(ConfigError::File {
                    path: path.display().to_string(),
                    problem: error.to_string(),
                }),
            }
        }
        written.add_env(env, problems);
        written.add_flags(args, problems);
        written
    }

    fn set(&mut self, path: &str, text: Text, origin: Origin, problems: &mut Vec<ConfigError>) {
        match keys::find(path) {
            Some(key) => {
                self.entries.insert(key.path, Entry { text, origin });
            }
            None => problems.push(ConfigError::unknown(path, origin)),
        }
    }

    /// Adds a TOML file.
    pub fn add_file(&mut self, path: &Path, text: &str, problems: &mut Vec<ConfigError>) {
        let path = path.display().to_string();
        let table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(error) => {
                let line = error.span().map_or(1, |span| line_of(text, span.start));
                problems.push(ConfigError::File {
                    path: format!("{path}:{line}"),
                    problem: error.message().to_string(),
                });
                return;
            }
        };
        let mut file = FileReader {
            path,
            text,
            problems,
            written: self,
        };
        file.table("", table.get_ref());
    }

    fn add_env(&mut self, env: &BTreeMap<String, String>, problems: &mut Vec<ConfigError>) {
        for (name, value) in env.iter().filter(|(name, _)| name.starts_with("IMPRINT_")) {
            let origin = Origin::Env(name.clone());
            if name == "IMPRINT_LISTENERS" {
                self.listeners = parse_listeners(value, &origin, problems);
            } else if let Some(key) = keys::KEYS.iter().find(|key| key.env() == *name) {
                self.set(key.path, one_or_many(key, value), origin, problems);
            } else if !is_foreign(name) {
                problems.push(ConfigError::unknown(name, origin));
            }
        }
    }

    fn add_flags(&mut self, args: &ServeArgs, problems: &mut Vec<ConfigError>) {
        for (path, value) in args.named() {
            if let Some(key) = keys::find(path) {
                let text = one_or_many(key, value);
                self.set(path, text, Origin::Flag(key.flag()), problems);
            }
        }
        for assignment in &args.set {
            let origin = Origin::Flag(format!("--set {assignment}"));
            match assignment.split_once('=') {
                Some((path, value)) => {
                    let text = keys::find(path)
                        .map_or_else(|| Text::One(value.into()), |key| one_or_many(key, value));
                    self.set(path, text, origin, problems);
                }
                None => problems.push(ConfigError::Value {
                    key: assignment.clone(),
                    value: String::new(),
                    allowed: "KEY=VALUE".into(),
                    problem: "has no '='".into(),
                    origin,
                }),
            }
        }
        if !args.listener.is_empty() {
            let origin = Origin::Flag("--listener".into());
            self.listeners = parse_listeners(&args.listener.join(","), &origin, problems);
        }
    }
}

fn is_foreign(name: &str) -> bool {
    FOREIGN_VARIABLES.contains(&name)
        || name.starts_with("IMPRINT_PORT")
        || name.starts_with("IMPRINT_SERVICE_")
}

/// Environment variables and flags write a list as items with commas between.
fn one_or_many(key: &keys::Key, value: &str) -> Text {
    match key.kind {
        keys::Kind::AddressList if value.is_empty() => Text::Many(Vec::new()),
        keys::Kind::AddressList => Text::Many(value.split(',').map(str::to_string).collect()),
        _ => Text::One(value.to_string()),
    }
}

/// Reads `name=listen@advertise` items with commas between.
fn parse_listeners(
    value: &str,
    origin: &Origin,
    problems: &mut Vec<ConfigError>,
) -> Vec<WrittenListener> {
    let mut listeners = Vec::new();
    for item in value.split(',').filter(|item| !item.is_empty()) {
        let parts = item
            .split_once('=')
            .and_then(|(name, rest)| rest.split_once('@').map(|(l, a)| (name, l, a)));
        match parts {
            Some((name, listen, advertise)) => listeners.push(WrittenListener {
                name: name.to_string(),
                listen: listen.to_string(),
                advertise: advertise.to_string(),
                origin: origin.clone(),
            }),
            None => problems.push(ConfigError::Value {
                key: "listener".into(),
                value: item.to_string(),
                allowed: "NAME=LISTEN@ADVERTISE, for example host=0.0.0.0:7463@localhost:7463"
                    .into(),
                problem: "can't be read".into(),
                origin: origin.clone(),
            }),
        }
    }
    listeners
}

fn line_of(text: &str, byte: usize) -> usize {
    1 + text.bytes().take(byte).filter(|b| *b == b'\n').count()
}

struct FileReader<'a> {
    path: String,
    text: &'a str,
    problems: &'a mut Vec<ConfigError>,
    written: &'a mut Written,
}

impl FileReader<'_> {
    fn origin(&self, byte: usize) -> Origin {
        Origin::File {
            path: self.path.clone(),
            line: line_of(self.text, byte),
        }
    }

    fn table(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (name, value) in table.iter() {
            let origin = self.origin(name.span().start);
            let path = match prefix {
                "" => name.get_ref().to_string(),
                prefix => format!("{prefix}.{}", name.get_ref()),
            };
            match value.get_ref() {
                DeValue::Table(inner) if keys::find(&path).is_none() => self.table(&path, inner),
                DeValue::Array(items) if path == "listener" => {
                    let items: Vec<_> = items.iter().collect();
                    self.listeners(&items);
                }
                _ => {
                    let text = self.text_of(value);
                    self.written.set(&path, text, origin, self.problems);
                }
            }
        }
    }

    /// A string's content; for anything else, the characters in the file.
    fn text_of(&self, value: &Spanned<DeValue<'_>>) -> Text {
        match value.get_ref() {
            DeValue::Array(items) => Text::Many(
                items
                    .iter()
                    .map(|item| match self.text_of(item) {
                        Text::One(text) => text,
                        Text::Many(_) => self.text[item.span()].to_string(),
                    })
                    .collect(),
            ),
            DeValue::String(text) => Text::One(text.to_string()),
            DeValue::Integer(number) => Text::One(match number.radix() {
                10 => number.as_str().to_string(),
                _ => self.text[value.span()].to_string(),
            }),
            _ => Text::One(self.text[value.span()].to_string()),
        }
    }

    fn listeners(&mut self, items: &[&Spanned<DeValue<'_>>]) {
        for item in items {
            let mut origin = self.origin(item.span().start);
            let mut fields =
                BTreeMap::from([("name", None), ("listen", None), ("advertise", None)]);
            for (name, value) in item.get_ref().as_table().into_iter().flat_map(|t| t.iter()) {
                origin = self.origin(name.span().start);
                match (fields.get_mut(name.get_ref().as_ref()), value.get_ref()) {
                    (Some(field), DeValue::String(text)) => *field = Some(text.to_string()),
                    (Some(_), _) => {}
                    (None, _) => {
                        let path = format!("listener.{}", name.get_ref());
                        self.problems
                            .push(ConfigError::unknown(&path, origin.clone()));
                    }
                }
            }
            let mut take = |field: &str| {
                let value = fields.get_mut(field).and_then(Option::take);
                if value.is_none() {
                    self.problems.push(ConfigError::Value {
                        key: format!("listener.{field}"),
                        value: String::new(),
                        allowed: "a string; name, listen and advertise are all needed".into(),
                        problem: "is missing or not a string".into(),
                        origin: origin.clone(),
                    });
                }
                value.unwrap_or_default()
            };
            let (name, listen, advertise) = (take("name"), take("listen"), take("advertise"));
            self.written.listeners.push(WrittenListener {
                name,
                listen,
                advertise,
                origin: origin.clone(),
            });
        }
    }
}
