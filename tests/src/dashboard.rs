//! The queries of a Grafana dashboard, prepared so that they can be run without Grafana.

use serde_json::Value;

use crate::must;

/// One query of one panel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PanelQuery {
    /// Title of the panel.
    pub panel: String,
    /// The expression, without variables.
    pub expression: String,
}

/// All queries of all panels of a dashboard (its JSON), including those in collapsed rows. Grafana's variables are
/// replaced with values for a Prometheus that scrapes every second: time spans become 10 s, and every other variable
/// becomes `.*`, which is what "All" means in a regular expression. Where a panel shows only the highest series above
/// 0, the query is for all series.
pub fn panel_queries(dashboard: &str) -> Vec<PanelQuery> {
    let dashboard: Value = must(serde_json::from_str(dashboard), "reading a dashboard");
    let mut queries = Vec::new();
    collect(&dashboard["panels"], &mut queries);
    queries
}

fn collect(panels: &Value, queries: &mut Vec<PanelQuery>) {
    for panel in panels.as_array().into_iter().flatten() {
        let title = panel["title"].as_str().unwrap_or_default();
        for target in panel["targets"].as_array().into_iter().flatten() {
            if let Some(expression) = target["expr"].as_str() {
                queries.push(PanelQuery { panel: title.to_owned(), expression: filled(unranked(expression)) });
            }
        }
        collect(&panel["panels"], queries);
    }
}

/// Removes ` and topk(...)` or ` and on (...) topk(...)` from the end. Inside parentheses, it selects the series of a
/// quantile, and stays.
fn unranked(expression: &str) -> &str {
    let is_ranked = |behind: &str| {
        let behind = behind.strip_prefix("on (").and_then(|on| on.split_once(") ")).map_or(behind, |(_, rest)| rest);
        behind.starts_with("topk(")
    };
    let is_whole = |before: &str| before.matches('(').count() == before.matches(')').count();
    let mut ands = expression.match_indices(") and ");
    let ranked = ands.find(|(at, and)| is_whole(&expression[..=*at]) && is_ranked(&expression[at + and.len()..]));
    ranked.map_or(expression, |(at, _)| &expression[..=at])
}

/// Replaces `$name` and `${name}` (with or without `:format`).
fn filled(expression: &str) -> String {
    let mut parts = expression.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, behind) = match part.strip_prefix('{').and_then(|inside| inside.split_once('}')) {
            Some((inside, behind)) => (inside.split(':').next().unwrap_or_default(), behind),
            None => part.split_at(part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len())),
        };
        text.push_str(match name {
            "" => "$",
            "__rate_interval" | "__interval" | "__range" => "10s",
            "__range_s" | "__interval_s" => "10",
            "__range_ms" | "__interval_ms" => "10000",
            _ => ".*",
        });
        text.push_str(behind);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_query_is_found_and_its_variables_are_filled_in() {
        let dashboard = r#"{"panels": [
            {"title": "a", "targets": [{"expr": "rate(x{p=~\"$process\"}[$__rate_interval])"}, {"hide": true}]},
            {"title": "c", "targets": [{"expr": "(x and on (i) y) and topk(3, (x and on (i) y) > 0)"},
                                       {"expr": "(z) and on (i, j) topk(3, z)"},
                                       {"expr": "q(sum(rate(z) and on (i) topk(3, z)))"}]},
            {"type": "row", "panels": [{"title": "b", "targets": [{"expr": "y{p=~\"${p:regex}$\"} / $__range_s"}]}]}
        ]}"#;
        let queries = panel_queries(dashboard);
        let found: Vec<_> = queries.iter().map(|query| (query.panel.as_str(), query.expression.as_str())).collect();
        let expected = [
            ("a", "rate(x{p=~\".*\"}[10s])"),
            ("c", "(x and on (i) y)"),
            ("c", "(z)"),
            ("c", "q(sum(rate(z) and on (i) topk(3, z)))"),
            ("b", "y{p=~\".*$\"} / 10"),
        ];
        assert_eq!(found, expected);
    }
}
