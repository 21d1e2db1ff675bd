//! How text looks: colors of the terminal's own palette, which suit light and dark ones, or none; UTF-8 or ASCII.

use ratatui::style::{Color, Modifier, Style};

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theme {
    /// Whether colors may be used.
    pub color: bool,
    /// Whether only ASCII may be used.
    pub ascii: bool,
}

/// Colors of the causes, in their order.
const CAUSES: [Color; 5] = [Color::Green, Color::Red, Color::Magenta, Color::Yellow, Color::Cyan];

/// Letters of the causes, in their order: bars can be read without colors.
pub const LETTERS: [char; 5] = ['u', 'A', 'S', 'W', 'M'];

/// The letter of what nobody reads.
pub const NOBODY_READS: char = '!';

impl Theme {
    /// The theme for this environment: `NO_COLOR`, `TERM` and the locale.
    pub fn of(no_color: Option<&str>, term: Option<&str>, locale: Option<&str>) -> Self {
        let dumb = term.is_none_or(|term| term.is_empty() || term == "dumb" || term.ends_with("-m"));
        let utf8 = locale.is_some_and(|locale| {
            let locale = locale.to_lowercase();
            locale.contains("utf-8") || locale.contains("utf8")
        });
        Self { color: !dumb && no_color.is_none_or(str::is_empty), ascii: !utf8 || term == Some("dumb") }
    }

    /// Style of a cause.
    pub fn cause(self, cause: usize) -> Style {
        self.colored(CAUSES[cause])
    }

    /// Style of what needs attention now.
    pub fn alarm(self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Style of what is as it should be, and of the names of values.
    pub fn quiet(self) -> Style {
        if self.color { Style::new().add_modifier(Modifier::DIM) } else { Style::new() }
    }

    /// Style of headings.
    pub fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Style of the selected row.
    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Style of sparklines and bars.
    pub fn bar(self) -> Style {
        self.colored(Color::Blue)
    }

    fn colored(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    /// The arrow at the column by which rows are sorted.
    pub fn arrow(self, descending: bool) -> char {
        match (self.ascii, descending) {
            (true, true) => 'v',
            (true, false) => '^',
            (false, true) => '▼',
            (false, false) => '▲',
        }
    }

    /// A bar of `width` cells, of which a share is filled.
    pub fn filled(self, share: f64, width: usize) -> String {
        let share = share.clamp(0.0, 1.0);
        if self.ascii {
            let full = (share * width as f64).round() as usize;
            return format!("{}{}", "#".repeat(full), ".".repeat(width - full));
        }
        // In eighths of a cell.
        let eighths = (share * width as f64 * 8.0).round() as usize;
        let mut bar: String = "█".repeat(eighths / 8);
        if !eighths.is_multiple_of(8) {
            bar.extend(char::from_u32(0x2590 - (eighths % 8) as u32));
        }
        let used = eighths.div_ceil(8);
        bar + &"·".repeat(width - used)
    }

    /// A line with one character for each value; `most` has the highest one.
    pub fn spark(self, values: impl Iterator<Item = f64>, most: f64) -> String {
        let levels: &[char] = if self.ascii {
            &['_', '.', ':', '-', '=', '+', '*', '#']
        } else {
            &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
        };
        let level = |value: f64| {
            let share = if most > 0.0 { (value / most).clamp(0.0, 1.0) } else { 0.0 };
            levels[((share * levels.len() as f64) as usize).min(levels.len() - 1)]
        };
        values.map(level).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_characters_follow_the_environment() {
        let of = |no_color, term, locale| {
            let theme = Theme::of(no_color, Some(term), Some(locale));
            (theme.color, theme.ascii)
        };
        assert_eq!(of(None, "xterm-256color", "en_US.UTF-8"), (true, false));
        assert_eq!(of(Some("1"), "xterm", "C.utf8"), (false, false));
        assert_eq!(of(Some(""), "xterm", "C"), (true, true));
        assert_eq!(of(None, "dumb", "C.UTF-8"), (false, true));
        assert_eq!(Theme::of(None, None, None), Theme { color: false, ascii: true });
    }

    #[test]
    fn bars_are_as_wide_as_asked_for() {
        for ascii in [false, true] {
            let theme = Theme { color: true, ascii };
            for share in [-1.0, 0.0, 0.01, 0.5, 0.99, 1.0, 7.0, f64::NAN] {
                assert_eq!(theme.filled(share, 6).chars().count(), 6, "{share}");
            }
            assert_eq!(theme.spark([0.0, 5.0, 10.0, 99.0].into_iter(), 10.0).chars().count(), 4);
        }
        assert_eq!(Theme { color: false, ascii: true }.filled(0.5, 6), "###...");
        assert_eq!(Theme { color: false, ascii: false }.filled(0.5, 3), "█▌·");
    }
}
