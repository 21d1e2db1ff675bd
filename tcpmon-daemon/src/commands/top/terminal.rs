//! The terminal: taken over, and given back however the program ends.

use std::{
    io::{self, Stdout},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use ratatui::{
    Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor,
        event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
        execute,
        terminal::{
            DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
            enable_raw_mode,
        },
    },
};
use rustix::process::{Signal, getpid, kill_process};
use tokio::sync::mpsc;

use crate::top::{Key, Screen, Theme, draw};

/// Whether the terminal is taken over at the moment.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// A terminal that shows the screen. It is given back when this is dropped, and before a panic is reported.
pub(super) struct Screenful {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    events: mpsc::Receiver<Option<Key>>,
}

impl Screenful {
    /// Takes the terminal over.
    pub(super) fn open() -> io::Result<Self> {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            give_back();
            hook(info);
        }));
        take_over()?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        let (sender, events) = mpsc::channel(64);
        thread::Builder::new().name("keys".into()).spawn(move || read_keys(&sender))?;
        Ok(Self { terminal, events })
    }

    /// Draws the screen.
    pub(super) fn draw(&mut self, screen: &mut Screen, theme: Theme) -> io::Result<()> {
        if !TAKEN.load(Ordering::SeqCst) {
            return Err(io::Error::other("a thread of tcpmon has ended with the message above"));
        }
        self.terminal.draw(|frame| draw(screen, theme, frame)).map(drop)
    }

    /// The next key, or `Some(None)` if the size of the terminal has changed. `None` at the end of the input.
    pub(super) async fn next(&mut self) -> Option<Option<Key>> {
        self.events.recv().await
    }

    /// Gives the terminal back to the shell until the shell continues this process.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        give_back();
        kill_process(getpid(), Signal::STOP)?;
        take_over()?;
        self.terminal.clear()
    }
}

impl Drop for Screenful {
    fn drop(&mut self) {
        give_back();
    }
}

fn take_over() -> io::Result<()> {
    TAKEN.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, DisableLineWrap, cursor::Hide)
}

fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // An error cannot be reported here.
        let _ = execute!(io::stdout(), cursor::Show, EnableLineWrap, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// Passes keys on until the terminal or the screen is gone.
fn read_keys(to: &mpsc::Sender<Option<Key>>) {
    while let Ok(event) = event::read() {
        let key = match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => match known(key) {
                Some(key) => Some(key),
                None => continue,
            },
            Event::Resize(..) => None,
            _ => continue,
        };
        if to.blocking_send(key).is_err() {
            return;
        }
    }
}

fn known(key: KeyEvent) -> Option<Key> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c') if control => Key::Interrupt,
        KeyCode::Char('z') if control => Key::Suspend,
        KeyCode::Char(character) if !control => Key::Char(character),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::{env, process::Command};

    use super::*;

    /// Set in the child process that is to panic.
    const PANICS: &str = "TCPMON_TEST_PANICS";

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_is_reported() {
        if env::var_os(PANICS).is_some() {
            let _screenful = Screenful::open().expect("a terminal");
            panic!("on purpose");
        }
        let itself = env::current_exe().expect("this program");
        let name = "commands::top::terminal::tests::a_panic_gives_the_terminal_back_before_it_is_reported";
        let line = format!("{} --exact {name} --nocapture; stty -a", itself.display());
        let output = Command::new("script").args(["-q", "-e", "-c", &line, "/dev/null"]).env(PANICS, "1").output();
        let output = String::from_utf8_lossy(&output.expect("script(1)").stdout).into_owned();
        let at = |what: &str| output.find(what).unwrap_or_else(|| panic!("no {what:?} in {output}"));
        // The alternate screen, then the normal one with its cursor, then the message.
        assert!(at("\x1b[?1049h") < at("\x1b[?25h"), "{output}");
        assert!(at("\x1b[?25h") < at("\x1b[?1049l"), "{output}");
        assert!(at("\x1b[?1049l") < at("on purpose"), "{output}");
        assert!(output.contains(" icanon") && output.contains(" echo "), "{output}");
    }
}
