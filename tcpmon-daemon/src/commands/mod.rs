//! The commands: only they combine I/O, time and model.

mod child;
pub mod collector;
mod convert;
mod daemon;
mod doctor;
mod flight_child;
mod host_thread;
mod live_data;
mod missed_ends;
mod notifier;
mod reload;
mod report;
mod top;
mod trace;
mod trace_file;
mod worker;

use std::{os::unix::net::UnixStream, sync::mpsc, thread, time::Duration};

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};

use crate::{
    cli::{Cli, Command},
    config::ConfigError,
    doctor::gather::NoDevice,
    kernel::CannotRun,
};

/// Maximum time for writing a message to standard error.
const STDERR_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs a command to its end. Returns the exit code: 0, or what the doctor found.
///
/// # Errors
/// Why it failed, in one line; [`exit_code`] gives the exit code for it.
pub fn run(cli: Cli) -> anyhow::Result<u8> {
    match cli.command {
        Command::Daemon(args) => daemon::run(&args).map(|()| 0),
        Command::Trace(args) => trace::run(&args),
        Command::Report(args) => report::run(&args).map(|()| 0),
        Command::Convert(args) => convert::run(&args).map(|()| 0),
        Command::Top(args) => top::run(&args).map(|()| 0),
        Command::Doctor(args) => doctor::run(&args),
    }
}

/// The async runtime of a command.
fn runtime() -> anyhow::Result<Runtime> {
    // tokio makes such a pair for its first signal, and panics if it cannot.
    let runtime = UnixStream::pair().and_then(|_| Builder::new_current_thread().enable_all().build());
    runtime.context("cannot start the async runtime")
}

/// An error in one line, with each of its causes once. An error that ends in a remedy names its cause before that.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

/// Prints a message on standard error. If that is a pipe that nobody reads, the message is dropped.
pub fn print_message(message: &str) {
    let line = format!("tcpmon: {message}");
    let (writing, written) = mpsc::channel::<()>();
    let thread = thread::Builder::new().spawn(move || {
        eprintln!("{line}");
        drop(writing);
    });
    if thread.is_ok() {
        let _ = written.recv_timeout(STDERR_TIMEOUT);
    }
}

/// The exit code: 2 if the settings are wrong, 3 if tcpmon cannot run on this host, 1 for everything else.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<ConfigError>()
        || error.is::<trace::StartIsOver>()
        || error.is::<convert::SameFile>()
        || error.is::<trace_file::OutputExists>()
        || error.is::<trace::NotStarted>()
        || error.is::<NoDevice>()
        || error.is::<doctor::WrongFile>()
    {
        2
    } else if error.is::<trace::InContainer>() || error.is::<CannotRun>() {
        3
    } else {
        1
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context as _;

    use super::*;
    use crate::http;

    #[tokio::test]
    async fn the_cause_of_an_error_is_printed_once() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = taken.local_addr().expect("an address");
        let listen = address.to_string().parse().expect("an address");
        let error = anyhow::Error::from(http::bind(&[listen]).await.expect_err("the address is taken"));
        assert_eq!(
            one_line(&error),
            format!(
                "cannot listen on {address}: Address already in use (os error 98): stop the process that listens \
                 there (`ss -ltnp` shows it), or choose another address with --web.listen-address"
            )
        );
        assert_eq!(exit_code(&error), 1);
    }

    #[test]
    fn a_cause_that_the_error_does_not_name_follows_it() {
        let cause = io::Error::from_raw_os_error(28);
        let error = Err::<(), _>(cause).context("cannot write to f").context("no trace").expect_err("an error");
        assert_eq!(one_line(&error), "no trace: cannot write to f: No space left on device (os error 28)");
    }
}
