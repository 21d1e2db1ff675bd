//! What has changed from pass to pass, while a client asks for it.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use tcpmon_common::reader::ReaderSlot;

use super::{LiveReader, LiveSample, LiveSocket};

/// The connections and readers that are alive, each with the pass in which it last changed.
#[derive(Debug, Default)]
pub struct Changes {
    /// Number of the last pass that was recorded. It never starts again from zero: a client may ask for what has
    /// changed since any pass.
    pass: u64,
    /// The first pass after which the list was complete; `None` before that.
    complete_from: Option<u64>,
    sockets: HashMap<u32, (u64, Arc<LiveSocket>)>,
    readers: HashMap<u32, (u64, LiveReader)>,
    /// Segments dropped, by cookie, with the index of the connection that they are counted for: the records of sockets
    /// do not have them. They are counted even while no client asks.
    drops: HashMap<u64, (u32, u64)>,
}

impl Changes {
    /// No client has asked for a long time: the next pass that is recorded must show all sockets, and the next client
    /// gets everything.
    pub fn forget(&mut self) {
        (self.complete_from, self.sockets, self.readers) = Default::default();
    }

    /// Adds the drops since the last pass, by cookie. `index_of` returns the index of a connection that is alive. When
    /// another process has taken a connection over, the connection has another index, and its drops start from zero
    /// like its other totals.
    pub fn add_drops(&mut self, drops: impl Iterator<Item = (u64, u64)>, index_of: impl Fn(u64) -> Option<u32>) {
        self.drops.retain(|cookie, (index, _)| index_of(*cookie) == Some(*index));
        for (cookie, by) in drops {
            if let Some(index) = index_of(cookie) {
                self.drops.entry(cookie).or_insert((index, 0)).1 += by;
            }
        }
    }

    /// Records what a pass has shown; call this after [`Changes::add_drops`]. `listed` are the connections that have
    /// changed, or all connections if `all` is true. `is_alive` returns whether a connection still has its index.
    pub fn record_pass(
        &mut self,
        all: bool,
        listed: Vec<Arc<LiveSocket>>,
        readers: &[(u32, ReaderSlot)],
        is_alive: impl Fn(u32, u64) -> bool,
    ) {
        self.pass += 1;
        let pass = self.pass;
        if all || self.complete_from.is_none() {
            self.complete_from = Some(pass);
        }
        self.sockets.extend(listed.into_iter().map(|socket| (socket.index, (pass, socket))));
        self.sockets.retain(|index, (_, socket)| is_alive(*index, socket.cookie));

        for (index, drops) in self.drops.values() {
            if let Some((changed, socket)) = self.sockets.get_mut(index)
                && socket.totals.drops != *drops
            {
                (Arc::make_mut(socket).totals.drops, *changed) = (*drops, pass);
            }
        }

        let before = std::mem::take(&mut self.readers);
        let changed = |slot: u32, reader: LiveReader| match before.get(&slot) {
            Some((changed, known)) if *known == reader => *changed,
            _ => pass,
        };
        let all = readers.iter().map(|(slot, reader)| (*slot, LiveReader::new(*slot, reader)));
        self.readers = all.map(|(slot, reader)| (slot, (changed(slot, reader), reader))).collect();
    }

    /// What has changed since the pass with this number; everything if it is 0 or unknown. Without groups and host.
    pub fn since(&self, pass: u64) -> LiveSample {
        let complete = self.complete_from.is_none_or(|from| pass < from) || pass > self.pass;
        let pass = if complete { 0 } else { pass };
        LiveSample {
            pass: self.pass,
            complete,
            sockets: newer(&self.sockets, pass),
            alive: bits(self.sockets.keys()),
            readers: newer(&self.readers, pass),
            slots: bits(self.readers.keys()),
            ..LiveSample::default()
        }
    }
}

fn newer<K: Eq + Hash, V: Clone>(all: &HashMap<K, (u64, V)>, pass: u64) -> Vec<V> {
    all.values().filter(|(changed, _)| *changed > pass).map(|(_, value)| value.clone()).collect()
}

fn bits<'a>(numbers: impl Iterator<Item = &'a u32>) -> Vec<u64> {
    let mut bits = Vec::new();
    for number in numbers {
        let word = *number as usize / 64;
        if word >= bits.len() {
            bits.resize(word + 1, 0);
        }
        bits[word] |= 1 << (number % 64);
    }
    bits
}

#[cfg(test)]
mod tests {
    use std::iter;

    use proptest::prelude::*;
    use zerocopy::FromZeros as _;

    use super::*;
    use crate::top::fixture::socket;

    #[test]
    fn a_client_gets_what_has_changed_since_its_pass_and_everything_at_first() {
        let mut changes = Changes::default();
        changes.record_pass(true, vec![socket(1), socket(2)], &[], |_, _| true);
        let first = changes.since(0);
        assert_eq!((first.pass, first.complete, first.sockets.len(), first.alive), (1, true, 2, vec![0b110]));

        let mut changed = socket(2);
        Arc::make_mut(&mut changed).totals.received_bytes += 1;
        changes.record_pass(false, vec![changed.clone()], &[], |_, _| true);
        let second = changes.since(first.pass);
        assert_eq!((second.complete, second.sockets), (false, vec![changed]));
        // Another client's pass does not hide what this one has not seen.
        changes.record_pass(false, Vec::new(), &[], |_, _| true);
        assert_eq!(changes.since(first.pass).sockets.len(), 1);
        assert_eq!(changes.since(second.pass).sockets.len(), 0);
        // A number from another daemon.
        assert!(changes.since(77).complete);
    }

    #[test]
    fn a_client_that_has_not_asked_for_long_gets_everything_also_if_others_have_asked_since() {
        let mut changes = Changes::default();
        changes.record_pass(true, vec![socket(1)], &[], |_, _| true);
        let slow = changes.since(0);
        // Nobody asks for long: the changes are forgotten, and begin again for another client.
        changes.forget();
        for all in [true, false, false] {
            changes.record_pass(all, vec![socket(1), socket(2)], &[], |_, _| true);
        }
        let sample = changes.since(slow.pass);
        assert_eq!((sample.complete, sample.sockets.len(), sample.pass), (true, 2, 4));
        assert!(!changes.since(2).complete);
    }

    #[test]
    fn an_ended_socket_is_not_alive_and_another_socket_at_a_known_index_is_a_change() {
        let mut changes = Changes::default();
        changes.record_pass(true, vec![socket(1), socket(2)], &[], |_, _| true);
        changes.record_pass(false, Vec::new(), &[], |index, _| index != 1);
        assert_eq!(changes.since(1).alive, [0b100]);
        let mut other = socket(2);
        Arc::make_mut(&mut other).cookie = 99;
        changes.record_pass(false, vec![other.clone()], &[], |_, cookie| cookie == 99);
        assert_eq!((changes.since(2).sockets, changes.since(2).alive), (vec![other], vec![0b100]));
    }

    #[test]
    fn drops_add_up_and_are_forgotten_with_the_socket() {
        let mut changes = Changes::default();
        let cookie = socket(1).cookie;
        let index_of = |of: u64| (of == cookie).then_some(1);
        changes.add_drops([(cookie, 2), (7, 7)].into_iter(), index_of);
        changes.record_pass(true, vec![socket(1)], &[], |_, _| true);
        changes.add_drops([(cookie, 3)].into_iter(), index_of);
        changes.record_pass(false, Vec::new(), &[], |_, _| true);
        assert_eq!(changes.since(1).sockets[0].totals.drops, 5);
        // The next record of the pass does not have them.
        changes.record_pass(false, vec![socket(1)], &[], |_, _| true);
        assert_eq!(changes.since(2).sockets[0].totals.drops, 5);
        changes.add_drops(iter::empty(), |_| None);
        assert!(changes.drops.is_empty());
    }

    #[test]
    fn the_drops_of_a_former_reader_are_not_those_of_the_next() {
        let mut changes = Changes::default();
        let cookie = socket(1).cookie;
        changes.add_drops([(cookie, 5)].into_iter(), |_| Some(1));
        changes.record_pass(true, vec![socket(1)], &[], |_, _| true);
        let mut heir = socket(2);
        Arc::make_mut(&mut heir).cookie = cookie;
        for (by, drops) in [(0, 0), (3, 3)] {
            changes.add_drops([(cookie, by)].into_iter(), |_| Some(2));
            changes.record_pass(false, vec![heir.clone()], &[], |index, _| index == 2);
            let sockets = changes.since(1).sockets;
            assert_eq!((sockets.len(), sockets[0].index, sockets[0].totals.drops), (1, 2, drops));
        }
    }

    /// A client that asks after each so many passes and keeps what it is shown.
    #[derive(Default)]
    struct Client {
        pass: u64,
        sockets: HashMap<u32, Arc<LiveSocket>>,
        readers: HashMap<u32, LiveReader>,
        /// Bytes received by cookie: the sums of what the samples have added.
        received: HashMap<u64, u64>,
    }

    impl Client {
        fn ask(&mut self, changes: &Changes) {
            let sample = changes.since(self.pass);
            let is_set = |bits: &[u64], bit: u32| bits.first().is_some_and(|word| word >> bit & 1 == 1);
            self.pass = sample.pass;
            self.sockets.retain(|index, _| is_set(&sample.alive, *index));
            self.readers.retain(|slot, _| is_set(&sample.slots, *slot));
            for socket in sample.sockets {
                let known = self.sockets.get(&socket.index).filter(|known| known.cookie == socket.cookie);
                let before = known.map_or(0, |known| known.totals.received_bytes);
                *self.received.entry(socket.cookie).or_default() += socket.totals.received_bytes - before;
                self.sockets.insert(socket.index, socket);
            }
            self.readers.extend(sample.readers.into_iter().map(|reader| (reader.slot, reader)));
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Happens {
        Receives { bytes: u64 },
        IsDropped,
        Ends,
        ReaderRuns,
        ReaderExits,
        Pass { shows_all: bool },
        NobodyAsksForLong,
    }

    proptest! {
        /// Whatever happens between the passes, a client that asks after each of them or after some of them has
        /// everything that exists, and what its samples add up to does not depend on how often it asks.
        #[test]
        fn clients_with_any_intervals_see_every_change_and_agree(
            events in proptest::collection::vec(
                (0..3_u32, prop_oneof![
                    4 => (1..1000_u64).prop_map(|bytes| Happens::Receives { bytes }),
                    2 => Just(Happens::IsDropped),
                    1 => Just(Happens::Ends),
                    2 => Just(Happens::ReaderRuns),
                    1 => Just(Happens::ReaderExits),
                    4 => (0..8_u32).prop_map(|dice| Happens::Pass { shows_all: dice == 0 }),
                    1 => Just(Happens::NobodyAsksForLong),
                ]),
                0..100,
            ),
            intervals in [1..6_u64, 1..6_u64],
        ) {
            let (mut changes, mut clients) = (Changes::default(), <[Client; 2]>::default());
            let mut sockets: HashMap<u32, Arc<LiveSocket>> = HashMap::new();
            let mut readers: HashMap<u32, ReaderSlot> = HashMap::new();
            let (mut changed, mut drops) = (Vec::new(), Vec::new());
            let (mut next_cookie, mut is_forgotten) = (0, false);
            let cookies = |sockets: &HashMap<u32, Arc<LiveSocket>>| -> HashMap<u64, u32> {
                sockets.iter().map(|(index, open)| (open.cookie, *index)).collect()
            };
            for (index, happens) in events {
                match happens {
                    Happens::Receives { bytes } => {
                        let open = sockets.entry(index).or_insert_with(|| {
                            next_cookie += 1;
                            let mut new = socket(index);
                            Arc::make_mut(&mut new).cookie = next_cookie;
                            new
                        });
                        Arc::make_mut(open).totals.received_bytes += bytes;
                        changed.push(index);
                    }
                    Happens::IsDropped => {
                        if let Some(open) = sockets.get_mut(&index) {
                            Arc::make_mut(open).totals.drops += 1;
                            drops.push((open.cookie, 1));
                        }
                    }
                    Happens::Ends => drop(sockets.remove(&index)),
                    Happens::ReaderRuns => {
                        readers.entry(index).or_insert_with(ReaderSlot::new_zeroed).counters.on_cpu_ns += 1;
                    }
                    Happens::ReaderExits => drop(readers.remove(&index)),
                    Happens::NobodyAsksForLong => {
                        changes.forget();
                        is_forgotten = true;
                        let alive = cookies(&sockets);
                        changes.add_drops(drops.drain(..), |cookie| alive.get(&cookie).copied());
                    }
                    Happens::Pass { shows_all } => {
                        let shows_all = shows_all || std::mem::take(&mut is_forgotten);
                        let alive = cookies(&sockets);
                        changes.add_drops(drops.drain(..), |cookie| alive.get(&cookie).copied());
                        let mut listed: Vec<_> = sockets.values().cloned().collect();
                        listed.retain(|open| shows_all || changed.contains(&open.index));
                        // A record of the kernel has no drops.
                        listed.iter_mut().for_each(|open| Arc::make_mut(open).totals.drops = 0);
                        let slots: Vec<_> = readers.iter().map(|(slot, reader)| (*slot, *reader)).collect();
                        let is_alive = |index, cookie| sockets.get(&index).is_some_and(|open| open.cookie == cookie);
                        changes.record_pass(shows_all, listed, &slots, is_alive);
                        changed.clear();
                        for (client, interval) in clients.iter_mut().zip(intervals) {
                            if !changes.pass.is_multiple_of(interval) {
                                continue;
                            }
                            client.ask(&changes);
                            prop_assert_eq!(&client.sockets, &sockets);
                            let readers = slots.iter().map(|(slot, reader)| (*slot, LiveReader::new(*slot, reader)));
                            prop_assert_eq!(&client.readers, &readers.collect());
                            for open in sockets.values() {
                                prop_assert_eq!(client.received[&open.cookie], open.totals.received_bytes);
                            }
                        }
                    }
                }
            }
        }
    }
}
