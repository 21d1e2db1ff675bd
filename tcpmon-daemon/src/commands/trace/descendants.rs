//! The processes that other processes have started.

use std::{collections::HashMap, fs};

use crate::{host::read_text, process_stat::ProcessStat};

/// The processes that have one of `pids` among their ancestors, as `/proc` shows them now.
pub(super) fn descendants(pids: &[u32]) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parents: HashMap<u32, u32> = ids.filter_map(|id: u32| Some((id, parent(id)?))).collect();
    let descends = |id: &u32| {
        let ancestors = std::iter::successors(parents.get(id).copied(), |id| parents.get(id).copied());
        // At most as many steps as there are processes, because processes that were read at different times may form a
        // cycle.
        ancestors.take(parents.len()).any(|ancestor| pids.contains(&ancestor))
    };
    parents.keys().copied().filter(descends).collect()
}

fn parent(id: u32) -> Option<u32> {
    ProcessStat::parse(&read_text(format!("/proc/{id}/stat")).ok()?)?.parent()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_descends_from_this_process_and_this_process_not_from_the_child() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat");
        let of_us = descendants(&[std::process::id()]);
        let of_child = descendants(&[child.id()]);
        let id = child.id();
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(of_us.contains(&id) && !of_us.contains(&std::process::id()), "{of_us:?}");
        assert_eq!(of_child, Vec::<u32>::new());
    }
}
