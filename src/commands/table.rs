//! A table for operators: aligned columns with two blanks between them, without lines.

use comfy_table::{Table, presets};
use serde_json::Value;

/// Blanks between two columns.
const GAP: u16 = 2;

/// A table with aligned columns below their names. Each line begins with `margin`.
pub fn aligned(margin: &str, head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    let rows = rows.into_iter().inspect(|row| {
        debug_assert_eq!(row.len(), head.len(), "a cell for each column: {row:?}");
    });
    table.load_style(presets::NOTHING).set_header(head).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
    }
    table.lines().map(|line| format!("{margin}{}\n", line.trim_end())).collect()
}

/// A JSON value as a cell; "-" for none.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["1", "a longer one"], ["22222", "-"], ["3", "größer"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let table = aligned(" ", &["NO", "WHAT"], rows);
        assert_eq!(table, " NO     WHAT\n 1      a longer one\n 22222  -\n 3      größer\n");
        assert_eq!(aligned("", &["NO", "WHAT"], []), "NO  WHAT\n");
    }
}
