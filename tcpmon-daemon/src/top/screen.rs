//! The state of the screen, and what keys do to it.

use super::{
    rows::{Row, Rows, Subject},
    select::{RowFilter, SortKey, has_text, is_in},
};
use crate::model::live::LiveSample;

/// Where the samples come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A daemon.
    Daemon,
    /// Programs that `tcpmon top` has loaded itself.
    OwnPrograms,
}

/// A key that the screen knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
    /// One row up.
    Up,
    /// One row down.
    Down,
    /// One page up.
    PageUp,
    /// One page down.
    PageDown,
    /// The first row.
    Home,
    /// The last row.
    End,
    /// Left arrow: the previous sort order.
    Left,
    /// Right arrow: the next sort order.
    Right,
    /// Control and C.
    Interrupt,
    /// Control and Z.
    Suspend,
}

/// What the program must do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Draw.
    Draw,
    /// End.
    Quit,
    /// Stop until the shell continues it.
    Suspend,
}

/// The state of the screen.
#[derive(Debug)]
pub struct Screen {
    /// All rows.
    pub rows: Rows,
    /// Name of the host.
    pub hostname: String,
    /// Where the samples come from.
    pub source: Source,
    /// Time between samples, seconds.
    pub every: f64,
    /// Why there is no new sample, if there is none.
    pub problem: Option<String>,
    /// Whether connections are shown, instead of groups.
    pub sockets: bool,
    /// The order.
    pub sort: SortKey,
    /// Whether the order is reversed.
    pub reversed: bool,
    /// The filter from the command line.
    pub filter: RowFilter,
    /// Text that names and addresses must contain.
    pub text: String,
    /// Whether `text` is being typed.
    pub typing: bool,
    /// Only connections of this group are shown.
    pub within: Option<Subject>,
    /// Whether samples are ignored.
    pub paused: bool,
    /// Whether the help is shown.
    pub help: bool,
    /// The connection that is shown in detail, as it was last seen, and whether it is still there.
    pub detail: Option<(Row, bool)>,
    /// The selected row.
    pub selected: Option<Subject>,
    /// The first row that is on the screen.
    pub offset: usize,
    /// Rows that fit on the screen, as of the last drawing.
    pub page: usize,
}

impl Screen {
    /// An empty screen.
    pub fn new(hostname: String, source: Source, every: f64, filter: RowFilter) -> Self {
        Self {
            rows: Rows::default(),
            hostname,
            source,
            every,
            problem: None,
            sockets: false,
            sort: SortKey::default(),
            reversed: false,
            filter,
            text: String::new(),
            typing: false,
            within: None,
            paused: false,
            help: false,
            detail: None,
            selected: None,
            offset: 0,
            page: 1,
        }
    }

    /// Takes the next sample.
    pub fn update(&mut self, sample: LiveSample) {
        self.problem = None;
        self.rows.update(sample);
        if let Some((row, is_open)) = &mut self.detail {
            let now = self.rows.sockets.iter().find(|now| now.subject == row.subject);
            *is_open = now.is_some();
            if let Some(now) = now {
                *row = now.clone();
            }
        }
    }

    /// The rows to show, in order.
    pub fn shown(&self) -> Vec<&Row> {
        let mut shown = self.filter.of(&self.rows, self.sockets);
        let text = self.text.to_lowercase();
        shown.retain(|row| has_text(row, &text));
        if let Some(group) = self.within.as_ref().filter(|_| self.sockets) {
            shown.retain(|row| is_in(row, group));
        }
        shown.sort_by(|a, b| if self.reversed { self.sort.compare(b, a) } else { self.sort.compare(a, b) });
        shown
    }

    /// The selected row's place among the rows to show.
    pub fn selected_position(&self, shown: &[&Row]) -> usize {
        let selected = |row: &&Row| Some(&row.subject) == self.selected.as_ref();
        shown.iter().position(selected).unwrap_or(0)
    }

    /// Handles a key.
    pub fn key(&mut self, key: Key) -> Reaction {
        match key {
            Key::Interrupt => return Reaction::Quit,
            Key::Suspend => return Reaction::Suspend,
            _ if self.typing => self.typed(key),
            _ if self.help => self.help = false,
            Key::Char('q') => return Reaction::Quit,
            Key::Char('?' | 'h') => self.help = true,
            Key::Char('p' | ' ') => self.paused = !self.paused,
            Key::Escape => self.back(),
            Key::Backspace | Key::Enter if self.detail.is_some() => self.detail = None,
            _ if self.detail.is_some() => {}
            Key::Char('s') => self.switch(),
            Key::Char('/') => self.typing = true,
            Key::Char('<') | Key::Left => self.sort = self.sort.moved(-1),
            Key::Char('>') | Key::Right => self.sort = self.sort.moved(1),
            Key::Char('i') => self.reversed = !self.reversed,
            Key::Enter => self.enter(),
            Key::Up | Key::Char('k') => self.select(-1),
            Key::Down | Key::Char('j') => self.select(1),
            Key::PageUp => self.select(-self.page.cast_signed()),
            Key::PageDown => self.select(self.page.cast_signed()),
            Key::Home => self.select(isize::MIN),
            Key::End => self.select(isize::MAX),
            Key::Char(_) | Key::Backspace => {}
        }
        self.keep_in_view();
        Reaction::Draw
    }

    fn typed(&mut self, key: Key) {
        match key {
            Key::Char(character) if !character.is_control() => self.text.push(character),
            Key::Backspace => drop(self.text.pop()),
            Key::Escape => {
                self.text.clear();
                self.typing = false;
            }
            Key::Enter => self.typing = false,
            _ => {}
        }
    }

    /// Goes back one step.
    fn back(&mut self) {
        if self.detail.take().is_some() {
            return;
        }
        if !self.text.is_empty() {
            self.text.clear();
        } else if let Some(group) = self.within.take() {
            (self.sockets, self.selected) = (false, Some(group));
        }
    }

    fn switch(&mut self) {
        (self.sockets, self.within, self.selected, self.offset) = (!self.sockets, None, None, 0);
    }

    /// Goes from a group to its connections, and from a connection to its details.
    fn enter(&mut self) {
        let shown = self.shown();
        let Some(row) = shown.get(self.selected_position(&shown)).map(|row| (*row).clone()) else { return };
        if self.sockets {
            self.detail = Some((row, true));
        } else {
            (self.sockets, self.within, self.selected, self.offset) = (true, Some(row.subject), None, 0);
        }
    }

    /// Moves the selection by this many rows.
    fn select(&mut self, by: isize) {
        let shown = self.shown();
        let last = shown.len().saturating_sub(1);
        let place = self.selected_position(&shown).cast_signed().saturating_add(by).clamp(0, last.cast_signed());
        self.selected = shown.get(place.unsigned_abs()).map(|row| row.subject.clone());
    }

    /// The first row on the screen such that the row at `place` of `rows` is visible.
    pub fn offset_with(&self, place: usize, rows: usize) -> usize {
        let first = (place + 1).saturating_sub(self.page);
        self.offset.clamp(first, place).min(rows.saturating_sub(self.page))
    }

    /// Scrolls so that the selected row is on the screen.
    fn keep_in_view(&mut self) {
        let shown = self.shown();
        self.offset = self.offset_with(self.selected_position(&shown), shown.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::fixture::{at, sample};

    fn screen(sockets: u32) -> Screen {
        let mut screen = Screen::new("host".into(), Source::Daemon, 1.0, RowFilter::default());
        screen.update(at(1, sample(sockets)));
        screen.update(at(2, sample(sockets)));
        screen
    }

    fn press(screen: &mut Screen, keys: &str) {
        keys.chars().for_each(|key| {
            screen.key(match key {
                '\n' => Key::Enter,
                '\x1b' => Key::Escape,
                key => Key::Char(key),
            });
        });
    }

    fn selected_port(screen: &Screen) -> u16 {
        let shown = screen.shown();
        shown[screen.selected_position(&shown)].connection.expect("a connection").remote.port()
    }

    #[test]
    fn enter_goes_from_a_group_to_a_connection_and_escape_back() {
        let mut screen = screen(5);
        assert_eq!(screen.shown().len(), 1);
        press(&mut screen, "\n");
        assert!(screen.sockets && screen.within.is_some());
        assert_eq!(screen.shown().len(), 5);
        press(&mut screen, "jj\n");
        let port = screen.detail.as_ref().and_then(|(row, _)| row.connection).expect("in depth").remote.port();
        assert_eq!(port, 40_002);
        press(&mut screen, "\x1b\x1b");
        assert!(!screen.sockets && screen.within.is_none() && screen.detail.is_none());
    }

    #[test]
    fn a_connection_in_depth_stays_when_it_is_closed() {
        let mut screen = screen(3);
        press(&mut screen, "sj\n");
        screen.update(at(3, sample(1)));
        assert!(matches!(&screen.detail, Some((_, false))));
        press(&mut screen, "\x1b");
        assert_eq!(screen.shown().len(), 1);
    }

    #[test]
    fn typing_filters_and_does_not_do_what_keys_do() {
        let mut screen = screen(12);
        press(&mut screen, "s/40011");
        assert_eq!((screen.shown().len(), screen.typing), (1, true));
        press(&mut screen, "q\n");
        assert_eq!((screen.text.as_str(), screen.shown().len()), ("40011q", 0));
        press(&mut screen, "\x1b");
        assert_eq!(screen.shown().len(), 12);
        assert_eq!(screen.key(Key::Char('q')), Reaction::Quit);
    }

    #[test]
    fn the_selection_stays_with_its_connection_and_on_the_screen() {
        let mut screen = screen(50);
        screen.page = 10;
        press(&mut screen, "s");
        (0..20).for_each(|_| _ = screen.key(Key::Down));
        assert_eq!((selected_port(&screen), screen.offset), (40_020, 11));
        screen.key(Key::End);
        assert_eq!((selected_port(&screen), screen.offset), (40_049, 40));
        screen.key(Key::PageUp);
        assert_eq!((selected_port(&screen), screen.offset), (40_039, 39));
        screen.key(Key::Home);
        assert_eq!((selected_port(&screen), screen.offset), (40_000, 0));
        screen.key(Key::Down);
        let mut busy = at(3, sample(50));
        busy.socket_mut(30).totals.received_bytes = 9;
        screen.update(busy);
        let first = screen.shown()[0].connection.expect("a connection").remote.port();
        assert_eq!((first, selected_port(&screen)), (40_030, 40_001));
        press(&mut screen, "i");
        assert_eq!(screen.offset, 38);
    }

    #[test]
    fn help_ends_with_any_key_and_interrupts_always_work() {
        let mut screen = screen(1);
        press(&mut screen, "?");
        assert!(screen.help);
        press(&mut screen, "q");
        assert!(!screen.help);
        press(&mut screen, "/");
        assert_eq!((screen.key(Key::Interrupt), screen.key(Key::Suspend)), (Reaction::Quit, Reaction::Suspend));
        press(&mut screen, "\n ");
        assert!(screen.paused);
    }
}
