//! Compares the table with a small model, for events of connections and readers in any order.

use std::collections::HashMap;

use proptest::prelude::*;
use tcpmon_common::{
    counters::{Cells as _, Counted as _},
    reader::{ReaderCounters, ReaderTotals},
    socket::{SocketCounters, SocketTotals, TICK_NS},
};
use zerocopy::{FromBytes as _, FromZeros as _};

use super::*;
use crate::model::snapshot::GroupGauges;

/// Time from one event to the next, ns; without a remainder in [`TICK_NS`].
const STEP: u64 = 1 << 30;

/// The last one stands for connections that nobody has read and that nobody is known to have open.
const PROCESSES: [&str; 4] = ["reader", "heir", "third", "other"];
const OTHER: usize = 3;

/// A port that names no service.
const REMOTE_PORT: u16 = 40_000;

#[derive(Clone, Copy, Debug)]
enum Happens {
    /// The connection receives these bytes, and has these values from then on.
    Receives { bytes: u32, limit: u32, backlog: u32, out_of_order: u32, window: u32 },
    /// This process reads its queue: for the first time, again, or as the heir of another one.
    IsRead { by: usize },
    /// A look-up finds that this process has the connection open, or that none has.
    HasOwner(Option<usize>),
    /// A pass shows the connection: as it is, or as of an event that came meanwhile.
    IsShown { current: bool, drops: u64 },
    /// A pass does not show the connection.
    IsNotShown,
    /// It ends.
    Ends { seen: bool },
    /// A thread of this process has run.
    Runs { process: usize },
}

/// A state of a connection, as the kernel has it, and what the table has seen of it.
#[derive(Clone, Debug)]
struct Open {
    cookie: u64,
    index: u32,
    flags: u32,
    reader: Option<usize>,
    /// Changes since its last event.
    live: SocketLive,
    last_ns: u64,
    /// Totals up to its last event.
    totals: SocketCounters,
    /// The process that it belonged to when the table last saw it, with its totals and gauges at that time.
    seen: Option<(usize, Vec<i64>, [u64; 7])>,
    /// If it was at rest then: the time up to which its time is counted.
    rests: Option<u64>,
}

impl Open {
    fn new(number: u64, last_ns: u64) -> Self {
        let live = SocketLive { state: 1, rcvbuf: 1000, window: 1000, mss: 1, ..SocketLive::ZERO };
        let totals = SocketCounters::ZERO;
        let (seen, rests) = (None, None);
        Self { cookie: number, index: number as u32, flags: 0, reader: None, live, last_ns, totals, seen, rests }
    }

    fn queued(&self) -> u32 {
        self.live.rcv_nxt - self.live.copied_seq
    }

    /// Totals at this time: time counts for the reader while the queue takes up two thirds of the window, and otherwise
    /// for the sender.
    fn totals_at(&self, now_ns: u64) -> SocketCounters {
        let (mut totals, time) = (self.totals, now_ns - self.last_ns);
        totals.observed_ns += time;
        totals.queue_byte_ticks += u64::from(self.queued()) * time / TICK_NS;
        if self.live.window == 0 {
            totals.zero_window_ns += time;
        }
        if self.queued() > 0 && self.queued() >= 2 * self.live.window {
            totals.reader_limited_ns += time;
        }
        totals
    }

    fn event(&mut self, now_ns: u64) {
        (self.totals, self.last_ns) = (self.totals_at(now_ns), now_ns);
    }

    /// A segment arrives; it adds to everything that an event can add to.
    fn receives(&mut self, bytes: u32) {
        (self.live.rcv_nxt, self.live.rmem) = (self.live.rcv_nxt + bytes, bytes / 2);
        let totals = &mut self.totals;
        totals.received_bytes += u64::from(bytes);
        totals.arrived_on_cpu_bytes += u64::from(bytes) / 2;
        totals.arrived_off_cpu_bytes += u64::from(bytes) / 3;
        totals.fills[bytes as usize % 7] = totals.fills[bytes as usize % 7].map(|count| count + 1);
        totals.fill_sums = totals.fill_sums.map(|sum| sum + 5);
        (totals.segments, totals.growths) = (totals.segments + 1, totals.growths + 1);
        totals.observed_ns += 3;
        (totals.window_limited_ns, totals.memory_limited_ns) =
            (totals.window_limited_ns + 1, totals.memory_limited_ns + 2);
    }

    fn reads(&mut self) {
        let bytes = u64::from(self.queued());
        (self.totals.read_bytes, self.live.copied_seq) = (self.totals.read_bytes + bytes, self.live.rcv_nxt);
        self.totals.timeslice_read_bytes += bytes;
    }

    fn is_at_rest(&self) -> bool {
        self.queued() == 0 && self.live.backlog == 0 && self.live.out_of_order == 0 && self.live.window > 0
    }

    fn gauges(&self) -> [u64; 7] {
        let SocketLive { rmem, rcvbuf, backlog, out_of_order, window, .. } = self.live;
        [1, self.queued(), rmem, rcvbuf, backlog, out_of_order, window].map(u64::from)
    }

    fn record(&self, time_ns: u64) -> SocketRecord {
        let mut record = in_state(socket(self.cookie, 0), self.index);
        record = read_by(record, self.reader.map_or("", |reader| PROCESSES[reader]).as_bytes());
        let SocketRecord { state, .. } = &mut record;
        (state.flags, state.identity.remote_port) = (self.flags, REMOTE_PORT);
        state.reader_tid = self.reader.map_or(0, |reader| reader as u32 + 1);
        (state.rcv_nxt, state.copied_seq, state.rcvbuf) = (self.live.rcv_nxt, self.live.copied_seq, self.live.rcvbuf);
        (state.counters, state.last_ns, state.round.began_ns) = (self.totals, self.last_ns, self.last_ns);
        let edge = self.live.rcv_nxt + self.live.window;
        SocketRecord { time_ns, live: SocketLive { edge, flags: LIVE_CURRENT, ..self.live }, ..record }
    }
}

/// Totals of sockets, readers and drops, one after the other.
fn cells(sockets: &SocketTotals, readers: &ReaderTotals, drops: i64) -> Vec<i64> {
    let words = |bytes| <[i64]>::ref_from_bytes(bytes).expect("whole words");
    [words(sockets.as_bytes()), words(readers.as_bytes()), &[drops]].concat()
}

fn of_socket(counters: &SocketCounters) -> Vec<i64> {
    cells(&counters.since(&SocketCounters::ZERO), &ReaderTotals::ZERO, 0)
}

fn at_rest(ns: u64) -> Vec<i64> {
    of_socket(&SocketCounters { observed_ns: ns, ..SocketCounters::ZERO })
}

/// What the groups should show.
struct Model {
    max_groups: usize,
    /// The processes in the order in which they first appeared: the first ones have groups.
    came: Vec<usize>,
    owners: HashMap<u64, usize>,
    /// What was added, by group.
    actual: [Vec<i64>; 4],
    /// The highest value that each had: a correction is not shown as a fall.
    shown: [Vec<i64>; 4],
}

impl Model {
    fn new(max_groups: usize) -> Self {
        let zeros = || [(); 4].map(|()| of_socket(&SocketCounters::ZERO));
        Self { max_groups, came: vec![OTHER], owners: HashMap::new(), actual: zeros(), shown: zeros() }
    }

    /// The group in which a process counts.
    fn group_of(&mut self, process: usize) -> usize {
        let place = self.came.iter().position(|came| *came == process).unwrap_or_else(|| {
            self.came.push(process);
            self.came.len() - 1
        });
        if place < self.max_groups { process } else { OTHER }
    }

    fn add(&mut self, process: usize, added: &[i64]) {
        let group = self.group_of(process);
        for (cell, by) in added.iter().enumerate() {
            self.actual[group][cell] += by;
            self.shown[group][cell] = self.shown[group][cell].max(self.actual[group][cell]);
        }
    }

    /// The table sees a state with these totals: the increase belongs to the process that has the connection now.
    fn sees(&mut self, open: &mut Open, totals: &SocketCounters) {
        let process = open.reader.or_else(|| self.owners.get(&open.cookie).copied()).unwrap_or(OTHER);
        let totals = of_socket(totals);
        let before = open.seen.take().map_or_else(|| vec![0; totals.len()], |(_, before, _)| before);
        let added: Vec<_> = totals.iter().zip(before).map(|(now, before)| now - before).collect();
        self.add(process, &added);
        (open.seen, open.rests) = (Some((process, totals, open.gauges())), None);
    }

    /// The time of connections at rest continues up to the start of a pass: one sum per group.
    fn credit<'a>(&mut self, until_ns: u64, states: impl Iterator<Item = &'a mut Open>) {
        let mut time = [0_u64; 4];
        for open in states {
            let (Some((process, before, _)), Some(since)) = (&mut open.seen, &mut open.rests) else { continue };
            let ns = until_ns.wrapping_sub(std::mem::replace(since, until_ns));
            time[*process] = time[*process].wrapping_add(ns);
            before.iter_mut().zip(at_rest(ns)).for_each(|(cell, by)| *cell += by);
        }
        for process in self.came.clone() {
            self.add(process, &at_rest(time[process]));
        }
    }

    /// The table takes the final states.
    fn takes(&mut self, passes: &mut Passes, ending: &mut Vec<Open>) {
        for mut end in ending.drain(..) {
            passes.ended(end.record(end.last_ns));
            let totals = end.totals;
            self.sees(&mut end, &totals);
        }
    }

    /// Checks that the table shows what the model does, and that no sum over all groups is below that in `sums`.
    fn agrees<'a>(
        &mut self,
        table: &Table,
        states: impl Iterator<Item = &'a Open>,
        sums: &mut Vec<i64>,
    ) -> Result<(), TestCaseError> {
        let mut gauges = [[0; 7]; 4];
        for (process, _, of_one) in states.filter_map(|open| open.seen.as_ref()) {
            gauges[self.group_of(*process)].iter_mut().zip(of_one).for_each(|(sum, of)| *sum += of);
        }
        let mut groups: Vec<usize> = self.came.iter().take(self.max_groups).copied().collect();
        groups.sort_by_key(|group| PROCESSES[*group]);
        let expected = groups.iter().map(|of| (PROCESSES[*of].to_owned(), gauges[*of], self.shown[*of].clone()));
        let shown = shown(table);
        prop_assert_eq!(&shown, &expected.collect::<Vec<_>>());
        let before = std::mem::replace(sums, vec![0; sums.len()]);
        for (_, _, totals) in &shown {
            sums.iter_mut().zip(totals).for_each(|(sum, of)| *sum += of);
        }
        prop_assert!(sums.iter().zip(&before).all(|(now, before)| now >= before), "{:?} {:?}", before, sums);
        prop_assert_eq!(table.impossible, Impossible::default());
        Ok(())
    }
}

/// The gauges and totals of each group that the table shows.
fn shown(table: &Table) -> Vec<(String, [u64; 7], Vec<i64>)> {
    let groups = table.groups().into_iter().map(|group| {
        // Every field is named, so that one that is added cannot be forgotten.
        let GroupGauges {
            sockets,
            queue_bytes,
            used_bytes,
            limit_bytes,
            backlog_bytes,
            out_of_order_bytes,
            window_bytes,
        } = group.gauges;
        let gauges = [sockets, queue_bytes, used_bytes, limit_bytes, backlog_bytes, out_of_order_bytes, window_bytes];
        let drops = group.counters.drops.iter().map(|(_, count)| count.cast_signed()).sum();
        (group.key.process.clone(), gauges, cells(&group.counters.sockets, &group.counters.readers, drops))
    });
    groups.collect()
}

/// A timeslice of a reader.
fn count_timeslice(counters: &mut ReaderCounters) {
    (counters.on_cpu_ns, counters.run_queue_wait_ns) = (counters.on_cpu_ns + 5, counters.run_queue_wait_ns + 7);
    (counters.on_cpu[2], counters.run_queue_wait[3]) = (counters.on_cpu[2] + 1, counters.run_queue_wait[3] + 1);
    counters.ends[1] += 1;
}

fn happens() -> impl Strategy<Value = Happens> {
    let rarely = || prop_oneof![4 => Just(0), 1 => 1..100_u32];
    let window = prop_oneof![1 => Just(0), 3 => 1000..2000_u32];
    let receives = (1..500_u32, 1000..2000_u32, rarely(), rarely(), window);
    prop_oneof![
        3 => receives.prop_map(|(bytes, limit, backlog, out_of_order, window)| {
            Happens::Receives { bytes, limit, backlog, out_of_order, window }
        }),
        3 => (0..OTHER).prop_map(|by| Happens::IsRead { by }),
        1 => proptest::option::weighted(0.7, 0..OTHER).prop_map(Happens::HasOwner),
        4 => (any::<bool>(), 0..3_u64).prop_map(|(current, drops)| Happens::IsShown { current, drops }),
        1 => Just(Happens::IsNotShown),
        1 => any::<bool>().prop_map(|seen| Happens::Ends { seen }),
        1 => (0..OTHER).prop_map(|process| Happens::Runs { process }),
    ]
}

proptest! {
    /// In any order of passes, reads, handovers, ends and new owners: each group has what its connections and readers
    /// have added, its gauges are those of the connections as they were last seen, no total falls, and nothing is left
    /// when all have ended. Times of the scheduler are left out: after a correction, they show less than their highest
    /// value (`counters!`, which tests that).
    #[test]
    fn totals_and_gauges_are_right_in_any_order(
        events in proptest::collection::vec((0..4_usize, happens()), 0..80),
        late in any::<bool>(),
        max_groups in 1..=4_usize,
    ) {
        let mut passes = Passes::new();
        passes.table.set_limits(max_groups, Duration::from_hours(1), &[]);
        let mut model = Model::new(max_groups);
        let mut open = [const { None::<Open> }; 4];
        // Final states that the table has not taken yet.
        let mut ending = Vec::new();
        let mut readers = [(); OTHER].map(|()| ReaderSlot::new_zeroed());
        let (mut now_ns, mut next, mut received) = (STEP, 0, 0);
        let mut sums = of_socket(&SocketCounters::ZERO);
        for (which, happens) in events {
            (now_ns, next) = (now_ns + STEP, next + 1);
            let connection = open[which].get_or_insert_with(|| Open::new(next, now_ns));
            match happens {
                Happens::Receives { bytes, limit, backlog, out_of_order, window } => {
                    connection.event(now_ns);
                    connection.receives(bytes);
                    connection.live = SocketLive { rcvbuf: limit, backlog, out_of_order, window, ..connection.live };
                    received += u64::from(bytes);
                }
                Happens::IsRead { by } => {
                    connection.event(now_ns);
                    if connection.reader.is_some_and(|reader| reader != by) {
                        let heir = Open {
                            cookie: connection.cookie,
                            live: connection.live,
                            ..Open::new(next, now_ns)
                        };
                        let former = std::mem::replace(connection, heir);
                        ending.push(Open { flags: SOCKET_FINAL | SOCKET_HANDED_OVER, ..former });
                    }
                    connection.reader = Some(by);
                    connection.reads();
                }
                Happens::HasOwner(process) => {
                    model.owners.remove(&connection.cookie);
                    model.owners.extend(process.map(|process| (connection.cookie, process)));
                    let of = |(cookie, of): (&u64, &usize)| owner(*cookie, PROCESSES[*of].as_bytes(), 9);
                    passes.table.set_owners(&model.owners.iter().map(of).collect::<Vec<_>>(), 0);
                }
                Happens::IsShown { current, drops } => {
                    // A pass first takes the ends, and looks at the connection some time after its start.
                    model.takes(&mut passes, &mut ending);
                    let look_ns = now_ns + STEP / 2;
                    let mut record = connection.record(look_ns);
                    if !current {
                        connection.event(look_ns);
                        record = connection.record(look_ns);
                        record.live.flags = 0;
                    }
                    passes.table.begin(now_ns);
                    passes.table.socket(&record, passes.now);
                    passes.table.end(passes.now);
                    passes.table.drops(&[(connection.cookie, 1, drops)], |_| "reason".into(), passes.now);
                    let totals = connection.totals_at(look_ns);
                    model.sees(connection, &totals);
                    connection.rests = (current && connection.is_at_rest()).then_some(look_ns);
                    if let Some((process, ..)) = connection.seen {
                        model.add(process, &cells(&SocketTotals::ZERO, &ReaderTotals::ZERO, drops.cast_signed()));
                    }
                    model.credit(now_ns, open.iter_mut().flatten());
                }
                Happens::IsNotShown => {
                    model.takes(&mut passes, &mut ending);
                    passes.table.begin(now_ns);
                    passes.table.end(passes.now);
                    passes.table.drops(&[], |_| String::new(), passes.now);
                    model.credit(now_ns, open.iter_mut().flatten());
                }
                Happens::Ends { seen: true } => {
                    connection.event(now_ns);
                    ending.extend(open[which].take());
                }
                Happens::Ends { seen: false } => {
                    // A pass finds it; what happened after its last event is not known.
                    model.takes(&mut passes, &mut ending);
                    passes.table.gone(&connection.record(connection.last_ns), passes.now);
                    let totals = connection.totals;
                    model.sees(connection, &totals);
                    open[which] = None;
                }
                Happens::Runs { process } => {
                    let (slot, mut added) = (&mut readers[process], ReaderCounters::ZERO);
                    *slot = ReaderSlot { remote_port: REMOTE_PORT, ..*slot };
                    let name = PROCESSES[process].as_bytes();
                    slot.process.as_mut_bytes()[..name.len()].copy_from_slice(name);
                    count_timeslice(&mut slot.counters);
                    count_timeslice(&mut added);
                    passes.table.reader(process as u32, slot, passes.now, now_ns);
                    model.add(process, &cells(&SocketTotals::ZERO, &added.since(&ReaderCounters::ZERO), 0));
                }
            }
            if !late {
                model.takes(&mut passes, &mut ending);
            }
            model.agrees(&passes.table, open.iter().flatten().chain(&ending), &mut sums)?;
        }
        for mut connection in open.into_iter().flatten() {
            connection.event(now_ns + STEP);
            ending.push(connection);
        }
        model.takes(&mut passes, &mut ending);
        model.agrees(&passes.table, std::iter::empty(), &mut sums)?;
        let in_groups: u64 = passes.table.groups().iter().map(|group| group.counters.sockets.received_bytes).sum();
        prop_assert_eq!((in_groups, passes.table.sockets_known()), (received, 0));
    }
}
