//! Readers whose end the programs have missed.
//!
//! Where programs on tracepoints can be preempted (7.0 and newer), the program that sees threads end misses those that
//! end while another instance of it is preempted on the same CPU. Their slots would stay taken forever. They are freed
//! once the whole process is gone. For a single thread this cannot be known, because a thread that runs another program
//! (exec) takes the id of its process.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt as _,
    time::{Duration, Instant},
};

use crate::{host::read_text, process_stat::ProcessStat};

/// Inode of the initial PID namespace (`include/linux/proc_ns.h`).
const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;

/// How long a process must have been gone before its slots are freed, if `sched_switch` sees the ends of threads: a
/// thread leaves `/proc` before it leaves its CPU for the last time, and other threads may delay that.
pub const UNTIL_LAST_SWITCH: Duration = Duration::from_secs(60);

/// Whether `/proc` shows every process of the host by its id in the initial PID namespace: not in another namespace,
/// and not where the mount option `hidepid` hides the processes of other users, such as init.
pub fn sees_all_processes() -> bool {
    let own = fs::metadata("/proc/self/ns/pid");
    own.is_ok_and(|own| own.ino() == INITIAL_PID_NAMESPACE) && process_exists(1)
}

/// Whether `/proc` shows this process as more than a zombie that its parent has not waited for yet.
pub fn process_exists(pid: u32) -> bool {
    let Ok(stat) = read_text(format!("/proc/{pid}/stat")) else { return false };
    !ProcessStat::parse(&stat).is_some_and(ProcessStat::is_zombie)
        || fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.count() > 1)
}

/// Slots whose processes are gone although no program saw their threads end.
#[derive(Debug, Default)]
pub struct MissedEnds {
    /// By slot: the process that is gone, and since when.
    gone: HashMap<u32, (u32, Instant)>,
}

impl MissedEnds {
    /// Returns the slots to free. `readers`: slots and their processes, of which no end was seen; `grace`: how long a
    /// process must have been gone.
    pub fn look(
        &mut self,
        readers: impl Iterator<Item = (u32, u32)>,
        now: Instant,
        grace: Duration,
        exists: impl Fn(u32) -> bool,
    ) -> Vec<u32> {
        let mut ended = Vec::new();
        let mut gone = HashMap::new();
        // Look up each process once: it may have thousands of readers.
        let mut known = HashMap::new();
        for (slot, pid) in readers.filter(|(_, pid)| !*known.entry(*pid).or_insert_with(|| exists(*pid))) {
            let since = self.gone.get(&slot).filter(|(before, _)| *before == pid).map_or(now, |(_, since)| *since);
            if now.duration_since(since) >= grace {
                ended.push(slot);
            } else {
                gone.insert(slot, (pid, since));
            }
        }
        self.gone = gone;
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read as _,
        path::Path,
        process::{Command, Stdio},
    };

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_slot_is_free_once_its_process_has_been_gone_for_long_enough() {
        let (mut ends, start) = (MissedEnds::default(), Instant::now());
        let mut look = |second: u32, readers: &[(u32, u32)], gone: &[u32]| {
            let exists = |pid| !gone.contains(&pid);
            ends.look(readers.iter().copied(), start + SECOND * second, 60 * SECOND, exists)
        };
        let readers = [(1, 100), (2, 200)];
        assert_eq!(look(1, &readers, &[100]), [0_u32; 0]);
        assert_eq!(look(60, &readers, &[100]), [0_u32; 0]);
        assert_eq!(look(61, &readers, &[100, 200]), [1]);
        // Another process in the same slot starts anew.
        assert_eq!(look(70, &[(2, 300)], &[300]), [0_u32; 0]);
        assert_eq!(look(130, &[(2, 300)], &[300]), [2]);
        assert_eq!(ends.look([(3, 400)].into_iter(), start, Duration::ZERO, |_| false), [3]);
    }

    #[test]
    fn a_process_exists_whatever_its_name_is() {
        let script = "printf 'B\\374cro' > /proc/$$/comm; echo; cat; :";
        let mut odd = Command::new("sh");
        let mut odd = odd.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        odd.stdout.as_mut().expect("it is piped").read_exact(&mut [0]).unwrap();
        let name = fs::read(format!("/proc/{}/comm", odd.id())).unwrap();
        assert_eq!((name.as_slice(), process_exists(odd.id())), (&b"B\xfccro\n"[..], true));
        drop(odd.stdin.take());
        odd.wait().unwrap();
    }

    #[test]
    fn a_process_exists_while_it_runs() {
        assert!(process_exists(std::process::id()));
        assert!(!process_exists(u32::MAX));
        let mut ended = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert!(process_exists(ended.id()));
        drop(ended.stdin.take());
        // A zombie, because nobody waits for it yet.
        let deadline = Instant::now() + 20 * SECOND;
        while process_exists(ended.id()) {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        assert!(Path::new(&format!("/proc/{}", ended.id())).exists());
        ended.wait().unwrap();
    }
}
