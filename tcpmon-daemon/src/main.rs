//! The binary: reads the arguments, runs the command, and makes an exit code of how it ended.

use std::process::ExitCode;

use tcpmon::{cli::Cli, commands};

fn main() -> ExitCode {
    match commands::run(Cli::from_environment()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tcpmon: {}", commands::sentence(&error));
            ExitCode::from(commands::exit_code(&error))
        }
    }
}
