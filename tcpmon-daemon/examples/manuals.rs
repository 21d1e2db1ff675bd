//! Writes the manual pages, shell completions and default settings of tcpmon to the folder that is given, for
//! `cargo xtask dist`.

use std::{env, error::Error, fs, path::PathBuf};

use clap::CommandFactory as _;
use clap_complete::{Shell, generate_to};
use tcpmon::{cli::Cli, config::Config};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(env::args_os().nth(1).ok_or("usage: manuals FOLDER")?);
    fs::create_dir_all(&folder)?;
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), &folder)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        generate_to(shell, &mut Cli::command(), "tcpmon", &folder)?;
    }
    fs::write(folder.join("tcpmon.toml"), Config::default().to_string())?;
    Ok(())
}
