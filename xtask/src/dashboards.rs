//! `cargo xtask dashboards`: generates the dashboards with `dashboards/generate.py`, which uses Grafana's own SDK, and
//! draws them with `dashboards/pictures.py`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::{build, process, setup, workspace};

/// The library that draws graphs, as npm names it.
const UPLOT: &str = "uplot@1.6.32";

#[derive(clap::Args)]
pub struct Args {
    /// Write nothing; check the dashboards, the alert rules and their tests
    #[arg(long)]
    check: bool,
    /// Also run two minutes of traffic, and write pictures of the dashboards that show it to this folder (needs root)
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "target/dashboards/pictures")]
    pictures: Option<PathBuf>,
}

impl Args {
    /// The arguments of a run as part of all tests.
    pub const CHECK: Self = Self { check: true, pictures: None };
}

/// Writes the dashboards, or with `check` reports whether they, the alerts and their tests are correct.
pub fn run(args: &Args) -> Result<()> {
    setup::test_packages()?;
    let folder = workspace::root().join("dashboards");
    let python = setup::python(&folder.join("requirements.txt"), &workspace::root().join("target/dashboards"))?;
    let mut command = Command::new(python);
    // -B: no compiled files next to the sources.
    command.arg("-B").arg(folder.join("generate.py"));
    if args.check {
        command.arg("--check");
    }
    process::run(&mut command)?;
    args.pictures.as_ref().map_or(Ok(()), |pictures| draw(&folder, pictures))
}

/// Draws the dashboards from real traffic.
fn draw(folder: &Path, pictures: &Path) -> Result<()> {
    setup::picture_packages()?;
    let environment = workspace::root().join("target/dashboards");
    process::run(
        Command::new("npm").args(["install", "--silent", "--no-save", "--prefix"]).arg(&environment).arg(UPLOT),
    )?;
    let programs = build::release_with(&["pictures", "traffic"])?;
    process::run(
        Command::new(programs.join("pictures"))
            .arg(environment.join("bin/python"))
            .arg("-B")
            .arg(folder.join("pictures.py"))
            .arg("--node-modules")
            .arg(environment.join("node_modules"))
            .arg(pictures)
            .env("TCPMON_BIN", programs.join("tcpmon")),
    )
}
