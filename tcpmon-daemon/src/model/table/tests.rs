use tcpmon_common::{
    counters::Cells as _,
    header::{Header, KIND_SNAPSHOT, VERSION},
    reader::ReaderSlot,
    socket::{LIVE_ENDED, LIVE_NEW, Shown, SocketCounters, SocketLive, SocketRecord, SocketState},
    tcp_state,
};
use zerocopy::IntoBytes as _;

use super::{ends::GONE_AFTER, *};
use crate::model::cgroups::Process;

const SECOND: u64 = 1_000_000_000;

/// What the iterator shows of an idle connection that has received `bytes`; its index is its cookie.
fn socket(cookie: u64, bytes: u64) -> SocketRecord {
    let mut state = SocketState { cookie, last_ns: SECOND, ..SocketState::ZERO };
    state.process.as_mut_bytes()[..6].copy_from_slice(b"reader");
    state.shown = Shown { index_plus_one: cookie as u32 + 1, ..Shown::ZERO };
    (state.counters.received_bytes, state.counters.segments) = (bytes, 1);
    let live = SocketLive { state: 1, flags: LIVE_NEW, rcvbuf: 10, ..SocketLive::ZERO };
    let header = Header { kind: KIND_SNAPSHOT, version: VERSION, cpu: 0, time_ns: SECOND, cookie };
    SocketRecord { header, live, state }
}

/// An idle connection that was observed for some seconds when it is shown at `second`.
fn observed(second: u64, seconds: u64) -> SocketRecord {
    let mut record = socket(1, 100);
    record.header.time_ns = second * SECOND;
    record.state.last_ns = second * SECOND;
    record.state.round.began_ns = second * SECOND;
    record.live.rcvbuf = record.state.rcvbuf;
    record.state.counters.observed_ns = seconds * SECOND;
    record
}

fn again(mut record: SocketRecord) -> SocketRecord {
    record.live.flags &= !LIVE_NEW;
    record
}

fn read_by(mut record: SocketRecord, process: &[u8]) -> SocketRecord {
    record.state.process = [0; 2];
    record.state.process.as_mut_bytes()[..process.len()].copy_from_slice(process);
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

    /// A pass that shows `sockets` and also visits those with the indexes `silent`; returns the free indexes.
    fn pass(&mut self, sockets: &[SocketRecord], silent: &[u32]) -> Vec<u32> {
        self.table.begin(0);
        let mut met = vec![0; 2];
        let shown = sockets.iter().filter_map(|socket| socket.state.shown.index());
        for index in shown.chain(silent.iter().copied()) {
            met[index as usize / 64] |= 1 << (index % 64);
        }
        for socket in sockets {
            self.table.socket(socket, self.now);
        }
        self.table.end(&met, self.now)
    }

    /// A pass that starts at this second, shows `sockets` one second later, and visits the one with index 1.
    fn pass_at(&mut self, second: u64, sockets: &[SocketRecord]) -> [u64; 2] {
        self.table.begin(second * SECOND);
        for socket in sockets {
            self.table.socket(socket, self.now);
        }
        self.table.end(&[2], self.now);
        self.observed()
    }

    /// Seconds observed of the processes `reader` and `heir`.
    fn observed(&self) -> [u64; 2] {
        let groups = self.table.groups();
        ["reader", "heir"].map(|process| {
            let mine = groups.iter().filter(|group| group.key.process == process);
            mine.map(|group| group.counters.sockets.limited_ns() / SECOND).sum()
        })
    }

    /// The sums of sockets whose final record was lost, and the indexes of those that a pass has shown.
    fn fall(&mut self, bytes: u64, indexes: &[u32]) {
        let sums = SocketCounters { received_bytes: bytes, ..SocketCounters::ZERO };
        self.table.final_records_lost(&[sums], indexes);
    }

    fn of(&self, process: &str) -> (u64, u64) {
        let groups = self.table.groups();
        let mine = groups.iter().filter(|group| group.key.process == process);
        mine.fold((0, 0), |sum, group| (sum.0 + group.counters.sockets.received_bytes, sum.1 + group.gauges.sockets))
    }

    /// Received bytes of the process `reader` and of `other`.
    fn received(&self) -> [u64; 2] {
        ["reader", "other"].map(|process| self.of(process).0)
    }
}

#[test]
fn what_a_silent_pass_does_not_show_stays() {
    let mut passes = Passes::new();
    passes.pass(&[socket(1, 100), socket(2, 50)], &[]);
    for _ in 0..20 {
        assert!(passes.pass(&[], &[1, 2]).is_empty());
    }
    passes.pass(&[again(socket(1, 130))], &[2]);
    assert_eq!((passes.of("reader"), passes.table.sockets_known()), ((180, 2), 2));
}

#[test]
fn what_fell_counts_once() {
    let mut passes = Passes::new();
    passes.pass(&[socket(1, 100)], &[]);
    // 30 more bytes before its end, and another connection of 1000 bytes that no pass has seen.
    passes.fall(1130, &[1]);
    assert_eq!(passes.pass(&[], &[]), [1]);
    assert_eq!(passes.received(), [100, 1030]);
    assert_eq!((passes.table.unseen_ends(), passes.of("reader").1), (0, 0));
}

#[test]
fn an_end_that_nobody_saw_is_counted_after_some_passes_and_takes_nothing_from_others() {
    let mut passes = Passes::new();
    passes.pass(&[socket(1, 100)], &[]);
    for _ in 1..GONE_AFTER {
        passes.pass(&[], &[]);
    }
    assert_eq!((passes.table.unseen_ends(), passes.of("reader")), (0, (100, 1)));
    passes.pass(&[], &[]);
    assert_eq!((passes.table.unseen_ends(), passes.of("reader")), (1, (100, 0)));
    passes.fall(70, &[]);
    passes.pass(&[], &[]);
    assert_eq!(passes.received(), [100, 70]);
}

#[test]
fn a_socket_that_others_hid_from_some_passes_is_not_gone() {
    let mut passes = Passes::new();
    passes.pass(&[socket(1, 100)], &[]);
    for _ in 0..3 {
        for _ in 1..GONE_AFTER {
            passes.pass(&[], &[]);
        }
        passes.pass(&[], &[1]);
    }
    assert_eq!((passes.table.unseen_ends(), passes.of("reader")), (0, (100, 1)));
}

#[test]
fn a_socket_that_was_taken_for_gone_comes_back_and_counts_once() {
    let mut passes = Passes::new();
    passes.pass(&[socket(1, 100)], &[]);
    for _ in 0..GONE_AFTER {
        passes.pass(&[], &[]);
    }
    assert_eq!(passes.of("reader"), (100, 0));
    passes.pass(&[again(socket(1, 130))], &[]);
    assert_eq!(passes.of("reader"), (130, 1));
    passes.pass(&[], &[1]);
    assert_eq!(passes.of("reader"), (130, 1));
}

#[test]
fn whatever_is_heard_of_a_socket_that_was_taken_for_gone_leaves_the_gauges_right() {
    type News = fn(&mut Passes, &mut SocketRecord);
    let heard: [(News, u64); 4] = [
        (|passes, record| passes.table.ended(record, passes.now), 0),
        (|passes, record| passes.table.handed_over(record, passes.now), 1),
        (|passes, _| passes.fall(100, &[1]), 0),
        // Under another index.
        (
            |passes, record| {
                record.state.shown.index_plus_one = 8;
                passes.pass(&[*record], &[]);
            },
            1,
        ),
    ];
    for (news, sockets) in heard {
        let mut passes = Passes::new();
        let mut record = socket(1, 100);
        record.live.rmem = 5;
        passes.pass(&[record], &[]);
        for _ in 0..GONE_AFTER {
            passes.pass(&[], &[]);
        }
        assert_eq!(passes.of("reader").1, 0);
        // It has less in its queue than before.
        record.live.rmem = 3;
        news(&mut passes, &mut again(record));
        assert_eq!(passes.of("reader").1, sockets);
    }
}

#[test]
fn a_socket_that_ended_while_it_was_shown_is_not_there() {
    let mut passes = Passes::new();
    let mut record = socket(1, 0);
    record.live.flags |= LIVE_ENDED;
    assert_eq!(passes.pass(&[record], &[]), [1]);
    assert_eq!((passes.of("reader"), passes.table.sockets_known()), ((0, 0), 0));
}

#[test]
fn a_last_record_that_comes_late_counts_once() {
    let mut passes = Passes::new();
    passes.pass(&[socket(1, 100)], &[]);
    passes.pass(&[], &[]);
    passes.table.ended(&socket(1, 130), passes.now);
    assert_eq!(passes.pass(&[], &[]), [1]);
    assert_eq!((passes.received(), passes.table.unseen_ends(), passes.of("reader").1), ([130, 0], 0, 0));
}

#[test]
fn a_socket_that_ends_before_what_the_pass_has_shown_is_looked_at_counts_once() {
    let mut passes = Passes::new();
    passes.table.begin(0);
    passes.table.ended(&socket(1, 130), passes.now);
    passes.table.socket(&socket(1, 100), passes.now);
    assert_eq!(passes.table.end(&[2], passes.now), [1]);
    assert_eq!((passes.received(), passes.table.sockets_known()), ([130, 0], 0));
}

#[test]
fn a_socket_that_connects_anew_keeps_what_it_counted() {
    let mut passes = Passes::new();
    passes.pass(&[socket(1, 100)], &[]);
    // Meanwhile the iterator visits it but shows nothing of it.
    passes.pass(&[], &[1]);
    passes.pass(&[again(socket(1, 150))], &[]);
    assert_eq!((passes.received(), passes.table.unseen_ends()), ([150, 0], 0));
}

#[test]
fn a_sender_may_end_without_a_word() {
    let mut passes = Passes::new();
    let mut sender = socket(1, 0);
    sender.state.counters.segments = 0;
    passes.pass(&[sender], &[]);
    for _ in 0..GONE_AFTER {
        passes.pass(&[], &[]);
    }
    assert_eq!((passes.table.unseen_ends(), passes.table.sockets_known()), (0, 0));
}

#[test]
fn what_each_process_has_read_stays_with_it() {
    let mut passes = Passes::new();
    passes.pass(&[socket(1, 100)], &[]);
    // 50 more bytes before another process takes it over, and 7 after that, within one pass.
    passes.table.handed_over(&socket(1, 150), passes.now);
    passes.pass(&[again(read_by(socket(1, 157), b"heir"))], &[]);
    assert_eq!((passes.of("reader"), passes.of("heir")), ((150, 0), (7, 1)));
    // Two handovers and the end before a pass has shown the socket.
    passes.table.handed_over(&socket(2, 1000), passes.now);
    passes.table.handed_over(&read_by(socket(2, 1010), b"heir"), passes.now);
    passes.table.ended(&read_by(socket(2, 1011), b"third"), passes.now);
    assert_eq!((passes.of("reader").0, passes.of("heir").0, passes.of("third").0), (1150, 17, 1));
}

/// The record waits in the ring behind one that another CPU has not finished, or the pass has come between the kernel's
/// read of the queue and the program's look at it.
#[test]
fn what_comes_from_the_ring_after_a_pass_with_more_counts_nothing_twice() {
    let with_read = |mut record: SocketRecord, bytes| {
        record.state.counters.read_bytes = bytes;
        record
    };
    let sums = |passes: &Passes| {
        let groups = passes.table.groups();
        let sockets = groups.iter().map(|group| &group.counters.sockets);
        sockets.fold((0, 0), |sum, socket| (sum.0 + socket.received_bytes, sum.1 + socket.read_bytes))
    };
    for known in [true, false] {
        let mut passes = Passes::new();
        if known {
            passes.pass(&[with_read(socket(1, 100), 100)], &[]);
        }
        let heir = |bytes| with_read(read_by(socket(1, bytes), b"heir"), bytes);
        passes.pass(&[if known { again(heir(157)) } else { heir(157) }], &[]);
        for late in [with_read(socket(1, 150), 150), with_read(socket(1, 157), 150)] {
            passes.table.handed_over(&late, passes.now);
            passes.pass(&[again(heir(160))], &[]);
            assert_eq!(sums(&passes), (160, 160), "known: {known}");
        }
        passes.pass(&[again(heir(180))], &[]);
        passes.table.ended(&heir(170), passes.now);
        assert_eq!((sums(&passes), passes.table.impossible()), ((180, 180), Impossible::default()), "known: {known}");
    }
}

#[test]
fn what_cannot_be_is_counted_and_not_shown() {
    let mut passes = Passes::new();
    passes.pass(&[socket(1, 100)], &[]);
    let mut wrapped = again(socket(1, 100));
    wrapped.state.counters.queue_byte_ticks = 5_500_000_000_000_000;
    passes.pass(&[wrapped], &[]);
    let mut early = again(socket(1, 100));
    early.header.time_ns = early.state.last_ns - 100;
    passes.pass(&[early], &[]);
    let groups = passes.table.groups();
    assert!(groups.iter().all(|group| group.counters.sockets.queue_byte_ticks == 0));
    assert_eq!(passes.table.impossible(), Impossible { sockets: 2, readers: 0 });
    // What comes after the impossible values counts again.
    let mut next = wrapped;
    next.state.counters.received_bytes = 120;
    passes.pass(&[next], &[]);
    assert_eq!(passes.received(), [120, 0]);
}

#[test]
fn a_socket_that_is_shown_again_although_nothing_is_known_of_it_adds_only_what_comes() {
    let mut passes = Passes::new();
    passes.pass(&[again(socket(1, 100))], &[]);
    assert_eq!((passes.received(), passes.table.impossible()), ([0, 0], Impossible { sockets: 1, readers: 0 }));
    passes.pass(&[again(socket(1, 130))], &[]);
    assert_eq!(passes.received(), [30, 0]);
}

#[test]
fn gauges_follow_a_socket_to_its_end() {
    let mut passes = Passes::new();
    let limit = |passes: &Passes| {
        let groups = passes.table.groups();
        groups.iter().map(|group| group.gauges.limit_bytes).sum::<u64>()
    };
    passes.pass(&[socket(1, 1), socket(2, 1)], &[]);
    assert_eq!(limit(&passes), 20);
    let mut larger = again(read_by(socket(1, 1), b"heir"));
    larger.live.rcvbuf = 100;
    passes.pass(&[larger], &[2]);
    assert_eq!((limit(&passes), passes.of("heir").1, passes.of("reader").1), (110, 1, 1));
    passes.table.ended(&larger, passes.now);
    passes.pass(&[], &[2]);
    assert_eq!((limit(&passes), passes.of("heir").1), (10, 0));
}

#[test]
fn a_listener_names_connections_until_it_is_gone() {
    let mut passes = Passes::new();
    let mut listener = read_by(socket(1, 0), b"listener");
    (listener.live.state, listener.live.local_port, listener.state.last_ns) = (tcp_state::LISTEN as u8, 80, 0);
    listener.state.counters.segments = 0;
    let accepted = |cookie| {
        let mut accepted = read_by(socket(cookie, 10), b"");
        accepted.live.local_port = 80;
        accepted.state.flags = tcpmon_common::socket::SOCKET_PASSIVE;
        accepted
    };
    passes.pass(&[listener, accepted(2)], &[]);
    assert_eq!(passes.of("listener"), (10, 1));
    passes.table.ended(&listener, passes.now);
    passes.pass(&[accepted(3)], &[2]);
    assert_eq!((passes.of("listener"), passes.of("other")), ((10, 1), (10, 1)));
}

#[test]
fn ends_that_no_program_saw_are_counted_though_no_pass_has_shown_the_sockets() {
    let mut passes = Passes::new();
    let lives = |started, ended| ConnectionCounts { started, ended, opened: 0 };
    let mut now = passes.now;
    let mut pass_after = |ms, before: ConnectionCounts, living, after| {
        now += Duration::from_millis(ms);
        passes.table.compare_counts(before, living, after, now);
        passes.table.unseen_ends()
    };
    // Passes in the same second see the same sockets being freed, and prove nothing.
    for _ in 0..20 {
        assert_eq!(pass_after(10, lives(100, 90), 9, lives(100, 90)), 0);
    }
    let mut pass = |before, living, after| pass_after(1_000, before, living, after);
    // Ten are alive. A burst of 50 starts and ends while a pass runs, which visits some of them.
    for (living, ended) in [(10, 0), (8, 50), (40, 50), (10, 0)] {
        assert_eq!(pass(lives(100, 90), living, lives(150, 90 + ended)), 0);
    }
    // Of 60 more, two end unseen. The one that is visited again had only been missed by one pass.
    assert_eq!(pass(lives(160, 148), 9, lives(160, 148)), 0);
    for _ in 0..2 {
        assert_eq!(pass(lives(160, 148), 10, lives(160, 148)), 0);
    }
    assert_eq!(pass(lives(160, 148), 10, lives(160, 148)), 2);
    assert_eq!(pass(lives(170, 148), 22, lives(170, 148)), 2);
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
    // A total is that of the socket when it was shown, or that at the start of the pass.
    assert_eq!(passes.pass_at(10, &[observed(11, 5)]), [5, 0]);
    assert_eq!(passes.pass_at(20, &[]), [14, 0]);
    assert_eq!(passes.pass_at(21, &[]), [15, 0]);
    // Its own total goes on where it was shown last.
    assert_eq!(passes.pass_at(30, &[again(observed(31, 25))]), [25, 0]);
    assert_eq!(passes.pass_at(40, &[]), [34, 0]);
}

#[test]
fn the_time_of_a_socket_at_rest_stays_with_who_read_from_it() {
    let mut passes = Passes::new();
    passes.pass_at(10, &[observed(11, 5)]);
    passes.pass_at(20, &[]);
    assert_eq!(passes.pass_at(30, &[again(read_by(observed(31, 25), b"heir"))]), [14, 11]);
    assert_eq!(passes.pass_at(40, &[]), [14, 20]);
    passes.table.ended(&read_by(observed(45, 39), b"heir"), passes.now);
    assert_eq!(passes.observed(), [14, 25]);
    assert_eq!(passes.pass_at(50, &[]), [14, 25]);
}

#[test]
fn a_socket_at_rest_that_is_gone_takes_no_more_time() {
    let mut passes = Passes::new();
    passes.pass_at(10, &[observed(11, 5)]);
    passes.table.begin(20 * SECOND);
    passes.table.end(&[0], passes.now);
    for _ in 0..GONE_AFTER {
        passes.table.begin(30 * SECOND);
        passes.table.end(&[0], passes.now);
    }
    assert!(passes.observed()[0] <= 24);
    assert_eq!(passes.pass_at(90, &[])[0], passes.observed()[0]);
}
