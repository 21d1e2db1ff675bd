//! The help.

use ratatui::text::{Line, Span};

use super::Theme;
use tcpmon_trace::summary::causes;

use crate::top::theme::{LETTERS, NOBODY_READS};

/// The meaning of each cause and its remedy, in the order of [`causes`].
const MEANING: [&str; 5] = [
    "the sender or the path is the limit: look there",
    "unread data fills the buffer: reader is slow, or busy elsewhere",
    "the same, as the reader gets no CPU: give it a core, weight, quota",
    "the buffer is too small for the path: net.ipv4.tcp_rmem, SO_RCVBUF",
    "memory is short, buffers stay small: net.ipv4.tcp_mem, memory.max",
];

const TEXT: [&str; 13] = [
    "s       connections or groups     Enter   open a group, or connection details",
    "/       filter by text            Esc     back, then show all rows",
    "< >     sort by another column    i       reverse the order",
    "p       pause                     q       quit",
    "arrows, j k, PgUp PgDn, Home End  select a row",
    "",
    "RECV/s, READ/s  bytes a second   QUEUE  unread bytes    BUFFER  memory in use",
    "WAIT    mean time that a byte waits to be read; stuck: nobody reads",
    "RUNQ    time that readers wait for a CPU (100 %: one reader all the time)",
    "LIMITED BY  what keeps more data from arriving now; for a group: what limits",
    "        its connections that have data",
    "",
    "A sentence above the rows says what to do about the selected one. Causes:",
];

/// The lines.
pub(super) fn lines(theme: Theme) -> Vec<Line<'static>> {
    let mut lines: Vec<_> = TEXT.iter().map(|text| Line::from(*text)).collect();
    for (cause, meaning) in MEANING.iter().enumerate() {
        lines.push(Line::from(vec![
            Span::styled(format!("{} {:<12}", LETTERS[cause], causes()[cause]), theme.cause(cause)),
            Span::raw(*meaning),
        ]));
    }
    lines.push(Line::from(vec![
        Span::styled(format!("{NOBODY_READS} {:<12}", "stuck"), theme.alarm()),
        Span::raw("data waits and nobody reads it: find out what the process does"),
    ]));
    lines
}
