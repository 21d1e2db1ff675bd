//! The eBPF programs that are loaded in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use aya::programs::loaded_programs;
use tcpmon_tests::eventually;

/// Ids of the programs that a process has open.
pub fn of_process(pid: u32) -> BTreeSet<u32> {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return BTreeSet::new() };
    let texts = descriptors.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
    texts.filter_map(|text| text.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok())).collect()
}

/// Number of runs of these programs, and ns spent in them, by name. Programs that share a name are summed.
pub fn counts(ids: &BTreeSet<u32>) -> BTreeMap<String, (u64, u64)> {
    let mut counts = BTreeMap::new();
    for program in loaded_programs().flatten().filter(|program| ids.contains(&program.id())) {
        let (runs, ns) = counts.entry(program.name_as_str().unwrap_or_default().to_owned()).or_insert((0, 0));
        *runs += program.run_count();
        *ns += u64::try_from(program.run_time().as_nanos()).unwrap_or(u64::MAX);
    }
    counts
}

/// Waits until the kernel has freed these programs, which it does some time after the last descriptor is closed.
pub fn wait_until_gone(ids: &BTreeSet<u32>) {
    eventually(Duration::from_secs(10), "the eBPF programs of the last arm are gone", || {
        let left: Vec<u32> = loaded().map(|(id, _)| id).filter(|id| ids.contains(id)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("programs {left:?}")) }
    });
}

/// Warns about other programs that are loaded: their cost is in every arm.
pub fn warn_of_others() {
    let names: Vec<String> = loaded().map(|(_, name)| name).filter(|name| !name.is_empty()).collect();
    if !names.is_empty() {
        eprintln!("warning: other eBPF programs are loaded, and every arm pays for them: {}", names.join(", "));
    }
}

/// Ids and names of the loaded programs. A program that is unloaded meanwhile is left out.
fn loaded() -> impl Iterator<Item = (u32, String)> {
    loaded_programs().flatten().map(|program| (program.id(), program.name_as_str().unwrap_or_default().to_owned()))
}
