//! Readers: the threads in whose context sockets are drained.
#![expect(unsafe_code, reason = "a function by name")]

use tcpmon_common::{
    header::{Header, KIND_READER_EXIT, VERSION},
    loss::Loss,
    name::Name,
    reader::{FIRST_EPHEMERAL, READER_ACTIVE, READER_EXITED, READER_SERVICES, READER_TRACED, ReaderSlot, SLOT_NONE},
    settings::{FILTER_CGROUPS, TRACE_NONE, TRACE_TIMESLICES},
    socket::{SOCKET_ACTIVE, SOCKET_PASSIVE, SOCKET_PORT_CHOSEN, SOCKET_SERVICE, SocketIdentity, SocketState},
};

use crate::{
    kernel::{self, Task, setting},
    maps::{self, ReaderThread},
    store, trace,
};

/// The slot of the thread, which this call makes a reader. `None` if it cannot be followed or, in a trace, does not
/// match the filters.
#[inline(always)]
pub fn enter(task: Task) -> Option<u32> {
    let new = match maps::reader_thread(task) {
        ReaderThread::Slot(slot) => {
            // A thread that runs another program (exec) gets the thread id of its group's leader.
            maps::reader(slot)?.tid = task.tid();
            return Some(slot);
        }
        ReaderThread::Ignored | ReaderThread::Refused => return None,
        ReaderThread::New(new) => new,
    };
    if setting!(trace) != TRACE_NONE && !matches_filters(task) {
        new.remember(None);
        return None;
    }
    let slot = maps::take_slot()?;
    let reader = maps::reader(slot)?;
    begin(reader, slot, task.tid(), task.process_id(), task.process(), kernel::now_ns());
    reader.exec_ns = task.exec_ns();
    reader.run_delay_ns = task.run_delay_ns();
    // The thread is running, or it would not be here.
    reader.edges = setting!(timeslices) as u32;
    if setting!(trace) != TRACE_NONE {
        reader.flags |= READER_TRACED;
    }
    if setting!(trace) == TRACE_TIMESLICES {
        trace::begin(slot);
    }
    new.remember(Some(slot));
    Some(slot)
}

/// Fills a slot that was just taken; everything else in it is zero.
#[inline(always)]
fn begin(reader: &mut ReaderSlot, slot: u32, tid: u32, tgid: u32, process: Name, now: u64) {
    reader.tid = tid;
    reader.tgid = tgid;
    reader.process = process;
    reader.begun_ns = now;
    reader.sums = slot;
    reader.next = SLOT_NONE;
    reader.flags = READER_ACTIVE;
}

/// Whether the thread is the socket's last reader, under the same name as before.
#[inline(always)]
pub fn is_still(state: &SocketState, task: Task) -> bool {
    let Some(reader) = maps::reader(state.reader_slot) else {
        return false;
    };
    let tid = task.tid();
    // The slot's thread id is compared as well: through exec, a thread gets the id of another thread, which may have
    // read here before.
    (reader.tid ^ tid) | (state.reader_tid ^ tid) == 0 && task.is_process(&state.process)
}

/// Makes the thread the socket's last reader; without a slot, it cannot be followed. Returns whether the reader has
/// changed.
#[inline(always)]
pub fn take_over(state: &mut SocketState, task: Task) -> bool {
    let before = state.reader_slot;
    let was_its = maps::reader(before).is_some_and(|reader| reader.tid == state.reader_tid);
    let slot = enter(task).unwrap_or(SLOT_NONE);
    state.reader_tid = task.tid();
    state.reader_tgid = task.process_id();
    state.process = task.process();
    state.cgroup = task.cgroup();
    state.reader_slot = slot;
    if let Some(reader) = maps::reader(slot) {
        state.reader_edges = reader.edges;
        // From now on, the thread may read for another service, or under another name.
        reader.cookie = 0;
    }
    !was_its || slot != before
}

/// Handles a read by the socket's reader: the thread's timeslices, starting with the current one, count for the
/// socket's service. If nobody counts timeslices, the thread's times since its last read count for the service of that
/// read.
#[inline(always)]
pub fn select_service(state: &SocketState) -> Option<()> {
    let first = state.reader_slot;
    if setting!(timeslices) == 0 {
        add_times(first, Task::current());
    }
    // Most threads read from the same socket again.
    if maps::reader(first)?.cookie != state.cookie {
        change_service(state.index);
    }
    None
}

/// Makes the last reader of the socket with this state read for the socket's service from now on. A function of its
/// own, so that the verifier walks it once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn change_service(index: u32) -> u32 {
    select(index);
    0
}

#[inline(always)]
fn select(index: u32) -> Option<()> {
    let state = store::at(index)?;
    let first = state.reader_slot;
    maps::reader(first)?.cookie = state.cookie;
    let service = Service::of(state);
    let mut slot = first;
    let mut found = false;
    let mut i = 0;
    while i < READER_SERVICES {
        let reader = maps::reader(slot)?;
        if service.matches(reader) {
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

/// Makes a slot for a service that the thread has not read for before; `last` is the end of the thread's chain.
#[inline(always)]
fn add_service(reader: &mut ReaderSlot, first: u32, last: u32, mut service: Service) -> Option<u32> {
    // A new slot has no service yet.
    if reader.services == 0 {
        reader.services = 1;
        service.write(reader);
        return Some(first);
    }
    let slot = maps::take_slot()?;
    reader.services += 1;
    // The last slot stands for all further services.
    if reader.services == READER_SERVICES as u32 {
        service = Service { process: service.process, cgroup: service.cgroup, ..Service::OTHER };
    }
    let added = maps::reader(slot)?;
    begin(added, slot, reader.tid, reader.tgid, service.process, reader.begun_ns);
    service.write(added);
    maps::reader(last)?.next = slot;
    Some(slot)
}

/// What determines the labels `process`, `service` and `cgroup`.
struct Service {
    process: Name,
    cgroup: u64,
    flags: u32,
    local_port: u16,
    remote_port: u16,
    netns: u32,
}

impl Service {
    /// Matches no real service: a connection that was opened from this side, to a port that names no service.
    const OTHER: Self = Self {
        process: [0; 2],
        cgroup: 0,
        flags: SOCKET_ACTIVE,
        local_port: 0,
        remote_port: u16::MAX,
        netns: u32::MAX,
    };

    #[inline(always)]
    fn of(state: &SocketState) -> Self {
        let flags = state.flags & SOCKET_SERVICE;
        let SocketIdentity { netns, service_port: local_port, remote_port, .. } = state.identity;
        // For an accepted connection only the local port matters, for an opened one only the remote port. For a
        // connection that is older than tcpmon, it is most likely the port that is not ephemeral. An ephemeral remote
        // port names no service.
        let (is_local, is_remote) = (local_port < FIRST_EPHEMERAL, remote_port < FIRST_EPHEMERAL);
        let opened = flags == SOCKET_ACTIVE || flags == 0 && is_remote && !is_local;
        let accepted = flags & SOCKET_PASSIVE != 0 || flags == 0 && is_local && !is_remote;
        Self {
            process: state.process,
            cgroup: state.cgroup,
            flags,
            local_port: if opened || flags & SOCKET_PORT_CHOSEN != 0 { 0 } else { local_port },
            remote_port: if accepted || !is_remote { u16::MAX } else { remote_port },
            netns,
        }
    }

    #[inline(always)]
    fn matches(&self, reader: &ReaderSlot) -> bool {
        // A single comparison, for the sake of the verifier.
        let ports = (reader.local_port ^ self.local_port) | (reader.remote_port ^ self.remote_port);
        let place = (reader.socket_flags ^ self.flags) | (reader.netns ^ self.netns) | ports as u32;
        let [low, high] = reader.process;
        let process = (low ^ self.process[0]) | (high ^ self.process[1]);
        place as u64 | process | (reader.cgroup ^ self.cgroup) == 0
    }

    #[inline(always)]
    fn write(&self, reader: &mut ReaderSlot) {
        reader.process = self.process;
        reader.cgroup = self.cgroup;
        reader.socket_flags = self.flags;
        reader.local_port = self.local_port;
        reader.remote_port = self.remote_port;
        reader.netns = self.netns;
    }
}

/// Takes the time that the thread has spent on CPUs and in run queues since the last call, ns.
#[inline(always)]
pub fn take_times(reader: &mut ReaderSlot, task: Task) -> (u64, u64) {
    let (exec_ns, run_delay_ns) = (task.exec_ns(), task.run_delay_ns());
    let times = (exec_ns.wrapping_sub(reader.exec_ns), run_delay_ns.wrapping_sub(reader.run_delay_ns));
    reader.exec_ns = exec_ns;
    reader.run_delay_ns = run_delay_ns;
    times
}

/// The slot to which the times of the thread in `slot` are added: that of the service that it read last.
#[inline(always)]
pub fn sums_of(reader: &'static mut ReaderSlot, slot: u32) -> Option<&'static mut ReaderSlot> {
    // Most threads read for one service.
    if reader.sums == slot { Some(reader) } else { maps::reader(reader.sums) }
}

/// Adds the thread's times to the totals of the service that it read last. For use where nobody counts timeslices.
#[inline(always)]
pub fn add_times(slot: u32, task: Task) -> Option<()> {
    let reader = maps::reader(slot)?;
    let (on_cpu_ns, run_queue_wait_ns) = take_times(reader, task);
    let sums = sums_of(reader, slot)?;
    sums.counters.on_cpu_ns += on_cpu_ns;
    sums.counters.run_queue_wait_ns += run_queue_wait_ns;
    None
}

/// Reports that the thread in slot `first` ends, after marking all its slots as ready to be collected; the thread's own
/// (first) slot is marked last.
#[inline(always)]
pub fn exit(first: u32) -> Option<()> {
    let mut slot = maps::reader(first)?.next;
    // Whoever sees the flag must also see the last values.
    kernel::shared_barrier();
    let mut i = 0;
    while i < READER_SERVICES && slot != SLOT_NONE {
        let reader = maps::reader(slot)?;
        slot = reader.next;
        reader.flags |= READER_EXITED;
        i += 1;
    }
    kernel::shared_barrier();
    maps::reader(first)?.flags |= READER_EXITED;
    let record = maps::reserve::<Header>(Loss::ReaderExit)?;
    *record = Header {
        kind: KIND_READER_EXIT,
        version: VERSION,
        cpu: kernel::cpu(),
        time_ns: kernel::now_ns(),
        cookie: first as u64,
    };
    maps::submit(record);
    None
}

/// Makes the process that opened the socket its owner until somebody reads from it.
#[inline(always)]
pub fn opened_by(state: &mut SocketState, task: Task) {
    state.reader_slot = SLOT_NONE;
    state.reader_tgid = task.process_id();
    state.process = task.process();
    state.cgroup = task.cgroup();
}

/// The trace's filters on threads: every kind of filter that is given must match, by at least one of its entries.
#[inline(always)]
pub fn matches_filters(task: Task) -> bool {
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
