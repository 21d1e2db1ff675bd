//! Threads whose end the programs have missed.
//!
//! Where programs on tracepoints can be preempted (7.2 and newer), the program that sees a thread end can be missing
//! that event while another instance of it is preempted on the same CPU. Such a thread would keep its slot for ever.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::{Duration, Instant},
};

/// Inode of the initial PID namespace (`include/linux/proc_ns.h`).
const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;

/// How long after an event was missed ends are looked for: the first thread of a process stays until its parent has
/// asked for its status.
const LOOK_FOR: Duration = Duration::from_secs(300);

/// How long a thread must have been gone from `/proc` before its slot is free, if `sched_switch` sees ends: the thread
/// leaves `/proc` before it leaves its CPU for the last time, and another thread may delay that.
pub const UNTIL_LAST_SWITCH: Duration = Duration::from_secs(60);

/// Whether a thread with this id of the initial PID namespace exists; `None` if that cannot be told from here.
pub fn thread_exists(tid: u32) -> Option<bool> {
    let own = fs::metadata("/proc/self/ns/pid").ok()?;
    (own.ino() == INITIAL_PID_NAMESPACE).then(|| Path::new(&format!("/proc/{tid}")).exists())
}

/// Slots whose threads are gone although nobody saw them end.
#[derive(Debug, Default)]
pub struct MissedEnds {
    /// Events that had been missed at the last look.
    missed: u64,
    /// Until when to look.
    until: Option<Instant>,
    /// Slot -> thread that is gone, and since when.
    gone: HashMap<u32, (u32, Instant)>,
}

impl MissedEnds {
    /// The slots to be freed. `readers`: slots with their threads, of which no end was seen; `missed`: events that the
    /// programs have missed so far; `grace`: how long a thread must have been gone.
    pub fn look(
        &mut self,
        readers: impl Iterator<Item = (u32, u32)>,
        missed: u64,
        now: Instant,
        grace: Duration,
        exists: impl Fn(u32) -> Option<bool>,
    ) -> Vec<u32> {
        if missed > self.missed {
            (self.missed, self.until) = (missed, Some(now + LOOK_FOR));
        }
        if self.until.is_none_or(|until| until < now) {
            self.gone.clear();
            return Vec::new();
        }
        let mut ended = Vec::new();
        let mut gone = HashMap::new();
        for (slot, tid) in readers.filter(|(_, tid)| exists(*tid) == Some(false)) {
            let since = self.gone.get(&slot).filter(|(before, _)| *before == tid).map_or(now, |(_, since)| *since);
            if now.duration_since(since) >= grace {
                ended.push(slot);
            } else {
                gone.insert(slot, (tid, since));
            }
        }
        self.gone = gone;
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NONE: [u32; 0] = [];

    #[test]
    fn a_slot_is_free_once_its_thread_has_been_gone_for_long_enough() {
        let (mut ends, start) = (MissedEnds::default(), Instant::now());
        let mut look = |second: u32, missed, readers: &[(u32, u32)], gone: &[u32]| {
            let exists = |tid| Some(!gone.contains(&tid));
            ends.look(readers.iter().copied(), missed, start + SECOND * second, 60 * SECOND, exists)
        };
        let readers = [(1, 100), (2, 200)];
        assert_eq!(look(0, 0, &readers, &[100]), NONE, "nothing was missed");
        assert_eq!(look(1, 1, &readers, &[100]), NONE);
        assert_eq!(look(60, 1, &readers, &[100]), NONE);
        assert_eq!(look(61, 1, &readers, &[100, 200]), [1]);
        // Another thread in the same slot starts anew.
        assert_eq!(look(70, 1, &[(2, 300)], &[300]), NONE);
        assert_eq!(look(130, 1, &[(2, 300)], &[300]), [2]);
        assert_eq!(look(302, 1, &[(3, 400)], &[400]), NONE, "long after the last miss");
        assert_eq!(look(303, 2, &[(3, 400)], &[400]), NONE);
        assert_eq!(look(363, 2, &[(3, 400)], &[400]), [3]);
    }

    #[test]
    fn nothing_is_free_that_cannot_be_told() {
        let mut ends = MissedEnds::default();
        assert_eq!(ends.look([(1, 100)].into_iter(), 1, Instant::now(), Duration::ZERO, |_| None), NONE);
        assert_eq!(ends.look([(1, 100)].into_iter(), 1, Instant::now(), Duration::ZERO, |_| Some(false)), [1]);
    }

    #[test]
    fn a_thread_exists_while_it_runs() {
        let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        if let Some(exists) = thread_exists(own) {
            assert!(exists);
            assert_eq!(thread_exists(u32::MAX), Some(false));
        }
    }
}
