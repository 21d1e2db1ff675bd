//! Alert rules, sped up for tests.

/// Time that an alert waits in a test before it fires.
const FOR: &str = "2s";
/// The window of a rate: ten of a test's scrapes (one per second), as five minutes are ten scrapes every 30 seconds.
const WINDOW: &str = "10s";

/// The text of a Prometheus rule file with every time shortened: `for` and `keep_firing_for` become 2 s, the windows of
/// range selectors (`[5m]`) 10 s, those of subqueries (`[1h:1m]`) 10 s in steps of 1 s, offsets 10 s, and a group's own
/// interval 1 s. Thresholds, expressions and labels stay, so the rule itself is what is tested: a rate does not depend
/// on its window, and a fault that lasts longer than the window looks the same in ten seconds as in five minutes. This
/// cannot test how long the rule really waits, which promtool's unit tests do.
pub fn rescaled(rules: &str) -> String {
    rules.split_inclusive('\n').map(|line| with_short_offsets(&with_short_windows(&with_short_key(line)))).collect()
}

/// The expression of an alert in the text of a Prometheus rule file that writes each expression as a block (`expr: |`).
pub fn expression(rules: &str, alert: &str) -> Option<String> {
    let mut lines = rules.lines().skip_while(|line| line.trim() != format!("- alert: {alert}")).skip(1);
    let key = lines.next()?;
    let indent = key.strip_suffix("expr: |")?.len();
    let block = lines.take_while(|line| line.len() - line.trim_start().len() > indent);
    Some(block.map(str::trim).collect::<Vec<_>>().join(" "))
}

/// Shortens `for: 5m` and the like, where this is the key of the line.
fn with_short_key(line: &str) -> String {
    let Some((key, rest)) = line.split_once(':') else {
        return line.to_owned();
    };
    let short = match key.trim_start().trim_start_matches("- ") {
        "for" | "keep_firing_for" => FOR,
        "interval" => "1s",
        _ => return line.to_owned(),
    };
    let value = rest.trim();
    if is_duration(value) { format!("{key}:{}", rest.replacen(value, short, 1)) } else { line.to_owned() }
}

/// Shortens a duration in brackets, or two with a colon between them.
fn with_short_windows(line: &str) -> String {
    let mut short = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('[') {
        short.push_str(before);
        short.push('[');
        rest = after;
        let Some((inside, behind)) = after.split_once(']') else {
            break;
        };
        match inside.split_once(':') {
            None if is_duration(inside) => short.push_str(WINDOW),
            Some((window, step)) if is_duration(window) && (step.is_empty() || is_duration(step)) => {
                short.push_str(WINDOW);
                short.push_str(":1s");
            }
            _ => continue,
        }
        short.push(']');
        rest = behind;
    }
    short + rest
}

/// Shortens `offset 5m`.
fn with_short_offsets(line: &str) -> String {
    let mut parts = line.split("offset ");
    let mut short = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(part.len());
        let (duration, behind) = part.split_at(end);
        short.push_str("offset ");
        short.push_str(if is_duration(duration) { WINDOW } else { duration });
        short.push_str(behind);
    }
    short
}

/// Whether the text is a duration such as `5m`, `1h30m`, `500ms`.
fn is_duration(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.ends_with(|c: char| "smhdwy".contains(c))
        && text.chars().all(|c| c.is_ascii_digit() || "smhdwy".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_the_block_of_its_alert() {
        let rules =
            "  - alert: A\n    expr: |\n      a\n        > 1\n    for: 5m\n  - alert: B\n    expr: |\n      b\n";
        assert_eq!(expression(rules, "A").as_deref(), Some("a > 1"));
        assert_eq!(expression(rules, "B").as_deref(), Some("b"));
        assert_eq!(expression(rules, "C"), None);
    }

    #[test]
    fn times_become_short_and_nothing_else_changes() {
        let rules = "groups:\n- name: 5m\n  interval: 30s\n  rules:\n  - alert: A\n    for: 10m\n    \
             keep_firing_for: 1h\n\
                     \x20   expr: |\n      rate(a:rate5m{b=\"[x]\"}[5m]) / increase(c[1h30m] offset 5m) > 0.5\n\
                     \x20     and max_over_time(d[1h:1m]) > 5\n    annotations:\n      summary: 'for 5m, [a] and \
                     [3]'\n";
        let expected = "groups:\n- name: 5m\n  interval: 1s\n  rules:\n  - alert: A\n    for: 2s\n    \
             keep_firing_for: 2s\n\
                     \x20   expr: |\n      rate(a:rate5m{b=\"[x]\"}[10s]) / increase(c[10s] offset 10s) > 0.5\n\
                     \x20     and max_over_time(d[10s:1s]) > 5\n    annotations:\n      summary: 'for 5m, [a] and \
                     [3]'\n";
        assert_eq!(rescaled(rules), expected);
    }
}
