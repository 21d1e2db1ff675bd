//! Whether this host's kernel lets tcpmon run.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::workspace;

/// tcpmon's exit code where it cannot run.
const CANNOT_RUN: i32 = 3;

/// What tcpmon says if the kernel forbids the iterator over the sockets' states; `None` if tcpmon runs here.
///
/// Some locked-down kernels refuse every iterator whose program could write to a map, with EPERM and before they look
/// at its first instruction. So no fault of the programs looks like this. Anything else that keeps tcpmon from running
/// is left to the tests, which then fail.
pub fn refusal() -> Result<Option<String>> {
    let mut command = Command::new(workspace::release_binary());
    let trace = command.args(["trace", "--all", "--duration", "1ms"]).output().context("cannot run tcpmon")?;
    let words = String::from_utf8_lossy(&trace.stderr).trim().replace('\n', " ");
    let forbidden = ["the iterator bpf_sk_storage_map", "processed 0 insns", "Operation not permitted"];
    let is_forbidden = forbidden.iter().all(|part| words.contains(part));
    Ok((trace.status.code() == Some(CANNOT_RUN) && is_forbidden).then_some(words))
}
