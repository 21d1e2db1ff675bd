//! Tests of groups: which ones are shown, and that nothing is lost or counted twice.

use proptest::prelude::*;

use super::*;
use crate::model::snapshot::GroupCounters;

fn key(process: &str) -> GroupKey {
    GroupKey { process: process.into(), service: "local:1".into(), cgroup: None }
}

fn added(bytes: i64) -> SocketTotals {
    SocketTotals { received_bytes: bytes.cast_unsigned(), ..SocketTotals::default() }
}

/// Groups, and a clock in seconds.
struct Passes {
    groups: Groups,
    start: Instant,
    seconds: u64,
}

impl Passes {
    fn new(max: usize, ttl_seconds: u64, pins: &[&str]) -> Self {
        let start = Instant::now();
        let pins: Vec<_> = pins.iter().map(|name| (*name).to_owned()).collect();
        let groups = Groups::new(max, Duration::from_secs(ttl_seconds), &pins, false, start);
        Self { groups, start, seconds: 0 }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_secs(self.seconds)
    }

    /// Makes a pass this many seconds after the last one and returns the page.
    fn pass(&mut self, seconds: u64) -> Vec<Group> {
        self.seconds += seconds;
        let now = self.now();
        self.groups.expire(now);
        let page = self.groups.all();
        self.groups.change_places(now);
        page
    }

    fn join(&mut self, process: &str) -> GroupId {
        self.groups.join(key(process), self.now())
    }

    fn add(&mut self, id: GroupId, bytes: i64) {
        self.groups.add_socket(id, &added(bytes), self.now());
    }

    /// A connection that starts and ends between two passes.
    fn briefly(&mut self, process: &str, bytes: i64) {
        let id = self.join(process);
        self.add(id, bytes);
        self.groups.leave(id);
    }
}

fn names(page: &[Group]) -> Vec<&str> {
    page.iter().map(|group| group.key.process.as_str()).collect()
}

fn received(page: &[Group], process: &str) -> Option<u64> {
    page.iter().find(|group| group.key.process == process).map(|group| group.counters.sockets.received_bytes)
}

#[test]
fn a_group_that_finds_no_room_counts_under_other_and_is_counted_as_suppressed() {
    let mut passes = Passes::new(3, 600, &[]);
    let [a, b, c] = ["a", "b", "c"].map(|name| passes.join(name));
    for id in [a, b, c] {
        passes.add(id, 5);
    }
    passes.groups.add_drops(c, "proto_mem", 2, passes.now());
    passes.groups.gauges(c).sockets += 1;
    let page = passes.groups.all();
    assert_eq!(names(&page), ["a", "b", "other"]);
    let other = &page[2];
    assert_eq!((other.counters.sockets.received_bytes, other.gauges.sockets), (5, 1));
    assert_eq!(other.counters.drops, [("proto_mem".to_owned(), 2)]);
    assert_eq!(passes.groups.suppressed(), 1);
    assert_eq!(passes.groups.usage(), Use { shown: 3, max: 3, hidden: 1, max_hidden: HIDDEN });
    assert_eq!(passes.join("a"), a, "known groups still take members");
    assert_eq!(passes.groups.suppressed(), 1);
}

#[test]
fn a_busy_newcomer_is_on_the_second_page_although_200_idle_names_came_first() {
    let mut passes = Passes::new(200, 600, &[]);
    for name in 0..300 {
        passes.briefly(&format!("idle{name}"), 100);
    }
    passes.pass(15);
    passes.pass(15);
    let busy = passes.join("busy");
    passes.add(busy, 1_000_000);
    assert_eq!(received(&passes.pass(15), "busy"), None);
    passes.add(busy, 70);
    let page = passes.pass(15);
    assert_eq!((received(&page, "busy"), page.len()), (Some(70), 200));
    let born = page.iter().find(|group| group.key.process == "busy").map(|group| group.born);
    assert_eq!(born, Some(passes.now() - Duration::from_secs(15)), "with the page that did not show it yet");
}

#[test]
fn a_stuck_reader_with_a_full_queue_is_busy() {
    let mut passes = Passes::new(2, 600, &[]);
    passes.briefly("first", 1_000);
    passes.pass(1);
    let stuck = passes.join("stuck");
    passes.groups.gauges(stuck).queue_bytes = 6_000_000;
    passes.pass(1);
    assert_eq!(names(&passes.pass(1)), ["other", "stuck"]);
}

#[test]
fn a_group_that_is_busy_is_not_displaced_by_one_that_is_not() {
    let mut passes = Passes::new(2, 600, &[]);
    let (old, new) = (passes.join("old"), passes.join("new"));
    for _ in 0..100 {
        passes.add(old, 1_000);
        passes.add(new, 1_500);
        passes.pass(15);
    }
    assert_eq!(names(&passes.groups.all()), ["old", "other"], "1.5 times as much is too little");
    for _ in 0..20 {
        passes.add(old, 1_000);
        passes.add(new, 2_500);
        passes.pass(15);
    }
    assert_eq!(names(&passes.groups.all()), ["new", "other"]);
}

#[test]
fn two_that_are_alike_do_not_take_turns() {
    let mut passes = Passes::new(2, 600, &[]);
    let pair = ["a", "b"].map(|name| passes.join(name));
    for pass in 0..200 {
        passes.add(pair[pass % 2], 1_000);
        assert_eq!(names(&passes.pass(15)), ["a", "other"], "{pass}");
    }
}

#[test]
fn a_group_with_members_is_shown_for_a_minute_at_least() {
    let mut passes = Passes::new(2, 600, &[]);
    let (first, busy) = (passes.join("first"), passes.join("busy"));
    passes.add(first, 10);
    passes.add(busy, 1_000_000);
    for _ in 0..6 {
        assert_eq!(names(&passes.pass(10)), ["first", "other"]);
    }
    assert_eq!(names(&passes.pass(10)), ["busy", "other"]);
    assert_eq!(passes.groups.suppressed(), 2, "busy, and then the member of first");
}

#[test]
fn a_newcomer_takes_the_place_of_a_group_that_has_been_idle_for_a_minute_at_once() {
    let mut passes = Passes::new(3, 600, &[]);
    passes.briefly("large", 1_000);
    passes.briefly("small", 10);
    passes.pass(59);
    passes.briefly("early", 1);
    assert_eq!(names(&passes.groups.all()), ["large", "other", "small"]);
    passes.pass(2);
    passes.briefly("late", 1);
    assert_eq!(names(&passes.groups.all()), ["large", "late", "other"]);
    assert_eq!(received(&passes.groups.all(), "late"), Some(1));
    passes.briefly("small", 7);
    assert_eq!(received(&passes.groups.all(), "other"), Some(8), "of small, only what is new");
}

#[test]
fn a_free_place_goes_to_the_most_active_hidden_group() {
    let mut passes = Passes::new(2, 300, &[]);
    let first = passes.join("first");
    passes.add(first, 1_000_000_000);
    let rest = ["a", "b", "c"].map(|name| passes.join(name));
    passes.groups.leave(first);
    for (id, bytes) in rest.into_iter().zip([10, 30, 20]) {
        passes.add(id, bytes);
    }
    passes.pass(299);
    assert_eq!(names(&passes.pass(2)), ["other"], "its time is over");
    assert_eq!(names(&passes.pass(1)), ["b", "other"]);
}

#[test]
fn a_pinned_process_is_shown_at_once_and_stays() {
    let mut passes = Passes::new(3, 600, &["postgres", "a-name-of-more-than-15-bytes"]);
    let (large, small) = (passes.join("large"), passes.join("small"));
    passes.add(large, 1_000);
    passes.add(small, 10);
    passes.pass(1);
    let pinned = passes.join("postgres");
    passes.add(pinned, 1);
    assert_eq!(names(&passes.groups.all()), ["large", "other", "postgres"]);
    assert_eq!(received(&passes.groups.all(), "postgres"), Some(1));
    for _ in 0..100 {
        passes.add(large, 1_000);
        passes.add(small, 1_000_000);
        passes.pass(15);
    }
    assert_eq!(names(&passes.groups.all()), ["other", "postgres", "small"]);
    passes.join("a-name-of-more-");
    assert_eq!(names(&passes.groups.all()), ["a-name-of-more-", "other", "postgres"]);
    // Pinned groups are limited in number, too: the most active of them are shown.
    let third = passes.groups.join(GroupKey { service: "local:2".into(), ..key("postgres") }, passes.now());
    passes.add(third, 1_000_000_000);
    passes.pass(61);
    let services: Vec<_> = passes.pass(1).into_iter().map(|group| group.key.service.clone()).collect();
    assert_eq!(services, ["other", "local:1", "local:2"]);
}

#[test]
fn hidden_groups_are_bounded_and_what_is_beyond_still_counts() {
    let mut passes = Passes::new(2, 600, &["pinned"]);
    for name in 0..HIDDEN + 10 {
        let id = passes.join(&format!("{name}"));
        passes.add(id, 1);
    }
    assert_eq!(passes.groups.usage(), Use { shown: 2, max: 2, hidden: HIDDEN, max_hidden: HIDDEN });
    assert_eq!(received(&passes.groups.all(), "other"), Some(HIDDEN as u64 + 9));
    assert_eq!(passes.groups.suppressed(), HIDDEN as u64 + 9);
    passes.join("pinned");
    assert_eq!(names(&passes.groups.all()), ["other", "pinned"]);
}

#[test]
fn an_idle_group_leaves_with_its_totals() {
    let mut passes = Passes::new(10, 600, &[]);
    let id = passes.join("a");
    passes.add(id, 100);
    passes.groups.add_drops(id, "proto_mem", 2, passes.now());
    assert_eq!(passes.pass(1200).len(), 2, "a group with members stays");
    passes.groups.leave(id);
    let left = passes.pass(1);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].counters, GroupCounters::default(), "`other` has received nothing of its own");
    assert_eq!(passes.join("b"), id, "its place is free again");
    assert_eq!(received(&passes.groups.all(), "b"), Some(0), "and holds nothing of the former group");
    passes.groups.leave(id);
    passes.pass(599);
    assert_eq!(passes.groups.all().len(), 2, "not idle for long enough");
}

#[test]
fn a_group_is_born_at_the_last_pass_that_did_not_show_it_and_anew_when_it_comes_back() {
    let mut passes = Passes::new(10, 60, &[]);
    let start = passes.start;
    let at = |seconds| start + Duration::from_secs(seconds);
    let born = |groups: &Groups| groups.all().iter().map(|group| group.born).collect::<Vec<_>>();
    passes.pass(10);
    passes.seconds = 15;
    passes.briefly("a", 0);
    passes.pass(5);
    assert_eq!(born(&passes.groups), [at(10), start], "a, and other, which is as old as the daemon");
    passes.pass(80);
    passes.seconds = 110;
    passes.join("a");
    assert_eq!(born(&passes.groups), [at(100), start]);
}

/// What can happen to groups.
#[derive(Clone, Debug)]
enum Happening {
    Join(usize),
    /// One of the current members, by its index.
    Leave(usize),
    Receive(usize, i64),
    Drop(usize, u64),
    Briefly(usize, i64),
    Pass(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    let bytes = || prop_oneof![0..10i64, 0..1_000_000i64];
    prop_oneof![
        2 => (0..12usize).prop_map(Happening::Join),
        2 => any::<usize>().prop_map(Happening::Leave),
        4 => (any::<usize>(), bytes()).prop_map(|(member, bytes)| Happening::Receive(member, bytes)),
        1 => (any::<usize>(), 1..5u64).prop_map(|(member, count)| Happening::Drop(member, count)),
        3 => (0..12usize, bytes()).prop_map(|(name, bytes)| Happening::Briefly(name, bytes)),
        4 => prop_oneof![1..15u64, 1..100u64].prop_map(Happening::Pass),
    ]
}

proptest! {
    /// The increases from page to page add up to what was added; each series counts from the birth of its group.
    #[test]
    fn nothing_is_lost_or_counted_twice_when_groups_change_places(
        happenings in proptest::collection::vec(happening(), 1..200), pinned in any::<bool>(),
    ) {
        const MAX: usize = 4;
        let mut passes = Passes::new(MAX, 600, if pinned { &["3", "5"] } else { &[] });
        let (mut added, mut shown) = ((0, 0), (0, 0));
        let mut members = Vec::new();
        let mut before: HashMap<(Arc<GroupKey>, Instant), (u64, u64)> = HashMap::new();
        for happening in happenings.into_iter().chain([Happening::Pass(1)]) {
            match happening {
                Happening::Join(name) => {
                    let id = passes.join(&name.to_string());
                    passes.groups.gauges(id).sockets += 1;
                    members.push(id);
                }
                Happening::Leave(member) if !members.is_empty() => {
                    let id = members.swap_remove(member % members.len());
                    passes.groups.gauges(id).sockets -= 1;
                    passes.groups.leave(id);
                }
                Happening::Receive(member, bytes) if !members.is_empty() => {
                    passes.add(members[member % members.len()], bytes);
                    added.0 += bytes.cast_unsigned();
                }
                Happening::Drop(member, count) if !members.is_empty() => {
                    let now = passes.now();
                    passes.groups.add_drops(members[member % members.len()], "why", count, now);
                    added.1 += count;
                }
                Happening::Briefly(name, bytes) => {
                    passes.briefly(&name.to_string(), bytes);
                    added.0 += bytes.cast_unsigned();
                }
                Happening::Pass(seconds) => {
                    let page = passes.pass(seconds);
                    prop_assert!(page.len() <= MAX, "{page:?}");
                    let sockets: u64 = page.iter().map(|group| group.gauges.sockets).sum();
                    prop_assert_eq!(sockets, members.len() as u64);
                    let mut now = HashMap::new();
                    for group in page {
                        let life = (group.key, group.born);
                        let drops = group.counters.drops.iter().map(|(_, count)| count).sum();
                        let (bytes_before, drops_before) = before.get(&life).copied().unwrap_or_default();
                        prop_assert!(group.counters.sockets.received_bytes >= bytes_before && drops >= drops_before);
                        shown.0 += group.counters.sockets.received_bytes - bytes_before;
                        shown.1 += drops - drops_before;
                        now.insert(life, (group.counters.sockets.received_bytes, drops));
                    }
                    before = now;
                    // A group that a pinned one replaces at once loses what it has received since the last page.
                    if pinned {
                        prop_assert!(shown.0 <= added.0 && shown.1 <= added.1, "{shown:?} of {added:?}");
                    } else {
                        prop_assert_eq!(shown, added);
                    }
                }
                _ => {}
            }
        }
    }
}
