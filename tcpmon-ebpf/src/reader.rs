//! Who reads: the thread in whose context a socket was drained.

use tcpmon_common::{
    reader::{FIRST_EPHEMERAL, READER_ACTIVE, READER_SERVICES, READER_TRACED, ReaderSlot, SLOT_NONE},
    settings::FILTER_CGROUPS,
    socket::{SOCKET_ACTIVE, SOCKET_PASSIVE, SocketState},
};

use crate::{
    kernel::{self, Task, TcpSock, setting},
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
    begin(reader, slot, task.tid(), task.tgid(), task.process(), kernel::now_ns());
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

/// Fills a slot that was taken; all else in it is zero.
#[inline(always)]
fn begin(reader: &mut ReaderSlot, slot: u32, tid: u32, tgid: u32, process: [u8; 16], now: u64) {
    reader.tid = tid;
    reader.tgid = tgid;
    reader.process = process;
    reader.begun_ns = now;
    reader.sums = slot;
    reader.next = SLOT_NONE;
    reader.flags = READER_ACTIVE;
}

/// Makes the thread the socket's last reader; without a slot, it cannot be followed.
#[inline(always)]
pub fn take_over(state: &mut SocketState, task: Task, slot: u32) {
    state.reader_tid = task.tid();
    state.reader_tgid = task.tgid();
    state.process = task.process();
    state.reader_slot = slot;
    if slot != SLOT_NONE
        && let Some(reader) = maps::reader(slot)
    {
        state.reader_switches = reader.switches;
    }
}

/// The socket's reader has read from it: its timeslices count for the socket's service from the one that runs now.
#[inline(always)]
pub fn turn_to(state: &SocketState, tcp: TcpSock) -> Option<()> {
    let first = state.reader_slot;
    let reader = maps::reader(first)?;
    // Most threads read the same socket again.
    if reader.cookie == state.cookie {
        return None;
    }
    reader.cookie = state.cookie;
    let service = Service::of(state, tcp);
    let mut slot = first;
    let mut found = false;
    let mut i = 0;
    while i < READER_SERVICES {
        let reader = maps::reader(slot)?;
        if service.is_that_of(reader) {
            found = true;
            break;
        }
        if reader.next == SLOT_NONE {
            break;
        }
        slot = reader.next;
        i += 1;
    }
    let reader = maps::reader(first)?;
    if !found && reader.services < READER_SERVICES as u32 {
        slot = add_service(reader, first, slot, service)?;
    }
    reader.sums = slot;
    None
}

/// The slot for a service that the thread has not read for; `last` is the end of its chain.
#[inline(always)]
fn add_service(reader: &mut ReaderSlot, first: u32, last: u32, mut service: Service) -> Option<u32> {
    // A fresh slot has none.
    if reader.services == 0 {
        reader.services = 1;
        service.write(reader);
        return Some(first);
    }
    let slot = maps::take_slot()?;
    reader.services += 1;
    // The last one takes all that come after it.
    if reader.services == READER_SERVICES as u32 {
        service = Service::OTHER;
    }
    let added = maps::reader(slot)?;
    begin(added, slot, reader.tid, reader.tgid, reader.process, reader.begun_ns);
    service.write(added);
    maps::reader(last)?.next = slot;
    Some(slot)
}

/// What decides about the label `service`.
struct Service {
    flags: u32,
    local_port: u16,
    remote_port: u16,
    netns: u32,
}

impl Service {
    /// No service is this one: neither side accepted or opened it towards a port that names one.
    const OTHER: Self = Self { flags: SOCKET_ACTIVE, local_port: 0, remote_port: u16::MAX, netns: u32::MAX };

    #[inline(always)]
    fn of(state: &SocketState, tcp: TcpSock) -> Self {
        let flags = state.flags & (SOCKET_PASSIVE | SOCKET_ACTIVE);
        let (local_port, remote_port) = tcp.ports();
        // Of an accepted connection only this side's port matters, of an opened one only the other's. Of one older than
        // tcpmon, most likely the port that is not ephemeral; a remote port that is, names no service.
        let (is_local, is_remote) = (local_port < FIRST_EPHEMERAL, remote_port < FIRST_EPHEMERAL);
        let opened = flags == SOCKET_ACTIVE || flags == 0 && is_remote && !is_local;
        let accepted = flags == SOCKET_PASSIVE || flags == 0 && is_local && !is_remote;
        Self {
            flags,
            local_port: if opened { 0 } else { local_port },
            remote_port: if accepted || !is_remote { u16::MAX } else { remote_port },
            netns: tcp.netns(),
        }
    }

    #[inline(always)]
    fn is_that_of(&self, reader: &ReaderSlot) -> bool {
        // One comparison, for the sake of the verifier.
        let ports = (reader.local_port ^ self.local_port) | (reader.remote_port ^ self.remote_port);
        (reader.socket_flags ^ self.flags) | (reader.netns ^ self.netns) | ports as u32 == 0
    }

    #[inline(always)]
    fn write(&self, reader: &mut ReaderSlot) {
        reader.socket_flags = self.flags;
        reader.local_port = self.local_port;
        reader.remote_port = self.remote_port;
        reader.netns = self.netns;
    }
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
