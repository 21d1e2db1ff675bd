//! Steps that need tcpmon to run on this host's kernel.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result};

use crate::process;

/// tcpmon's exit code where it cannot run.
const CANNOT_RUN: i32 = 3;

/// Runs one step of a longer command, unless this kernel forbids the tcpmon at this path.
pub fn step(name: &str, tcpmon: &Path, work: impl FnOnce() -> Result<()>) -> Result<()> {
    match refusal(tcpmon)? {
        None => process::step(name, work),
        Some(words) => {
            eprintln!("=== {name}: NOT RUN, because this host's kernel forbids tcpmon: {words}");
            Ok(())
        }
    }
}

/// What tcpmon says if the kernel forbids the iterator over the sockets' states; `None` if tcpmon runs here.
///
/// Some locked-down kernels refuse every iterator whose program could write to a map, with EPERM and before they look
/// at its first instruction. So no fault of the programs looks like this. Anything else that keeps tcpmon from running
/// is left to the step, which then fails.
pub fn refusal(tcpmon: &Path) -> Result<Option<String>> {
    let mut command = Command::new(tcpmon);
    let trace = command.args(["trace", "--all", "--duration", "1ms"]).output();
    let trace = trace.with_context(|| format!("cannot run {}", tcpmon.display()))?;
    let words = String::from_utf8_lossy(&trace.stderr).trim().replace('\n', " ");
    let forbidden = ["the iterator bpf_sk_storage_map", "processed 0 insns", "Operation not permitted"];
    let is_forbidden = forbidden.iter().all(|part| words.contains(part));
    Ok((trace.status.code() == Some(CANNOT_RUN) && is_forbidden).then_some(words))
}
