//! The readers' control groups by process, so that `/proc` is read once per process and not for each connection.

use std::collections::HashMap;

use super::cgroup_label::label;

/// Looks up the path of a thread group's control group; `None` if the thread group is gone.
pub type CgroupOf = Box<dyn FnMut(u32) -> Option<String> + Send>;

/// Maximum number of processes that are remembered. Further ones are looked up each time.
const PROCESSES: usize = 16_384;

/// An entry is removed after this many passes that have not used it.
const UNUSED: u8 = 2;

/// Label of a process that has exited, and of a socket without a reader.
const UNKNOWN: &str = "other";

/// See the module documentation.
pub(super) struct Cgroups {
    of: CgroupOf,
    /// By thread group and name: a process id may be reused, mostly by a process with another name.
    known: HashMap<(u32, String), Known>,
}

struct Known {
    label: String,
    unused: u8,
}

impl Cgroups {
    pub(super) fn new(of: CgroupOf) -> Self {
        Self { of, known: HashMap::new() }
    }

    /// The label of the process with this thread group and name.
    pub(super) fn label(&mut self, tgid: u32, process: &str) -> String {
        if tgid == 0 {
            return UNKNOWN.to_owned();
        }
        let process = (tgid, process.to_owned());
        if let Some(known) = self.known.get_mut(&process) {
            known.unused = 0;
            return known.label.clone();
        }
        let label = (self.of)(tgid).map_or_else(|| UNKNOWN.to_owned(), |path| label(&path));
        if self.known.len() < PROCESSES {
            self.known.insert(process, Known { label: label.clone(), unused: 0 });
        }
        label
    }

    /// Ends a pass.
    pub(super) fn end_pass(&mut self) {
        self.known.retain(|_, known| {
            known.unused += 1;
            known.unused <= UNUSED
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use super::*;

    /// Counts the lookups; processes above 100,000 have exited.
    fn cgroups() -> (Cgroups, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let of = move |tgid| {
            count.fetch_add(1, Relaxed);
            (tgid < 100_000).then(|| format!("/system.slice/{tgid}.service"))
        };
        (Cgroups::new(Box::new(of)), asked)
    }

    #[test]
    fn a_process_is_looked_up_once_however_many_connections_it_reads() {
        let (mut cgroups, asked) = cgroups();
        for _ in 0..20_000 {
            assert_eq!(cgroups.label(7, "nginx"), "7.service");
            assert_eq!(cgroups.label(100_007, "curl"), "other");
            assert_eq!(cgroups.label(0, ""), "other");
        }
        assert_eq!(asked.load(Relaxed), 2);
        cgroups.label(7, "another");
        assert_eq!(asked.load(Relaxed), 3, "it runs another program now, or is another process");
    }

    #[test]
    fn what_two_passes_have_not_used_is_forgotten() {
        let (mut cgroups, asked) = cgroups();
        cgroups.label(7, "nginx");
        for (passes, times) in [(2, 1), (2, 1), (3, 2), (4, 3)] {
            for _ in 0..passes {
                cgroups.end_pass();
            }
            cgroups.label(7, "nginx");
            assert_eq!(asked.load(Relaxed), times, "after {passes} passes");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut cgroups, asked) = cgroups();
        for tgid in 1..=PROCESSES as u32 + 10 {
            assert_eq!(cgroups.label(tgid, "many"), format!("{tgid}.service"));
        }
        assert_eq!(cgroups.known.len(), PROCESSES);
        let before = asked.load(Relaxed);
        cgroups.label(1, "many");
        cgroups.label(PROCESSES as u32 + 10, "many");
        assert_eq!(asked.load(Relaxed), before + 1);
    }
}
