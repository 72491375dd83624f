//! `imprint topic options`, and the settings of one topic for people.

use crate::cli::context::Context;
use crate::cli::exit::CliError;
use crate::cli::output::{self, Table};
use crate::controller::settings::{self, SETTINGS, Unit};
use imprint_client::v1;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Prints every setting that a topic may have.
pub(super) fn run(context: &Context) -> Result<(), CliError> {
    let value: Value = SETTINGS
        .iter()
        .map(|setting| {
            json!({
                "name": setting.name,
                "unit": unit(setting.unit),
                "min": setting.min,
                "max": setting.max,
                "may_be_none": setting.may_be_none,
                "default": setting.default,
                "meaning": setting.meaning,
            })
        })
        .collect();
    output::document(context.format, &value, || {
        let mut table = Table::new(&["NAME", "ALLOWED", "DEFAULT", "MEANING"]);
        for setting in SETTINGS {
            table.row([
                setting.name.to_owned(),
                setting.range(),
                setting.default.to_owned(),
                setting.meaning.to_owned(),
            ]);
        }
        table.render()
    })
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "bytes",
        Unit::Milliseconds => "milliseconds",
    }
}

/// A topic's settings with their units; those left at their default are told apart.
pub(super) fn in_force(topic: &v1::Topic) -> Table {
    let mut table = Table::new(&["SETTING", "VALUE"]);
    let known = SETTINGS.iter().map(|setting| (setting.name, None));
    let mut rows: BTreeMap<&str, Option<&str>> = known.collect();
    for (name, value) in &topic.settings {
        rows.insert(name, Some(value));
    }
    for (name, value) in rows {
        let shown = match (value, settings::find(name)) {
            (Some(value), _) => settings::show(name, value),
            (None, setting) => format!("default: {}", setting.map_or("", |s| s.default)),
        };
        table.row([name.to_owned(), shown]);
    }
    table
}
