//! `tcpmon doctor`: reads the facts, decides, and prints the result.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::{
    cli::{DoctorArgs, DoctorFormat},
    doctor::{diff, examine, gather::gather, render},
    sandbox,
};

/// A file that was given to `--save` or `--diff` and cannot be used for that.
#[derive(Debug, thiserror::Error)]
pub(super) enum WrongFile {
    #[error("--save {}: the file exists: choose another name", .0.display())]
    Exists(PathBuf),
    #[error("--diff {}: not an answer of this version's tcpmon doctor: `--save FILE` or `--format json` makes one",
        .0.display())]
    NotSaved(PathBuf),
}

/// Returns the exit code: 0 if nothing was found, 3 if tcpmon cannot run here, 1 for any other finding. With `--diff`,
/// 1 if something has changed.
pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<u8> {
    // The doctor does not need the capabilities that the daemon gives up first, so both find the same.
    sandbox::begin().context("cannot give up capabilities")?;
    let before = args.diff.as_deref().map(read).transpose()?;
    let facts = gather(&args.device)?;
    let goal = args.goal(&facts);
    let diagnosis = examine(&facts, &goal);
    let json = render::json(&facts, &goal, &diagnosis)? + "\n";
    if let Some(path) = &args.save {
        save(path, &json)?;
    }
    let found = match (diagnosis.refuses(), diagnosis.findings.is_empty()) {
        (true, _) => 3,
        (false, true) => 0,
        (false, false) => 1,
    };
    let (text, code) = match (before, args.format) {
        (Some(before), format) => {
            let differences = diff::differences(&before, &serde_json::from_str(&json)?);
            let text = match format {
                DoctorFormat::Text => diff::text(&differences),
                DoctorFormat::Json => {
                    let answer = json!({ "format_version": render::FORMAT_VERSION, "differences": &differences });
                    serde_json::to_string_pretty(&answer)? + "\n"
                }
            };
            (text, u8::from(!differences.is_empty()))
        }
        (None, DoctorFormat::Text) => (render::text(&facts, &goal, &diagnosis), found),
        (None, DoctorFormat::Json) => (json, found),
    };
    io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(code)
}

fn read(path: &Path) -> anyhow::Result<Value> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let saved = serde_json::from_slice(&text)
        .ok()
        .filter(|saved: &Value| saved["format_version"] == render::FORMAT_VERSION && saved["facts"].is_object());
    Ok(saved.ok_or_else(|| WrongFile::NotSaved(path.to_owned()))?)
}

fn save(path: &Path, json: &str) -> anyhow::Result<()> {
    let saved = File::create_new(path).and_then(|mut file| file.write_all(json.as_bytes()));
    match saved {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(WrongFile::Exists(path.to_owned()).into()),
        saved => saved.with_context(|| format!("cannot write to {}", path.display())),
    }
}
