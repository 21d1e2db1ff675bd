//! Runs other programs; every error names the whole command line.

use std::{
    fs, io, iter,
    process::{Command, Output, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};

/// Runs `command` with this process's own output streams; a failing exit status is an error.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {}", line(command)))?;
    if !status.success() {
        bail!("{} failed: {status}", line(command));
    }
    Ok(())
}

/// Time after which tests that are run together are taken to hang; the longest take three minutes. The run then goes on
/// to its end and says which they are, instead of being ended without a word.
const HANGS: Duration = Duration::from_secs(15 * 60);

/// Like [`run_for_at_most`], for tests: what they write is printed when they have ended, in one piece, and the error
/// has what those that failed have said. So a run can repeat that as its last words, where it is read first.
pub fn run_tests(command: &mut Command) -> Result<()> {
    // Not through pipes: they stay open as long as a program that it has left behind.
    let written = tempfile::NamedTempFile::new()?;
    let output = || Ok::<_, io::Error>(Stdio::from(written.as_file().try_clone()?));
    let result = run_for_at_most(command.stdout(output()?).stderr(output()?), HANGS);
    let written = fs::read(written.path())?;
    let written = String::from_utf8_lossy(&written);
    eprint!("{written}");
    result.map_err(|error| anyhow!("{error}\n{}\n", of_failed_tests(&written)))
}

/// What the tests that failed have said, by the output of a test program: the end of it, if it does not say.
fn of_failed_tests(output: &str) -> &str {
    const HEADING: &str = "\nfailures:\n";
    match (output.find(HEADING), output.rfind(HEADING)) {
        (Some(said), Some(names)) if said < names => output[said + HEADING.len()..names].trim(),
        _ => last_lines(output),
    }
}

/// As many lines of a long output as somebody reads.
pub fn last_lines(output: &str) -> &str {
    let output = output.trim_end();
    let begin = output.rmatch_indices('\n').nth(29).map_or(0, |(end, _)| end + 1);
    &output[begin..]
}

/// From here on, this thread and the programs that it starts get only the CPU time that all others leave.
pub fn take_idle_time() -> Result<()> {
    let thread = fs::read_link("/proc/thread-self").context("cannot read /proc/thread-self")?;
    let id = thread.file_name().context("/proc/thread-self names no thread")?;
    output(Command::new("chrt").args(["--idle", "--pid", "0"]).arg(id)).map(drop)
}

/// The steps that have ended: name, time and whether they failed.
static STEPS: Mutex<Vec<(String, Duration, bool)>> = Mutex::new(Vec::new());

/// Runs one step of a longer command between two lines that name it; the second also has the time that it took.
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("=== {name}");
    let start = Instant::now();
    let result = work().with_context(|| format!("{name} failed"));
    let took = start.elapsed();
    STEPS.lock().unwrap_or_else(PoisonError::into_inner).push((name.to_owned(), took, result.is_err()));
    let how = if result.is_ok() { "" } else { ", failed" };
    eprintln!("=== {name}: {:.1} s{how}", took.as_secs_f64());
    result
}

/// A line for each step that has ended, in that order: seconds, result and name. Some steps are parts of another one,
/// and some run at the same time as others.
pub fn steps() -> String {
    let steps = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
    let line = |(name, took, failed): &(String, Duration, bool)| {
        let result = if *failed { "failed" } else { "ok" };
        format!("{:>8.1} s  {result:<6}  {name}\n", took.as_secs_f64())
    };
    steps.iter().map(line).collect()
}

fn captured(command: &mut Command) -> Result<Output> {
    command.output().with_context(|| format!("cannot run {}", line(command)))
}

/// Runs `command` and returns its standard output without the final newline.
pub fn output(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } = captured(command)?;
    if !status.success() {
        bail!("{} failed: {status}: {}", line(command), String::from_utf8_lossy(&stderr).trim());
    }
    let text = String::from_utf8(stdout).with_context(|| format!("the output of {} is not UTF-8", line(command)))?;
    Ok(text.trim_end().to_owned())
}

/// Like [`run`], but without standard input, and kills the child if it has not exited within `limit`.
pub fn run_for_at_most(command: &mut Command, limit: Duration) -> Result<()> {
    let mut child = command.stdin(Stdio::null()).spawn().with_context(|| format!("cannot run {}", line(command)))?;
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            if !status.success() {
                bail!("{} failed: {status}", line(command));
            }
            return Ok(());
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            bail!("{} did not exit within {} s", line(command), limit.as_secs());
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Program and arguments. `Debug` would also show the environment, which would hide them.
fn line(command: &Command) -> String {
    let words: Vec<_> =
        iter::once(command.get_program()).chain(command.get_args()).map(|word| word.to_string_lossy()).collect();
    format!("`{}`", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_what_it_said() {
        let result = output(Command::new("sh").args(["-c", "echo broken >&2; exit 3"]));
        assert!(result.is_err_and(|error| {
            let text = error.to_string();
            text.contains("sh -c") && text.contains("3") && text.contains("broken")
        }));
    }

    #[test]
    fn child_processes_of_a_thread_that_takes_idle_time_run_in_idle_time_too() {
        // The policy is field 41; 5 is SCHED_IDLE.
        let policy = || output(Command::new("cut").args(["-d", " ", "-f", "41", "/proc/self/stat"])).expect("a policy");
        let before = policy();
        let thread = thread::spawn(move || {
            take_idle_time().expect("anyone may");
            policy()
        });
        assert_eq!(thread.join().expect("no panic"), "5");
        // Whoever runs the tests may have taken idle time as well.
        assert_eq!(policy(), before);
    }

    #[test]
    fn a_program_that_is_left_behind_holds_nothing_up() {
        let start = Instant::now();
        run_tests(Command::new("sh").args(["-c", "sleep 20 & exit 0"])).expect("it ends well");
        let result = run_tests(Command::new("sh").args(["-c", "sleep 20 & exit 3"]));
        assert!(result.is_err_and(|error| error.to_string().contains("exit status: 3")));
        assert!(start.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn the_error_has_what_failed_tests_have_said() {
        let said = |script| {
            let result = run_tests(Command::new("sh").args(["-c", script]));
            result
                .expect_err("it fails")
                .to_string()
                .split_once("failed: exit status: 1\n")
                .expect("words")
                .1
                .to_owned()
        };
        let libtest =
            "printf 'test a ... ok\n\nfailures:\n\n---- b stdout ----\nleft: 1\n\n\nfailures:\n    b\n'; exit 1";
        assert_eq!(said(libtest), "---- b stdout ----\nleft: 1\n");
        let lines: Vec<String> = (71..=100).map(|number| number.to_string()).collect();
        assert_eq!(said("seq 100; exit 1"), lines.join("\n") + "\n");
    }

    #[test]
    fn a_child_that_hangs_is_ended() {
        let start = Instant::now();
        let result = run_for_at_most(Command::new("sleep").arg("60"), Duration::from_millis(200));
        assert!(result.is_err_and(|error| error.to_string().contains("sleep 60")));
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
