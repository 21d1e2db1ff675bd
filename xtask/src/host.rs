//! Steps that need tcpmon to run on this host's kernel.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result};

use crate::process;

/// tcpmon's exit code where it cannot run.
const CANNOT_RUN: i32 = 3;

/// Whether this host's kernel allows tcpmon.
#[derive(Debug)]
pub struct Host {
    /// What the tcpmon that was tried said, if the kernel forbids the iterator over the sockets' states.
    refusal: Option<String>,
}

impl Host {
    /// Tries the tcpmon at this path.
    ///
    /// Some locked-down kernels refuse every iterator whose program could write to a map, with EPERM and before they
    /// look at its first instruction. So no fault of the programs looks like this. Anything else that keeps tcpmon from
    /// running is left to the steps, which then fail.
    pub fn ask(tcpmon: &Path) -> Result<Self> {
        let mut command = Command::new(tcpmon);
        let trace = command.args(["trace", "--all", "--duration", "1ms"]).output();
        let trace = trace.with_context(|| format!("cannot run {}", tcpmon.display()))?;
        let words = String::from_utf8_lossy(&trace.stderr).trim().replace('\n', " ");
        let forbidden = ["the iterator bpf_sk_storage_map", "processed 0 insns", "Operation not permitted"];
        let is_forbidden = forbidden.iter().all(|part| words.contains(part));
        Ok(Self { refusal: (trace.status.code() == Some(CANNOT_RUN) && is_forbidden).then_some(words) })
    }

    /// Whether the kernel forbids it.
    pub fn forbids(&self) -> bool {
        self.refusal.is_some()
    }

    /// Runs one step of a longer command, unless the kernel forbids tcpmon.
    pub fn step(&self, name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some(words) = &self.refusal else { return process::step(name, work) };
        eprintln!("=== {name}: NOT RUN, because this host's kernel forbids tcpmon: {words}");
        Ok(())
    }
}
