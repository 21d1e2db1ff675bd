//! The kernel's own trace (ftrace) of one tracepoint or function, with one line per event.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::must;

/// Mount point of tracefs. If it is not mounted there, it is mounted in a mount namespace that no other process sees.
/// The directory exists on every kernel that has tracing.
const MOUNT: &str = "/sys/kernel/tracing";

/// Events since tracing started. The trace is an ftrace instance of its own, which is removed when this is dropped.
#[derive(Debug)]
pub struct Trace {
    /// Path below tracefs.
    instance: PathBuf,
    /// The kprobe event, if it was created for this trace.
    kprobe: Option<String>,
}

impl Trace {
    /// Starts to trace an event, for example `sock/sock_exceed_buf_limit`.
    #[track_caller]
    pub fn start(event: &str) -> Self {
        let trace = Self { instance: instance(), kprobe: None };
        trace.begin(event, &[]);
        trace
    }

    /// Starts to trace an event, but only while a thread of this process is current, or one of a process that it starts
    /// later.
    #[track_caller]
    pub fn under(process: u32, event: &str) -> Self {
        let trace = Self { instance: instance(), kprobe: None };
        let threads = must(fs::read_dir(format!("/proc/{process}/task")), format!("reading process {process}"));
        let threads = threads.filter_map(|thread| thread.ok()?.file_name().into_string().ok());
        trace.begin(event, &threads.collect::<Vec<_>>());
        trace
    }

    /// Starts to trace the calls of a kernel function; each call is followed by a line ` => NAME` for each of its
    /// callers.
    #[track_caller]
    pub fn calls(function: &str) -> Self {
        let instance = instance();
        let name = instance.file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
        let event = format!("{name}/{function}");
        let trace = Self { instance, kprobe: Some(event.clone()) };
        trace.with_tracefs(|root| must(define(root, &format!("p:{event} {function}")), "making a kprobe"));
        trace.begin(&event, &[]);
        trace
    }

    #[track_caller]
    fn begin(&self, event: &str, threads: &[String]) {
        self.with_tracefs(|root| {
            let instance = root.join(&self.instance);
            must(fs::create_dir(&instance), format!("making {} (the kernel needs CONFIG_FTRACE)", instance.display()));
            let write = |file: &str, text: &str| must(fs::write(instance.join(file), text), format!("writing {file}"));
            write("buffer_size_kb", "16384");
            write("options/stacktrace", if self.kprobe.is_some() { "1" } else { "0" });
            if !threads.is_empty() {
                write("options/event-fork", "1");
                write("set_event_pid", &threads.join(" "));
            }
            write(&format!("events/{event}/enable"), "1");
        });
    }

    /// The events so far.
    #[track_caller]
    pub fn lines(&self) -> Vec<String> {
        let read = |root: &Path| fs::read_to_string(root.join(&self.instance).join("trace"));
        let text = self.with_tracefs(|root| must(read(root), "reading the trace"));
        lines(&text)
    }

    /// Runs `job` on a thread that sees a mounted tracefs.
    fn with_tracefs<T: Send>(&self, job: impl FnOnce(&Path) -> T + Send) -> T {
        let inside = || {
            let (none, nothing) = (None::<&str>, MsFlags::empty());
            must(unshare(CloneFlags::CLONE_NEWNS), "making a mount namespace (run as root)");
            must(mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none), "making all mounts private");
            if !Path::new(MOUNT).join("instances").exists() {
                must(mount(Some("tracefs"), MOUNT, Some("tracefs"), nothing, none), "mounting tracefs");
            }
            job(Path::new(MOUNT))
        };
        thread::scope(|scope| scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let removed = self.with_tracefs(|root| {
            fs::remove_dir(root.join(&self.instance))?;
            self.kprobe.as_ref().map_or(Ok(()), |event| define(root, &format!("-:{event}")))
        });
        if let Err(error) = removed {
            eprintln!("{} could not be removed from tracefs: {error}", self.instance.display());
        }
    }
}

/// An instance name that no other trace has.
fn instance() -> PathBuf {
    static INSTANCES: AtomicU32 = AtomicU32::new(0);
    let number = INSTANCES.fetch_add(1, Ordering::Relaxed);
    format!("instances/tcpmon-{}-{number}", std::process::id()).into()
}

/// Adds to or removes from the kernel's list of kprobes, which may contain those of other programs.
fn define(root: &Path, line: &str) -> io::Result<()> {
    OpenOptions::new().append(true).open(root.join("kprobe_events"))?.write_all(line.as_bytes())
}

/// The lines of a trace without its heading. Panics if the trace has lost lines, because it cannot serve as truth then.
fn lines(text: &str) -> Vec<String> {
    let written = text.lines().find_map(|line| line.split_once("entries-in-buffer/entries-written: "));
    let (kept, rest) = written.and_then(|(_, rest)| rest.split_once('/')).expect("a trace begins with its entries");
    assert_eq!(Some(kept), rest.split_ascii_whitespace().next(), "the trace has lost lines");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_without_the_heading() {
        assert_eq!(lines("# entries-in-buffer/entries-written: 1/1   #P:2\n#\n x-1 [0] e\n"), [" x-1 [0] e"]);
    }

    #[test]
    #[should_panic(expected = "the trace has lost lines")]
    fn a_trace_that_lost_lines_is_refused() {
        lines("# entries-in-buffer/entries-written: 3/4   #P:2\n");
    }
}
