//! A program in a terminal, by tmux: what a person sees and types.

use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::{eventually, must};

/// Time limit to start, and for what is expected on the screen.
const DEADLINE: Duration = Duration::from_secs(20);

/// A terminal in which a shell runs one program. Ended when dropped.
#[derive(Debug)]
pub struct Tmux {
    directory: TempDir,
}

impl Tmux {
    /// Runs a command line in a terminal of this size, with these variables, and then shows `ended with CODE`.
    #[track_caller]
    pub fn start(width: u16, height: u16, variables: &[(&str, &str)], command: &str) -> Self {
        let tmux = Self { directory: must(TempDir::new(), "making a directory") };
        let (width, height) = (width.to_string(), height.to_string());
        let script =
            format!("echo before; {command}; echo ended with $?; stty -a | tr ';' '\\n' | grep icanon; exec sleep 60");
        let mut start = tmux.command(&["-f", "/dev/null", "new-session", "-d", "-x", &width, "-y", &height]);
        for (name, value) in variables {
            start.arg("-e").arg(format!("{name}={value}"));
        }
        start.args(["sh", "-c", &script]);
        tmux.succeed(start);
        tmux
    }

    /// Types these keys, by tmux's names (`q`, `Enter`, `C-c`).
    #[track_caller]
    pub fn keys(&self, keys: &[&str]) {
        let mut command = self.command(&["send-keys"]);
        command.args(keys);
        self.succeed(command);
    }

    /// What is on the screen.
    #[track_caller]
    pub fn screen(&self) -> String {
        self.succeed(self.command(&["capture-pane", "-p"]))
    }

    /// The same with the terminal's colours.
    #[track_caller]
    pub fn colored(&self) -> String {
        self.succeed(self.command(&["capture-pane", "-e", "-p"]))
    }

    /// Waits until all of these words are on the screen, and returns it.
    #[track_caller]
    pub fn shows(&self, words: &[&str]) -> String {
        eventually(DEADLINE, &format!("{words:?} on the screen"), || {
            let screen = self.screen();
            if words.iter().all(|word| screen.contains(word)) { Ok(screen) } else { Err(screen) }
        })
    }

    /// Changes the size of the terminal.
    #[track_caller]
    pub fn resize(&self, width: u16, height: u16) {
        let (width, height) = (width.to_string(), height.to_string());
        self.succeed(self.command(&["resize-window", "-x", &width, "-y", &height]));
    }

    /// The process id of the shell.
    #[track_caller]
    pub fn shell(&self) -> u32 {
        let pid = self.succeed(self.command(&["display-message", "-p", "#{pane_pid}"]));
        must(pid.trim().parse(), format!("parsing {pid}"))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.directory.path().join("socket")).args(arguments);
        command.env_remove("TMUX").env_remove("NO_COLOR").env("LC_ALL", "C.UTF-8").env("TERM", "xterm-256color");
        command
    }

    fn succeed(&self, mut command: Command) -> String {
        let output = must(command.output(), "running tmux");
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        // Ends everything in it.
        let _ = self.command(&["kill-server"]).output();
    }
}
