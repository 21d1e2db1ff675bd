//! The binary: parses the arguments, runs the command, and converts its result to an exit code.

use std::process::ExitCode;

use tcpmon::{cli::Cli, commands};

fn main() -> ExitCode {
    match commands::run(Cli::from_environment()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            commands::print_message(&commands::one_line(&error));
            ExitCode::from(commands::exit_code(&error))
        }
    }
}
