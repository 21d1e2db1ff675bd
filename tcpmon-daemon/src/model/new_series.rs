//! New series are shown at zero first: if a counter starts at 1 GB, `increase()` loses that gigabyte, because it needs
//! a sample to count from.
//!
//! The counters of a new group, those of drops for a reason that its group has not had before, and the histograms of a
//! group that has had none stay at zero on all metrics pages until every regular scraper has had one. All clients that
//! share a sample get the same values.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use super::snapshot::{Group, GroupCounters, GroupKey, Snapshot};

/// Maximum time for which new series are held at zero, even if a regular scraper has not requested a page by then.
const MAX_HOLD: Duration = Duration::from_secs(60);

/// A client that stays away for longer than this counts as a new client when it comes back.
const CLIENT_TTL: Duration = Duration::from_secs(300);

/// Maximum number of intervals of a client that are remembered.
const INTERVALS: usize = 8;

/// Maximum number of clients that are remembered; a new one replaces the one that has stayed away for longest.
const MAX_CLIENTS: usize = 64;

/// See the module documentation.
#[derive(Debug, Default)]
pub struct NewSeries {
    clients: HashMap<String, Scraper>,
    groups: HashMap<Arc<GroupKey>, GroupHistory>,
    /// The last sample, as it was shown.
    shown: Weak<Snapshot>,
}

/// A client that requests metrics pages.
#[derive(Debug)]
struct Scraper {
    last: Instant,
    /// Ends and lengths of the client's recent intervals, without those that a later one has exceeded, so that the
    /// first is the longest; empty if it has requested only one page.
    intervals: VecDeque<(Instant, Duration)>,
}

/// What is known about a group since it was created.
#[derive(Debug)]
struct GroupHistory {
    born: Instant,
    /// Time of the last sample that contained it.
    last_seen: Instant,
    all: Series,
    /// Its histograms, once they are shown.
    histograms: Option<Series>,
    /// Drop reasons.
    reasons: HashMap<String, Series>,
}

/// Since when something is shown, and whether with its true value.
#[derive(Clone, Copy, Debug)]
struct Series {
    since: Instant,
    released: bool,
}

impl NewSeries {
    /// Returns the sample as this client gets it. All clients that share a sample get the same: what is returned here
    /// is passed in again for the others. `client` is a key that tells scrapers apart.
    pub fn show(&mut self, client: &str, sample: Arc<Snapshot>, now: Instant) -> Arc<Snapshot> {
        let before = self.record_request(client, now);
        if std::ptr::eq(self.shown.as_ptr(), Arc::as_ptr(&sample)) {
            return sample;
        }
        self.update(&sample, self.all_scraped_since(client, before, now), now);
        let shown = self.hold(sample);
        self.shown = Arc::downgrade(&shown);
        shown
    }

    /// Records a client's request. Returns the time of its previous one.
    fn record_request(&mut self, client: &str, now: Instant) -> Option<Instant> {
        self.clients.retain(|_, client| now.duration_since(client.last) < CLIENT_TTL);
        if let Some(client) = self.clients.get_mut(client) {
            return Some(client.request(now));
        }
        if self.clients.len() >= MAX_CLIENTS {
            let oldest = self.clients.iter().min_by_key(|(_, client)| client.last).map(|(name, _)| name.clone());
            oldest.and_then(|name| self.clients.remove(&name));
        }
        self.clients.insert(client.to_owned(), Scraper { last: now, intervals: VecDeque::new() });
        None
    }

    /// The time since which every regular scraper has had a page; `None` if there is no regular scraper. The client
    /// that is `asking` has not received its page yet: its last one was at `before`.
    fn all_scraped_since(&self, asking: &str, before: Option<Instant>, now: Instant) -> Option<Instant> {
        let regular = self.clients.iter().filter(|(_, client)| client.is_awaited(now));
        regular.filter_map(|(name, client)| if name == asking { before } else { Some(client.last) }).min()
    }

    /// Takes in a new sample: what all regular scrapers have seen at zero is shown with its true value from now on.
    fn update(&mut self, sample: &Snapshot, all_scraped_since: Option<Instant>, now: Instant) {
        let advance = |shown: &mut Series| {
            shown.released |= all_scraped_since.is_none_or(|seen| seen >= shown.since);
            shown.released |= now.duration_since(shown.since) >= MAX_HOLD;
        };
        let new = Series { since: now, released: false };
        for group in &sample.groups {
            match self.groups.get_mut(&group.key).filter(|history| history.born == group.born) {
                Some(history) => {
                    history.last_seen = now;
                    advance(&mut history.all);
                    match &mut history.histograms {
                        Some(shown) => advance(shown),
                        None => history.histograms = group.histograms.then_some(new),
                    }
                    for (reason, _) in &group.counters.drops {
                        match history.reasons.get_mut(reason) {
                            Some(shown) => advance(shown),
                            None => drop(history.reasons.insert(reason.clone(), new)),
                        }
                    }
                }
                None => {
                    let reasons = group.counters.drops.iter().map(|(reason, _)| (reason.clone(), new)).collect();
                    let histograms = group.histograms.then_some(new);
                    self.groups.insert(
                        group.key.clone(),
                        GroupHistory { born: group.born, last_seen: now, all: new, histograms, reasons },
                    );
                }
            }
        }
        self.groups.retain(|_, history| now.duration_since(history.last_seen) < CLIENT_TTL);
    }

    /// The sample with zeros for what is held.
    fn hold(&self, mut sample: Arc<Snapshot>) -> Arc<Snapshot> {
        let held: u64 = sample.groups.iter().map(|group| self.held_count(group)).sum();
        if held > 0 {
            let shown = Arc::make_mut(&mut sample);
            shown.new_at_zero = held;
            for group in &mut shown.groups {
                self.hold_group(group);
            }
        }
        sample
    }

    /// How much of the group is held: 1 for the whole group, or 1 for its histograms and for each drop reason.
    fn held_count(&self, group: &Group) -> u64 {
        let Some(history) = self.groups.get(&group.key) else { return 0 };
        if !history.all.released {
            return 1;
        }
        let reasons = group.counters.drops.iter().filter(|(reason, _)| history.holds(reason)).count() as u64;
        reasons + u64::from(history.holds_histograms())
    }

    fn hold_group(&self, group: &mut Group) {
        let Some(history) = self.groups.get(&group.key) else { return };
        if !history.all.released {
            let drops = std::mem::take(&mut group.counters.drops);
            group.counters = GroupCounters { drops, ..GroupCounters::default() };
        }
        if history.holds_histograms() {
            group.counters.clear_histograms();
        }
        for (reason, count) in &mut group.counters.drops {
            if !history.all.released || history.holds(reason) {
                *count = 0;
            }
        }
    }
}

impl Scraper {
    /// Records a request, and returns the time of the one before.
    fn request(&mut self, now: Instant) -> Instant {
        let before = std::mem::replace(&mut self.last, now);
        let interval = now.duration_since(before);
        self.intervals.retain(|(end, longer)| now.duration_since(*end) < CLIENT_TTL && *longer > interval);
        self.intervals.truncate(INTERVALS - 1);
        self.intervals.push_back((now, interval));
        before
    }

    /// Whether the client requests pages regularly, and is not overdue by more than the longest interval of the last
    /// [`CLIENT_TTL`]: a client that asks several times at once, or has little CPU for a moment, is as regular as
    /// before.
    fn is_awaited(&self, now: Instant) -> bool {
        self.intervals.front().is_some_and(|(_, longest)| now.duration_since(self.last) <= 2 * *longest)
    }
}

impl GroupHistory {
    fn holds_histograms(&self) -> bool {
        self.histograms.is_some_and(|shown| !shown.released)
    }

    fn holds(&self, reason: &str) -> bool {
        self.reasons.get(reason).is_some_and(|shown| !shown.released)
    }
}

#[cfg(test)]
mod tests {
    use tcpmon_common::socket::SocketTotals;

    use super::*;
    use crate::model::snapshot::GroupGauges;

    /// Requests pages at given seconds, and reports what it got.
    struct Pages {
        new_series: NewSeries,
        start: Instant,
    }

    impl Pages {
        fn new() -> Self {
            Self { new_series: NewSeries::default(), start: Instant::now() }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        /// A group that was born at this second.
        fn group(&self, process: &str, born: u64, received_bytes: u64, drops: &[(&str, u64)]) -> Group {
            Group {
                key: GroupKey { process: process.into(), service: "other".into(), cgroup: None }.into(),
                born: self.at(born),
                counters: GroupCounters {
                    sockets: SocketTotals { received_bytes, ..SocketTotals::default() },
                    drops: drops.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect(),
                    ..GroupCounters::default()
                },
                gauges: GroupGauges { sockets: 7, ..GroupGauges::default() },
                histograms: received_bytes > 0,
            }
        }

        fn ask(&mut self, client: &str, second: u64, groups: Vec<Group>) -> Arc<Snapshot> {
            let sample = Arc::new(Snapshot { groups, ..Snapshot::default() });
            let now = self.at(second);
            self.new_series.show(client, sample, now)
        }

        /// What a client is shown for a group that was born at `born` and has received 100 bytes.
        fn received(&mut self, client: &str, second: u64, born: u64) -> u64 {
            let group = self.group("a", born, 100, &[]);
            let page = self.ask(client, second, vec![group]);
            let held = page.groups[0].counters.sockets.received_bytes == 0;
            assert_eq!(page.new_at_zero, u64::from(held));
            assert_eq!(page.groups[0].gauges.sockets, 7, "the present is never held");
            page.groups[0].counters.sockets.received_bytes
        }

        /// Makes this client request pages without groups at these seconds.
        fn regular(&mut self, client: &str, seconds: impl IntoIterator<Item = u64>) {
            for second in seconds {
                self.ask(client, second, Vec::new());
            }
        }
    }

    #[test]
    fn a_group_is_at_zero_on_the_first_page_and_true_on_the_next_when_nobody_else_comes_regularly() {
        let mut pages = Pages::new();
        assert_eq!([pages.received("a", 5, 4), pages.received("a", 20, 4), pages.received("a", 35, 4)], [0, 100, 100]);
        assert_eq!(pages.received("b", 36, 4), 100, "new to one who has never come, and true");
    }

    #[test]
    fn a_group_is_at_zero_until_every_regular_scraper_has_seen_it_so() {
        let mut pages = Pages::new();
        pages.regular("slow", [0, 30]);
        pages.regular("fast", [31, 36]);
        assert_eq!([pages.received("fast", 41, 40), pages.received("fast", 46, 40)], [0, 0]);
        assert_eq!(pages.received("slow", 60, 40), 0);
        assert_eq!([pages.received("fast", 61, 40), pages.received("slow", 90, 40)], [100, 100]);
    }

    #[test]
    fn who_comes_for_the_second_time_is_regular_already() {
        let mut pages = Pages::new();
        pages.regular("a", [0, 5]);
        pages.regular("b", [6]);
        assert_eq!([pages.received("a", 10, 8), pages.received("b", 12, 8), pages.received("a", 15, 8)], [0, 0, 100]);
    }

    #[test]
    fn who_stays_away_is_waited_for_no_longer_than_two_of_its_intervals() {
        let mut pages = Pages::new();
        pages.regular("gone", [0, 10]);
        pages.regular("here", [11, 16]);
        assert_eq!([pages.received("here", 21, 20), pages.received("here", 30, 20)], [0, 0]);
        assert_eq!(pages.received("here", 31, 20), 100);
    }

    #[test]
    fn who_asks_many_times_at_once_is_waited_for_as_long_as_before() {
        let mut pages = Pages::new();
        pages.regular("a", [0, 10].into_iter().chain([20; 20]));
        assert_eq!([pages.received("b", 25, 24), pages.received("b", 26, 24)], [0, 0]);
        assert_eq!([pages.received("a", 30, 24), pages.received("b", 31, 24)], [0, 100]);
    }

    #[test]
    fn the_longest_interval_of_five_minutes_says_how_long_a_client_is_waited_for() {
        let mut pages = Pages::new();
        pages.regular("a", [0, 20].into_iter().chain((22..330).step_by(2)));
        assert_eq!([pages.received("b", 335, 334), pages.received("b", 340, 334)], [0, 100], "20 s were too long ago");
        let mut pages = Pages::new();
        pages.regular("a", [0, 20].into_iter().chain((22..300).step_by(2)));
        assert_eq!([pages.received("b", 325, 324), pages.received("b", 330, 324)], [0, 0]);
        assert_eq!([pages.received("a", 331, 324), pages.received("b", 332, 324)], [0, 100]);
    }

    #[test]
    fn nothing_is_held_for_more_than_a_minute_after_it_was_first_shown() {
        let mut pages = Pages::new();
        pages.regular("slow", [0, 250]);
        pages.regular("fast", [250, 265]);
        for second in [280, 295, 310, 325, 339] {
            assert_eq!(pages.received("fast", second, 100), 0, "{second}");
        }
        assert_eq!(pages.received("fast", 340, 100), 100, "although slow comes at 500");
    }

    #[test]
    fn whoever_shares_a_reading_gets_the_same() {
        let mut pages = Pages::new();
        let mut sample = Arc::new(Snapshot { groups: vec![pages.group("a", 0, 100, &[])], ..Snapshot::default() });
        for (client, second) in [("a", 5), ("b", 5), ("a", 6)] {
            let now = pages.at(second);
            sample = pages.new_series.show(client, sample, now);
            assert_eq!(sample.groups[0].counters.sockets.received_bytes, 0, "{client}");
        }
        assert_eq!(pages.received("b", 7, 0), 100);
    }

    #[test]
    fn a_group_that_comes_back_begins_at_zero_again() {
        let mut pages = Pages::new();
        assert_eq!([pages.received("a", 5, 4), pages.received("a", 20, 4)], [0, 100]);
        assert_eq!([pages.received("a", 35, 30), pages.received("a", 50, 30)], [0, 100]);
    }

    #[test]
    fn a_reason_that_a_group_has_not_had_is_at_zero_first_while_its_others_go_on() {
        let mut pages = Pages::new();
        let mut drops = |second, drops: &[(&str, u64)]| {
            let group = pages.group("a", 0, 100, drops);
            let page = pages.ask("a", second, vec![group]);
            let shown: Vec<u64> = page.groups[0].counters.drops.iter().map(|(_, count)| *count).collect();
            (shown, page.groups[0].counters.sockets.received_bytes, page.new_at_zero)
        };
        assert_eq!(drops(5, &[("old", 3)]), (vec![0], 0, 1));
        assert_eq!(drops(20, &[("old", 4)]), (vec![4], 100, 0));
        assert_eq!(drops(35, &[("new", 9), ("old", 5)]), (vec![0, 5], 100, 1));
        assert_eq!(drops(50, &[("new", 9), ("old", 6)]), (vec![9, 6], 100, 0));
    }

    #[test]
    fn histograms_that_a_group_has_not_had_are_at_zero_first_while_its_counters_go_on() {
        let mut pages = Pages::new();
        let mut count = |second, received_bytes| {
            let mut group = pages.group("a", 0, received_bytes, &[]);
            group.counters.sockets.growths = 3;
            (group.counters.readers.ends, group.counters.readers.on_cpu_ns) = ([4, 0, 0], received_bytes);
            (group.counters.sockets.fills[1][0], group.counters.readers.on_cpu[2]) = (received_bytes, received_bytes);
            let page = pages.ask("a", second, vec![group]);
            let Group { counters, histograms, .. } = &page.groups[0];
            let bins = [counters.sockets.fills[1][0], counters.readers.on_cpu[2], counters.readers.on_cpu_ns];
            let others = (counters.sockets.growths, counters.readers.ends[0], counters.sockets.received_bytes);
            (*histograms, bins, others, page.new_at_zero)
        };
        assert_eq!(count(5, 0), (false, [0; 3], (0, 0, 0), 1));
        assert_eq!(count(20, 0), (false, [0; 3], (3, 4, 0), 0));
        assert_eq!(count(35, 9), (true, [0; 3], (3, 4, 9), 1));
        assert_eq!(count(50, 9), (true, [9; 3], (3, 4, 9), 0));
    }

    #[test]
    fn times_of_readers_are_counters_where_nobody_counts_timeslices() {
        let mut pages = Pages::new();
        let mut cpu_ns = |second, received_bytes, on_cpu_ns| {
            let mut group = pages.group("a", 0, received_bytes, &[]);
            group.counters.readers.on_cpu_ns = on_cpu_ns;
            let page = pages.ask("a", second, vec![group]);
            (page.groups[0].counters.readers.on_cpu_ns, page.new_at_zero)
        };
        assert_eq!([cpu_ns(5, 0, 1), cpu_ns(20, 0, 2)], [(0, 1), (2, 0)]);
        // The group's first histogram is held at zero, but this counter must not fall.
        assert_eq!([cpu_ns(35, 9, 3), cpu_ns(50, 9, 4)], [(3, 1), (4, 0)]);
    }

    #[test]
    fn clients_and_groups_that_stay_away_are_forgotten_and_the_number_of_clients_is_bounded() {
        let mut pages = Pages::new();
        for number in 0..1000 {
            pages.received(&format!("client {number}"), number / 10, 0);
        }
        assert!(pages.new_series.clients.len() <= MAX_CLIENTS);
        assert_eq!(pages.new_series.groups.len(), 1);
        pages.regular("last", [1000]);
        assert_eq!((pages.new_series.clients.len(), pages.new_series.groups.len()), (1, 0));
    }
}
