//! The commands: they alone join I/O, time and model.

mod ask;
mod collector;
mod daemon;
mod surroundings;
mod trace;

use crate::{
    cli::{Cli, Command},
    config::ConfigError,
    kernel::LoadError,
};

/// Runs a command to its end.
///
/// # Errors
/// Why it failed, in one line; [`exit_code`] has the number for it.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Daemon(args) => daemon::run(&args),
        Command::Trace(args) => trace::run(&args),
    }
}

/// An error in one line, each of its causes once: an error that ends in a remedy names its cause before that.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut sentence = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !sentence.contains(&cause) {
            sentence = format!("{sentence}: {cause}");
        }
    }
    sentence
}

/// 2 when the settings are wrong, 3 when tcpmon cannot run on this host, 1 for everything else.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<ConfigError>() || error.is::<trace::OutputExists>() {
        2
    } else if matches!(error.downcast_ref(), Some(LoadError::CannotRun(_))) {
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
