//! Who reads: the thread in whose context a socket was drained.

use tcpmon_common::{
    reader::{READER_ACTIVE, READER_TRACED, SLOT_NONE},
    settings::FILTER_CGROUPS,
    socket::SocketState,
};

use crate::{
    kernel::{Task, TcpSock, setting},
    maps::{self, Known},
    timeslice,
};

/// The slot of the thread, which becomes a reader by this call; `None` when it cannot be followed or, in a trace,
/// is not asked for.
#[inline(always)]
pub fn enter(task: Task) -> Option<u32> {
    let new = match maps::known(task) {
        Known::Slot(slot) => return Some(slot),
        Known::Ignored | Known::Refused => return None,
        Known::New(new) => new,
    };
    if setting!(trace) != 0 && !is_asked_for(task) {
        new.remember(None);
        return None;
    }
    let slot = maps::take_slot()?;
    let reader = maps::reader(slot)?;
    reader.tid = task.tid();
    reader.tgid = task.tgid();
    reader.process = task.process();
    reader.flags = READER_ACTIVE;
    reader.exec_ns = task.exec_ns();
    reader.run_delay_ns = task.run_delay_ns();
    // It is running: that is how it came here.
    reader.switches = 1;
    if setting!(trace) != 0 {
        reader.flags |= READER_TRACED;
        timeslice::begin(slot);
    }
    new.remember(Some(slot));
    Some(slot)
}

/// Makes the thread the socket's last reader.
#[inline(always)]
pub fn take_over(state: &mut SocketState, tcp: TcpSock, task: Task, slot: u32) -> Option<()> {
    let reader = maps::reader(slot)?;
    reader.socket_flags = state.flags;
    (reader.local_port, reader.remote_port) = tcp.ports();
    reader.netns = tcp.netns();
    state.reader_tid = task.tid();
    state.reader_tgid = task.tgid();
    state.reader_slot = slot;
    state.reader_switches = reader.switches;
    state.process = task.process();
    Some(())
}

/// Names the process that opened the socket, until somebody reads from it.
#[inline(always)]
pub fn opened_by(state: &mut SocketState, task: Task) {
    state.reader_slot = SLOT_NONE;
    state.reader_tgid = task.tgid();
    state.process = task.process();
}

/// The trace's filters on threads: all kinds that are given must match, one entry of each kind is enough.
#[inline(always)]
pub fn is_asked_for(task: Task) -> bool {
    if setting!(filter_tgids) != 0 && !maps::filter_has_tgid(task.tgid()) {
        return false;
    }
    if setting!(filter_comms) != 0 && !maps::filter_has_comm(&task.process()) {
        return false;
    }
    if setting!(filter_cgroups) != 0 {
        let mut i = 0;
        while i < FILTER_CGROUPS {
            if (i as u32) < setting!(filter_cgroups)
                && Task::current_ancestor_cgroup(setting!(cgroup_levels[i])) == setting!(cgroups[i])
            {
                return true;
            }
            i += 1;
        }
        return false;
    }
    true
}
