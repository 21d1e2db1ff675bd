//! Text in fixed-width columns.

use std::{
    fmt::{self, Display, Write},
    net::SocketAddr,
};

use crate::record::Comm;

/// Maximum width of a line of the table. All text is ASCII, so one byte is one column.
pub const TABLE_WIDTH: usize = 100;

/// Marks where text was cut.
const CUT: &str = "~";

/// Lines that are being assembled, in a buffer that is reused.
#[derive(Debug, Default)]
pub struct Lines {
    text: String,
    /// Where the last line starts.
    line: usize,
    /// Where its last column starts.
    column: usize,
}

impl Lines {
    /// The lines so far.
    pub fn as_bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// Removes all lines.
    pub fn clear(&mut self) {
        self.text.clear();
        self.line = 0;
        self.column = 0;
    }

    /// Adds a left-aligned column.
    pub fn left(&mut self, width: usize, value: impl Display) {
        let content = self.column(width, value);
        self.text.extend(std::iter::repeat_n(' ', width - content));
    }

    /// Adds a right-aligned column.
    pub fn right(&mut self, width: usize, value: impl Display) {
        let content = self.column(width, value);
        const SPACES: &str = "                                ";
        self.text.insert_str(self.column, &SPACES[..(width - content).min(SPACES.len())]);
    }

    /// Ends the line.
    pub fn end(&mut self) {
        let content = self.text[self.line..].trim_end_matches(' ').len();
        self.text.truncate(self.line + content.min(TABLE_WIDTH));
        self.text.push('\n');
        self.line = self.text.len();
        self.column = self.line;
    }

    /// Adds text as one line; text that does not fit continues on indented lines, broken between words.
    pub fn wrapped(&mut self, text: &str) {
        let mut room = TABLE_WIDTH;
        for (at, word) in text.split_whitespace().enumerate() {
            let length = word.chars().count();
            if at > 0 && length + 1 > room {
                self.end();
                self.text.push_str("   ");
                room = TABLE_WIDTH - 3;
            }
            let space = usize::from(at > 0);
            self.text.push_str(&" "[..space]);
            let _ = write!(self.text, "{}", Printable(word));
            room = room.saturating_sub(length + space);
        }
        self.end();
    }

    /// Adds a value after a space, cut to the width; returns the width that it takes.
    fn column(&mut self, width: usize, value: impl Display) -> usize {
        if self.text.len() > self.line {
            self.text.push(' ');
        }
        self.column = self.text.len();
        // Writing to a String does not fail.
        let _ = write!(self.text, "{value}");
        if self.text.len() > self.column + width {
            self.text.truncate(self.column + width - CUT.len());
            self.text.push_str(CUT);
        }
        self.text.len() - self.column
    }
}

/// A text with `?` in place of each character that is not printable ASCII. The traced processes choose their own names,
/// and these must neither shift columns nor control the terminal.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a str);

impl Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printable = |c: char| {
            if c == ' ' || c.is_ascii_graphic() { c } else { '?' }
        };
        self.0.chars().try_for_each(|c| f.write_char(printable(c)))
    }
}

/// A thread as `name/tid`, with the name cut if both do not fit.
#[derive(Clone, Copy, Debug)]
pub struct Thread<'a> {
    /// Its name.
    pub comm: &'a Comm,
    /// Its id.
    pub tid: u32,
    /// Columns.
    pub width: usize,
}

impl Display for Thread<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comm = self.comm.as_str();
        let digits = self.tid.checked_ilog10().map_or(1, |log| log as usize + 1);
        let room = self.width.saturating_sub(digits + 1);
        match comm.char_indices().nth(room) {
            None => write!(f, "{}/{}", Printable(comm), self.tid),
            Some(_) => {
                let kept = room.saturating_sub(CUT.len());
                let end = comm.char_indices().nth(kept).map_or(comm.len(), |(at, _)| at);
                write!(f, "{}{CUT}/{}", Printable(&comm[..end]), self.tid)
            }
        }
    }
}

/// A socket as `local port<remote address:port`; if that does not fit, the first parts of the address are left out.
#[derive(Clone, Copy, Debug)]
pub struct SocketColumn {
    /// Port of this side.
    pub local_port: u16,
    /// The other side.
    pub remote: SocketAddr,
    /// Columns.
    pub width: usize,
}

impl Display for SocketColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Short::default();
        write!(text, "{}<", self.local_port)?;
        let address = text.length;
        write!(text, "{}", self.remote)?;
        let text = text.as_str();
        let mut over = text.len().saturating_sub(self.width);
        if over == 0 {
            return f.write_str(text);
        }
        over += CUT.len();
        let (before, address) = text.split_at(address);
        let (bracket, address) = match address.strip_prefix('[') {
            Some(rest) => ("[", rest),
            None => ("", address),
        };
        let port = address.rfind(':').unwrap_or(address.len());
        let parts = address[..port].match_indices(['.', ':']).map(|(at, _)| at);
        // The bracket that closes an IPv6 address stays with the port.
        let end = address.find(']').unwrap_or(port);
        let from = parts.chain([end]).find(|at| *at >= over).unwrap_or(end);
        write!(f, "{before}{bracket}{CUT}{}", &address[from..])
    }
}

/// The text of a socket: two ports, an IPv6 address and the characters between them.
struct Short {
    bytes: [u8; 64],
    length: usize,
}

impl Default for Short {
    fn default() -> Self {
        Self { bytes: [0; 64], length: 0 }
    }
}

impl Short {
    fn as_str(&self) -> &str {
        // Only whole strings are appended.
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn socket(remote: &str, width: usize) -> String {
        let remote = remote.parse().expect("an address");
        SocketColumn { local_port: 5201, remote, width }.to_string()
    }

    fn thread(comm: &str, tid: u32, width: usize) -> String {
        let comm = Comm::try_from(comm).expect("a name");
        Thread { comm: &comm, tid, width }.to_string()
    }

    #[test]
    fn a_socket_that_does_not_fit_loses_the_first_parts_of_its_address() {
        assert_eq!(socket("10.0.0.2:40000", 20), "5201<10.0.0.2:40000");
        assert_eq!(socket("192.168.100.200:40000", 20), "5201<~.100.200:40000");
        assert_eq!(socket("192.168.100.200:40000", 19), "5201<~.200:40000");
        assert_eq!(socket("[::1]:40000", 20), "5201<[::1]:40000");
        assert_eq!(socket("[2001:db8::2]:40000", 20), "5201<[~::2]:40000");
        assert_eq!(socket("[2001:db8:1:2:3:4:5:6]:40000", 20), "5201<[~:4:5:6]:40000");
        assert_eq!(socket("[2001:db8:1:2:3:4:5:6]:40000", 12), "5201<[~]:40000");
    }

    #[test]
    fn a_thread_that_does_not_fit_loses_the_end_of_its_name() {
        assert_eq!(thread("iperf3", 4322, 15), "iperf3/4322");
        assert_eq!(thread("0123456789abcdef", 1, 15), "0123456789ab~/1");
        assert_eq!(thread("0123456789abcdef", u32::MAX, 15), "012~/4294967295");
        assert_eq!(thread("0123", u32::MAX, 15), "0123/4294967295");
        assert_eq!(thread("", 0, 15), "/0");
    }

    #[test]
    fn a_name_cannot_command_the_terminal() {
        assert_eq!(Printable("a\x1b[2J\nb\u{fc}").to_string(), "a?[2J?b?");
        assert_eq!(thread("\u{fc}\u{fc}\u{fc}\u{fc}\u{fc}\u{fc}\u{fc}\u{fc}", 1, 6), "???~/1");
    }

    #[test]
    fn text_is_broken_between_words() {
        let mut lines = Lines::default();
        lines.wrapped(&format!("one {} two {}", "x".repeat(94), "y".repeat(120)));
        let text = String::from_utf8_lossy(lines.as_bytes()).into_owned();
        let expected = [format!("one {}\n", "x".repeat(94)), "    two\n".into(), format!("    {}\n", "y".repeat(96))];
        assert_eq!(text, expected.concat());
    }

    proptest! {
        #[test]
        fn a_cell_is_never_wider_than_its_column(
            comm in "\\PC{0,16}", tid in any::<u32>(), width in 15usize..60,
            address in any::<std::net::IpAddr>(), port in any::<u16>(), local_port in any::<u16>(),
        ) {
            if let Ok(comm) = Comm::try_from(comm.as_str()) {
                let thread = Thread { comm: &comm, tid, width }.to_string();
                prop_assert!(thread.len() <= width, "{thread}");
                prop_assert!(thread.ends_with(&tid.to_string()));
            }
            let remote = SocketAddr::new(address, port);
            let socket = SocketColumn { local_port, remote, width }.to_string();
            prop_assert!(socket.len() <= width, "{socket}");
            let end = format!(":{port}");
            prop_assert!(socket.ends_with(&end), "{socket}");
        }
    }
}
