mod any_order;

use tcpmon_common::{
    reader::ReaderSlot,
    socket::{
        LIVE_CURRENT, SOCKET_FINAL, SOCKET_HANDED_OVER, SOCKET_LISTENS, SOCKET_PASSIVE, SOCKET_PORT_CHOSEN, SocketLive,
        SocketRecord, SocketState,
    },
    tcp_state,
};
use zerocopy::IntoBytes as _;

use super::*;
use crate::model::cgroups::Process;

const SECOND: u64 = 1_000_000_000;

/// What a pass shows of an idle connection that has received `bytes`; the index of its state is its cookie.
fn socket(cookie: u64, bytes: u64) -> SocketRecord {
    let mut state = SocketState { cookie, index: cookie as u32, last_ns: SECOND, ..SocketState::ZERO };
    state.process.as_mut_bytes()[..6].copy_from_slice(b"reader");
    (state.counters.received_bytes, state.counters.segments) = (bytes, 1);
    let live = SocketLive { state: 1, flags: LIVE_CURRENT, rcvbuf: 10, ..SocketLive::ZERO };
    SocketRecord { time_ns: SECOND, live, state }
}

/// An idle connection that was observed for some seconds when it is shown at `second`.
fn observed(second: u64, seconds: u64) -> SocketRecord {
    let mut record = socket(1, 100);
    record.time_ns = second * SECOND;
    record.state.last_ns = second * SECOND;
    record.state.round.began_ns = second * SECOND;
    record.live.rcvbuf = record.state.rcvbuf;
    record.state.counters.observed_ns = seconds * SECOND;
    record
}

fn read_by(mut record: SocketRecord, process: &[u8]) -> SocketRecord {
    record.state.process = [0; 2];
    record.state.process.as_mut_bytes()[..process.len()].copy_from_slice(process);
    record
}

/// The same socket in another state.
fn in_state(mut record: SocketRecord, index: u32) -> SocketRecord {
    record.state.index = index;
    record
}

fn handed_over(mut record: SocketRecord) -> SocketRecord {
    record.state.flags |= SOCKET_FINAL | SOCKET_HANDED_OVER;
    record
}

struct Passes {
    table: Table,
    now: Instant,
}

impl Passes {
    fn new() -> Self {
        let now = Instant::now();
        let limits =
            TableLimits { max_groups: 8, group_ttl: Duration::from_hours(1), pin: Vec::new(), cgroup_of: None };
        Self { table: Table::new(limits, now, 0), now }
    }

    /// A pass that shows `sockets`.
    fn pass(&mut self, sockets: &[SocketRecord]) {
        self.pass_at(0, sockets);
    }

    /// A pass that starts at this second and shows `sockets`.
    fn pass_at(&mut self, second: u64, sockets: &[SocketRecord]) -> [u64; 2] {
        self.table.begin(second * SECOND);
        for socket in sockets {
            self.table.socket(socket, self.now);
        }
        self.table.end(self.now);
        self.observed()
    }

    fn ended(&mut self, record: SocketRecord) {
        self.table.ended(&record, self.now);
    }

    /// Seconds observed of the processes `reader` and `heir`.
    fn observed(&self) -> [u64; 2] {
        let groups = self.table.groups();
        ["reader", "heir"].map(|process| {
            let mine = groups.iter().filter(|group| group.key.process == process);
            mine.map(|group| group.counters.sockets.limited_ns() / SECOND).sum()
        })
    }

    fn of(&self, process: &str) -> (u64, u64) {
        let groups = self.table.groups();
        let mine = groups.iter().filter(|group| group.key.process == process);
        mine.fold((0, 0), |sum, group| (sum.0 + group.counters.sockets.received_bytes, sum.1 + group.gauges.sockets))
    }

    /// Bytes read by this process.
    fn read(&self, process: &str) -> u64 {
        let groups = self.table.groups();
        let mine = groups.iter().filter(|group| group.key.process == process);
        mine.map(|group| group.counters.sockets.read_bytes).sum()
    }

    /// Received bytes of the process `reader` and of `other`.
    fn received(&self) -> [u64; 2] {
        ["reader", "other"].map(|process| self.of(process).0)
    }
}

#[test]
fn a_process_without_a_name_has_one_label_and_not_that_of_its_listener() {
    let mut passes = Passes::new();
    let mut nameless = read_by(socket(1, 100), b"");
    nameless.state.reader_tgid = 5;
    let mut listener = socket(2, 0);
    (listener.state.flags, listener.state.counters.segments) = (SOCKET_LISTENS, 0);
    passes.pass(&[listener, nameless]);
    let reader = ReaderSlot { tgid: 5, tid: 5, ..<ReaderSlot as zerocopy::FromZeros>::new_zeroed() };
    passes.table.reader(0, &reader, passes.now, SECOND);
    let groups = passes.table.groups();
    let names: Vec<_> = groups.iter().map(|group| group.key.process.as_str()).collect();
    assert!(names.contains(&"unnamed") && !names.contains(&""), "{names:?}");
    assert_eq!(passes.of("unnamed").0, 100);
}

#[test]
fn sockets_that_a_silent_pass_does_not_show_stay_in_the_table() {
    let mut passes = Passes::new();
    passes.pass(&[socket(1, 100), socket(2, 50)]);
    for _ in 0..20 {
        passes.pass(&[]);
    }
    passes.pass(&[socket(1, 130)]);
    assert_eq!((passes.of("reader"), passes.table.sockets_known()), ((180, 2), 2));
}

#[test]
fn a_socket_counts_once_whether_or_not_a_pass_has_shown_it_before_its_end() {
    let mut passes = Passes::new();
    passes.pass(&[socket(1, 100)]);
    passes.ended(socket(1, 130));
    passes.ended(socket(2, 70));
    assert_eq!((passes.of("reader"), passes.table.sockets_known()), ((200, 0), 0));
    // Another socket gets the state.
    passes.pass(&[in_state(socket(3, 5), 1)]);
    assert_eq!((passes.of("reader"), passes.table.impossible), ((205, 1), Impossible::default()));
}

#[test]
fn an_end_that_no_program_saw_is_counted_with_all_that_is_known() {
    let mut passes = Passes::new();
    passes.pass(&[socket(1, 100)]);
    // The pass may come a second after the last event.
    let mut gone = observed(3, 2);
    gone.state.round.began_ns -= SECOND;
    passes.table.gone(&gone, passes.now);
    passes.table.gone(&socket(2, 50), passes.now);
    assert_eq!((passes.table.unseen_ends(), passes.of("reader")), (2, (150, 0)));
    // The first was observed for two seconds and then one more, the second for one.
    assert_eq!(passes.observed()[0], 4);
    // Nothing was counted for a socket that was never established.
    let mut opening = socket(3, 0);
    opening.state.last_ns = 0;
    passes.table.gone(&opening, passes.now);
    assert_eq!((passes.table.unseen_ends(), passes.table.sockets_known()), (2, 0));
}

#[test]
fn bytes_from_before_a_handover_stay_with_the_earlier_reader_of_the_socket() {
    let mut passes = Passes::new();
    passes.pass(&[socket(1, 100)]);
    // 50 more bytes before another process takes the socket over, and 7 bytes after that, within one pass.
    let heir = in_state(read_by(socket(1, 7), b"heir"), 2);
    passes.ended(handed_over(socket(1, 150)));
    passes.pass(&[heir]);
    assert_eq!((passes.of("reader"), passes.of("heir")), ((150, 0), (7, 1)));
    // The pass comes before the end of the first state has been taken.
    let third = in_state(read_by(socket(1, 3), b"third"), 5);
    passes.pass(&[third]);
    passes.ended(handed_over(in_state(read_by(socket(1, 8), b"heir"), 2)));
    assert_eq!((passes.of("heir"), passes.of("third"), passes.table.sockets_known()), ((8, 0), (3, 1), 1));
    passes.ended(third);
    // Two handovers and the end, before a pass has shown the socket.
    passes.ended(handed_over(in_state(socket(2, 1000), 7)));
    passes.ended(handed_over(in_state(read_by(socket(2, 10), b"heir"), 8)));
    passes.ended(in_state(read_by(socket(2, 1), b"third"), 9));
    assert_eq!((passes.of("reader").0, passes.of("heir").0, passes.of("third").0), (1150, 18, 4));
    assert_eq!(passes.table.impossible, Impossible::default());
}

/// A pass can come between the kernel's read of the queue and the program's look at it: the pass counts the bytes for
/// the process that has read until then, and the program counts them for another one.
#[test]
fn a_read_that_a_pass_has_counted_for_the_former_process_counts_once() {
    let with_read = |mut record: SocketRecord, bytes| {
        record.state.counters.read_bytes = bytes;
        record
    };
    let mut passes = Passes::new();
    passes.pass(&[with_read(socket(1, 150), 150)]);
    passes.ended(handed_over(with_read(socket(1, 150), 100)));
    passes.pass(&[in_state(read_by(with_read(socket(1, 0), 50), b"heir"), 2)]);
    // The shown value does not fall; what comes next is offset against it.
    passes.pass(&[in_state(with_read(socket(3, 60), 60), 3)]);
    assert_eq!((passes.read("reader"), passes.read("heir")), (160, 50));
    assert_eq!(passes.table.impossible, Impossible::default());
}

#[test]
fn impossible_differences_are_counted_and_not_shown() {
    let mut passes = Passes::new();
    passes.pass(&[socket(1, 100)]);
    let mut wrapped = socket(1, 100);
    wrapped.state.counters.queue_byte_ticks = 5_500_000_000_000_000;
    passes.pass(&[wrapped]);
    let mut early = socket(1, 100);
    early.time_ns = early.state.last_ns - 100;
    passes.pass(&[early]);
    let groups = passes.table.groups();
    assert!(groups.iter().all(|group| group.counters.sockets.queue_byte_ticks == 0));
    assert_eq!(passes.table.impossible, Impossible { sockets: 2, readers: 0 });
    // After the impossible values, new values count again.
    let mut next = wrapped;
    next.state.counters.received_bytes = 120;
    passes.pass(&[next]);
    assert_eq!(passes.received(), [120, 0]);
}

#[test]
fn a_look_that_is_older_than_the_last_event_adds_no_time() {
    let mut passes = Passes::new();
    let mut record = observed(5, 3);
    (record.live.flags, record.time_ns) = (0, 9 * SECOND);
    passes.pass(&[record]);
    assert_eq!((passes.observed()[0], passes.table.impossible), (3, Impossible::default()));
}

/// The arrivals of a half-closed connection are not seen, so its first round lasts until its end.
#[test]
fn a_busy_connection_whose_round_never_ends_and_at_which_no_pass_could_look_has_all_its_bytes_and_time() {
    let mut passes = Passes::new();
    let at = |second: u64, observed_seconds: u64| {
        let mut record = observed(second, observed_seconds);
        (record.live.flags, record.state.round.began_ns) = (0, SECOND);
        record.state.counters.received_bytes = second;
        record
    };
    for second in 2..=10 {
        passes.pass(&[at(second, 0)]);
        assert_eq!((passes.of("reader").0, passes.observed()[0]), (second, second - 1));
    }
    passes.ended(at(11, 10));
    assert_eq!((passes.of("reader").0, passes.observed()[0]), (11, 10));
    assert_eq!(passes.table.impossible, Impossible::default());
}

#[test]
fn gauges_follow_a_socket_to_its_end() {
    let mut passes = Passes::new();
    let limit = |passes: &Passes| {
        let groups = passes.table.groups();
        groups.iter().map(|group| group.gauges.limit_bytes).sum::<u64>()
    };
    passes.pass(&[socket(1, 1), socket(2, 1)]);
    assert_eq!(limit(&passes), 20);
    let mut larger = read_by(socket(1, 1), b"heir");
    larger.live.rcvbuf = 100;
    passes.pass(&[larger]);
    assert_eq!((limit(&passes), passes.of("heir").1, passes.of("reader").1), (110, 1, 1));
    passes.ended(larger);
    passes.pass(&[]);
    assert_eq!((limit(&passes), passes.of("heir").1), (10, 0));
}

#[test]
fn a_listener_names_connections_until_it_is_gone() {
    let mut passes = Passes::new();
    let mut listener = read_by(socket(1, 0), b"listener");
    (listener.live.state, listener.live.local_port, listener.state.last_ns) = (tcp_state::LISTEN as u8, 80, 0);
    (listener.state.flags, listener.state.counters.segments) = (SOCKET_LISTENS, 0);
    let accepted = |cookie| {
        let mut accepted = read_by(socket(cookie, 10), b"");
        accepted.state.identity.service_port = 80;
        accepted.state.flags = SOCKET_PASSIVE;
        accepted
    };
    passes.pass(&[listener, accepted(2)]);
    assert_eq!(passes.of("listener"), (10, 1));
    passes.ended(listener);
    passes.pass(&[accepted(3)]);
    assert_eq!((passes.of("listener"), passes.of("other")), ((10, 1), (10, 1)));
}

#[test]
fn a_connection_whose_listener_is_not_known_has_the_service_of_the_one_at_its_port() {
    let mut passes = Passes::new();
    let mut listener = socket(1, 0);
    (listener.live.state, listener.live.local_port, listener.state.last_ns) = (tcp_state::LISTEN as u8, 40_000, 0);
    (listener.state.flags, listener.state.counters.segments) = (SOCKET_LISTENS | SOCKET_PORT_CHOSEN, 0);
    let mut accepted = socket(2, 10);
    (accepted.state.flags, accepted.state.identity.service_port) = (SOCKET_PASSIVE, 40_000);
    passes.pass(&[listener, accepted]);
    let mut reader = <ReaderSlot as zerocopy::FromZeros>::new_zeroed();
    (reader.tgid, reader.socket_flags, reader.local_port) = (7, SOCKET_PASSIVE, 40_000);
    reader.process.as_mut_bytes()[..6].copy_from_slice(b"reader");
    passes.table.reader(3, &reader, passes.now, SECOND);
    // The kernel's own choice is no name: one service for all such ports.
    let groups = passes.table.groups();
    let services: Vec<_> = groups.iter().map(|group| (&*group.key.process, &*group.key.service)).collect();
    assert_eq!(services, [("other", "other"), ("reader", "local:ephemeral")]);
}

fn owner(cookie: u64, process: &[u8], tgid: u32) -> Owner {
    let mut owner = Owner { cookie, process: [0; 2], cgroup: 0, tgid, padding: 0 };
    owner.process.as_mut_bytes()[..process.len()].copy_from_slice(process);
    owner
}

#[test]
fn unread_data_counts_for_the_process_that_has_the_socket_or_its_listener_open() {
    let mut passes = Passes::new();
    let mut listener = read_by(socket(1, 0), b"starter");
    (listener.live.state, listener.live.local_port, listener.state.last_ns) = (tcp_state::LISTEN as u8, 80, 0);
    (listener.state.flags, listener.state.counters.segments) = (SOCKET_LISTENS, 0);
    // On a port on which nobody listens.
    let unread = |bytes| {
        let mut accepted = read_by(socket(2, bytes), b"");
        accepted.state.flags = SOCKET_PASSIVE;
        accepted.state.listener = 1;
        (accepted.state.identity.local_port, accepted.state.identity.service_port) = (4000, 80);
        (accepted.live.rcv_nxt, accepted.state.rcv_nxt) = (1, 1);
        accepted
    };
    passes.pass(&[listener, unread(10)]);
    assert_eq!(passes.of("starter"), (10, 1));
    assert!(passes.table.groups().iter().any(|group| group.key.service == "local:80"));
    assert!(passes.table.has_unread());
    // Data that arrived a moment ago.
    let mut recent = unread(10);
    recent.state.reads.queued_since_ns = 1;
    passes.pass(&[recent]);
    assert!(!passes.table.has_unread());
    // Another process has inherited the listening socket.
    passes.table.set_owners(&[owner(1, b"starter", 1), owner(1, b"service", 7)], 0);
    passes.pass(&[unread(15)]);
    assert_eq!((passes.of("starter"), passes.of("service")), ((10, 0), (5, 1)));
    // A record of the listening socket still names the process that started to listen.
    passes.pass(&[listener, unread(16)]);
    assert_eq!(passes.of("service"), (6, 1));
    // The connection was passed on.
    passes.table.set_owners(&[owner(1, b"service", 7), owner(2, b"worker", 3)], 0);
    passes.pass(&[unread(18)]);
    assert_eq!((passes.of("service"), passes.of("worker")), ((6, 0), (2, 1)));
    passes.table.list_sockets();
    passes.pass(&[unread(18)]);
    assert_eq!(passes.table.listed_sockets()[0].tgid, 3);
    // The process that reads the connection owns it, whatever process had it open before.
    let read = |bytes, queued_since_ns| {
        let mut read = read_by(unread(bytes), b"reader");
        (read.state.reader_tid, read.state.reader_tgid, read.state.reads.queued_since_ns) = (5, 4, queued_since_ns);
        read
    };
    passes.pass(&[read(21, 0)]);
    assert_eq!((passes.of("worker"), passes.of("reader")), ((2, 0), (3, 1)));
    // It still has the connection open, or has read it since the look-up.
    passes.table.set_owners(&[owner(2, b"reader", 4), owner(2, b"child", 6)], 9);
    passes.pass(&[read(22, 0)]);
    passes.table.set_owners(&[owner(2, b"child", 6)], 9);
    passes.pass(&[read(23, 9)]);
    assert_eq!((passes.of("reader"), passes.of("child")), ((5, 1), (0, 0)));
    // It has passed the connection on.
    passes.pass(&[read(24, 0)]);
    assert!(passes.table.has_unread());
    assert_eq!((passes.of("reader"), passes.of("child")), ((5, 0), (1, 1)));
}

#[test]
fn who_has_other_sockets_open_changes_nothing() {
    let now = Instant::now();
    let limits = TableLimits { max_groups: 1, group_ttl: Duration::from_hours(1), pin: Vec::new(), cgroup_of: None };
    let mut passes = Passes { table: Table::new(limits, now, 0), now };
    passes.pass(&[socket(1, 10), read_by(socket(2, 10), b"hidden")]);
    let suppressed = passes.table.suppressed();
    assert!(suppressed > 0, "there is no room for the second group");
    passes.table.set_owners(&[owner(9, b"other", 4)], 0);
    passes.pass(&[read_by(socket(2, 10), b"hidden")]);
    assert_eq!(passes.table.suppressed(), suppressed);
}

#[test]
fn a_readers_control_group_is_asked_for_once_and_stays_when_its_process_has_gone() {
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&asked);
    let cgroup_of = move |_: &Process| {
        let before = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Vec::from_iter((before == 0).then(|| "/system.slice/nginx.service".to_owned()))
    };
    let now = Instant::now();
    let group_ttl = Duration::from_hours(1);
    let limits = TableLimits { max_groups: 8, group_ttl, pin: Vec::new(), cgroup_of: Some(Box::new(cgroup_of)) };
    let mut table = Table::new(limits, now, 0);
    let mut reader = <ReaderSlot as zerocopy::FromZeros>::new_zeroed();
    (reader.tgid, reader.local_port) = (7, 80);
    reader.process.as_mut_bytes()[..5].copy_from_slice(b"nginx");
    for pass in 1..=100 {
        reader.counters.ends[0] = pass;
        table.reader(3, &reader, now, SECOND);
        table.drops(&[], |_| String::new(), now);
    }
    let groups = table.groups();
    let mine = groups.iter().find(|group| group.key.process == "nginx").expect("it has a group");
    let label = mine.key.cgroup.as_ref().map(|cgroup| &*cgroup.label);
    assert_eq!((label, mine.counters.readers.ends[0]), (Some("nginx.service"), 100));
    assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn the_time_of_a_socket_at_rest_goes_on_without_being_shown() {
    let mut passes = Passes::new();
    // A total counts up to when the socket was shown, or up to the start of a later pass.
    assert_eq!(passes.pass_at(10, &[observed(11, 5)]), [5, 0]);
    assert_eq!(passes.pass_at(20, &[]), [14, 0]);
    assert_eq!(passes.pass_at(21, &[]), [15, 0]);
    // Its own total continues from where it was last shown.
    assert_eq!(passes.pass_at(30, &[observed(31, 25)]), [25, 0]);
    assert_eq!(passes.pass_at(40, &[]), [34, 0]);
}

#[test]
fn the_time_of_a_socket_at_rest_stays_with_who_read_from_it() {
    let mut passes = Passes::new();
    passes.pass_at(10, &[observed(11, 5)]);
    passes.pass_at(20, &[]);
    assert_eq!(passes.pass_at(30, &[read_by(observed(31, 25), b"heir")]), [14, 11]);
    assert_eq!(passes.pass_at(40, &[]), [14, 20]);
    passes.ended(read_by(observed(45, 39), b"heir"));
    assert_eq!(passes.observed(), [14, 25]);
    assert_eq!(passes.pass_at(50, &[]), [14, 25]);
}

#[test]
fn a_socket_at_rest_that_is_gone_takes_no_more_time() {
    let mut passes = Passes::new();
    passes.pass_at(10, &[observed(11, 5)]);
    passes.pass_at(20, &[]);
    passes.table.gone(&observed(11, 5), passes.now);
    let seen = passes.observed()[0];
    assert!(seen <= 14, "{seen}");
    assert_eq!(passes.pass_at(90, &[])[0], seen);
}

/// The next pass shows all sockets again.
#[test]
fn a_pass_after_one_that_failed_shows_and_lists_what_that_would_have() {
    let at = |cookie, second, bytes| {
        let mut record = in_state(observed(second, second - 5), cookie as u32);
        (record.state.cookie, record.state.counters.received_bytes) = (cookie, bytes);
        record
    };
    let after = |fails: bool| {
        let mut passes = Passes::new();
        passes.pass_at(10, &[at(1, 11, 100), at(2, 11, 50), at(3, 11, 7)]);
        if fails {
            passes.table.list_sockets();
            passes.table.begin(20 * SECOND);
            passes.table.socket(&at(1, 21, 130), passes.now);
        }
        passes.ended(at(3, 20, 8));
        passes.table.list_sockets();
        passes.pass_at(30, &[at(1, 31, 130), at(2, 31, 50)]);
        let groups = passes.table.groups().into_iter().map(|group| (group.counters, group.gauges));
        (groups.collect::<Vec<_>>(), passes.table.listed_sockets(), passes.table.is_alive(3, 3))
    };
    let (failed, not) = (after(true), after(false));
    assert_eq!((failed.1.len(), failed.2), (2, false));
    assert_eq!(failed, not);
}
