//! The commands: only they combine I/O, time and model.

mod ask;
pub mod collector;
mod daemon;
mod reload;
mod surroundings;
mod trace;

use std::{sync::mpsc, thread, time::Duration};

use crate::{
    cli::{Cli, Command},
    config::ConfigError,
    kernel::LoadError,
};

/// Maximum time for a message to standard error.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs a command to its end.
///
/// # Errors
/// Why it failed, in one line; [`exit_code`] gives the exit code for it.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Daemon(args) => daemon::run(&args),
        Command::Trace(args) => trace::run(&args),
    }
}

/// An error in one line, with each of its causes once. An error that ends in a remedy names its cause before that.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut sentence = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !sentence.contains(&cause) {
            sentence = format!("{sentence}: {cause}");
        }
    }
    sentence
}

/// Prints a message on standard error. If that is a pipe that nobody reads, the message is dropped.
pub fn say(sentence: &str) {
    let sentence = format!("tcpmon: {sentence}");
    let (saying, said) = mpsc::channel::<()>();
    let thread = thread::Builder::new().spawn(move || {
        eprintln!("{sentence}");
        drop(saying);
    });
    if thread.is_ok() {
        let _ = said.recv_timeout(PATIENCE);
    }
}

/// The exit code: 2 if the settings are wrong, 3 if tcpmon cannot run on this host, 1 for everything else.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<ConfigError>() || error.is::<trace::OutputExists>() {
        2
    } else if error.is::<trace::Contained>() || matches!(error.downcast_ref(), Some(LoadError::CannotRun(_))) {
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
    async fn a_taken_address_and_its_cause_are_said_once() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = taken.local_addr().expect("an address");
        let listen = address.to_string().parse().expect("an address");
        let error = anyhow::Error::from(http::bind(&[listen]).await.expect_err("the address is taken"));
        assert_eq!(
            sentence(&error),
            format!(
                "cannot listen on {address}: Address already in use (os error 98): stop what listens there \
                 (`ss -ltnp` names it) or choose another with --web.listen-address"
            )
        );
        assert_eq!(exit_code(&error), 1);
    }

    #[test]
    fn a_cause_that_the_error_does_not_name_follows_it() {
        let cause = io::Error::from_raw_os_error(28);
        let error = Err::<(), _>(cause).context("cannot write to f").context("no trace").expect_err("an error");
        assert_eq!(sentence(&error), "no trace: cannot write to f: No space left on device (os error 28)");
    }
}
