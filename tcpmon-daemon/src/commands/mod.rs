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

/// 2 when the settings are wrong, 3 when tcpmon cannot run on this host, 1 for everything else.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<ConfigError>() {
        2
    } else if matches!(error.downcast_ref(), Some(LoadError::CannotRun(_))) {
        3
    } else {
        1
    }
}
