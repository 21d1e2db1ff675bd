//! The help.

use ratatui::text::{Line, Span};

use super::Theme;
use tcpmon_trace::summary::causes;

use crate::top::theme::{LETTERS, NOBODY_READS};

/// The meaning of each cause and its remedy, in the order of [`causes`].
const MEANING: [&str; 5] = [
    "the sender or the path gives no more: look there",
    "unread data fill the buffer: the reader is slow, or busy elsewhere",
    "the same, because the reader gets no CPU: a core, weight or quota",
    "the buffer is too small for the path: net.ipv4.tcp_rmem, SO_RCVBUF",
    "the kernel holds the buffer down: net.ipv4.tcp_mem, memory limit",
];

const TEXT: [&str; 13] = [
    "s       connections or groups     Enter   into a group, a connection in depth",
    "/       filter by text            Esc     back, all",
    "< >     sort by another column    i       invert the order",
    "p       pause                     q       quit",
    "arrows, j k, PgUp PgDn, Home End  select a row",
    "",
    "RECV/s, READ/s  bytes a second   QUEUE  bytes that wait    BUFFER  memory in use",
    "WAIT    mean time that a byte waits to be read; stuck: nobody reads",
    "RUNQ    time in which readers wait for a CPU, of one CPU",
    "LIMITED BY  what keeps more data from arriving, now; of a group: of its",
    "        connections with data",
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
        Span::raw("data wait and nobody reads them: find out what their process does"),
    ]));
    lines
}
