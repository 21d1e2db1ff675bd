//! The readers' control groups by process, so that each is looked up once per process instead of once per connection.

use std::{collections::HashMap, sync::Arc};

use super::cgroup_label::Cgroup;

/// Looks up the paths of a process's control groups, one per hierarchy, the most informative first; empty if they
/// cannot be found any more.
pub type CgroupOf = Box<dyn FnMut(&Process) -> Vec<String> + Send>;

/// A process that reads, as the programs saw it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Thread-group id; 0 if there is none.
    pub tgid: u32,
    /// Id of its control group (v2) at its first read; 0 if it is not known.
    pub cgroup: u64,
    /// Its name: a process id may be reused, mostly by a process with another name.
    pub name: String,
}

/// Maximum number of processes that are remembered. Further ones are looked up each time.
const PROCESSES: usize = 16_384;

/// An entry is removed after this many passes that have not used it.
const UNUSED: u8 = 2;

/// Label of a process that has exited, and of a socket without a reader.
const UNKNOWN: &str = "other";

/// See the module documentation.
pub(super) struct Cgroups {
    of: CgroupOf,
    known: HashMap<Process, Known>,
    unknown: Arc<Cgroup>,
}

struct Known {
    cgroup: Arc<Cgroup>,
    unused: u8,
}

impl Cgroups {
    pub(super) fn new(of: CgroupOf) -> Self {
        Self { of, known: HashMap::new(), unknown: Arc::new(Cgroup::named(UNKNOWN)) }
    }

    /// Returns the process's control group.
    pub(super) fn of(&mut self, process: Process) -> Arc<Cgroup> {
        if process.tgid == 0 {
            return Arc::clone(&self.unknown);
        }
        if let Some(known) = self.known.get_mut(&process) {
            known.unused = 0;
            return Arc::clone(&known.cgroup);
        }
        let cgroup = Cgroup::of_paths(&(self.of)(&process)).map_or_else(|| Arc::clone(&self.unknown), Arc::new);
        if self.known.len() < PROCESSES {
            self.known.insert(process, Known { cgroup: Arc::clone(&cgroup), unused: 0 });
        }
        cgroup
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
        let of = move |process: &Process| {
            count.fetch_add(1, Relaxed);
            let Process { tgid, cgroup, .. } = process;
            (*tgid < 100_000).then(|| format!("/system.slice/{tgid}-{cgroup}.service")).into_iter().collect()
        };
        (Cgroups::new(Box::new(of)), asked)
    }

    fn label(cgroups: &mut Cgroups, tgid: u32, cgroup: u64, name: &str) -> String {
        cgroups.of(Process { tgid, cgroup, name: name.into() }).label.clone()
    }

    #[test]
    fn a_process_is_looked_up_once_however_many_connections_it_reads() {
        let (mut cgroups, asked) = cgroups();
        for _ in 0..20_000 {
            assert_eq!(label(&mut cgroups, 7, 1, "nginx"), "7-1.service");
            assert_eq!(label(&mut cgroups, 100_007, 1, "curl"), "other");
            assert_eq!(label(&mut cgroups, 0, 0, ""), "other");
        }
        assert_eq!(asked.load(Relaxed), 2);
        label(&mut cgroups, 7, 1, "another");
        assert_eq!(asked.load(Relaxed), 3, "it runs another program now, or is another process");
        assert_eq!(label(&mut cgroups, 7, 2, "nginx"), "7-2.service", "it was in another control group then");
    }

    #[test]
    fn processes_that_two_passes_have_not_used_are_forgotten() {
        let (mut cgroups, asked) = cgroups();
        label(&mut cgroups, 7, 1, "nginx");
        for (passes, times) in [(2, 1), (2, 1), (3, 2), (4, 3)] {
            for _ in 0..passes {
                cgroups.end_pass();
            }
            label(&mut cgroups, 7, 1, "nginx");
            assert_eq!(asked.load(Relaxed), times, "after {passes} passes");
        }
    }

    #[test]
    fn remembered_processes_are_bounded_and_further_ones_are_looked_up_each_time() {
        let (mut cgroups, asked) = cgroups();
        for tgid in 1..=PROCESSES as u32 + 10 {
            assert_eq!(label(&mut cgroups, tgid, 1, "many"), format!("{tgid}-1.service"));
        }
        assert_eq!(cgroups.known.len(), PROCESSES);
        let before = asked.load(Relaxed);
        label(&mut cgroups, 1, 1, "many");
        label(&mut cgroups, PROCESSES as u32 + 10, 1, "many");
        assert_eq!(asked.load(Relaxed), before + 1);
    }
}
