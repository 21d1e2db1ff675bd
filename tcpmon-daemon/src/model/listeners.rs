//! Who listens: the process names of connections that nobody has read yet, and which connections were accepted.

use std::collections::HashMap;

/// Network namespace (its inode number) and port.
pub type Place = (u32, u16);

/// A pass can miss a socket while others begin and end; after so many, it was shown or is gone.
const ANNOUNCED: u8 = 8;

/// Listening sockets by place.
#[derive(Debug, Default)]
pub struct Listeners {
    /// Of those that snapshots have shown: the process that called `listen` last, and how many sockets listen there.
    shown: HashMap<Place, (String, u32)>,
    /// Told as it happened, until passes have shown it: the process, and how many passes have begun since.
    announced: HashMap<Place, (String, u8)>,
}

impl Listeners {
    /// Somebody begins to listen.
    pub fn announce(&mut self, place: Place, process: String) {
        self.announced.insert(place, (process, 0));
    }

    /// A listening socket is shown.
    pub fn insert(&mut self, place: Place, process: String) {
        let sockets = self.shown.remove(&place).map_or(0, |(_, sockets)| sockets);
        self.shown.insert(place, (process, sockets + 1));
    }

    /// A listening socket that was shown is gone.
    pub fn remove(&mut self, place: Place) {
        if let Some((_, sockets)) = self.shown.get_mut(&place) {
            *sockets -= 1;
            if *sockets == 0 {
                self.shown.remove(&place);
            }
        }
    }

    /// A pass begins.
    pub fn begin(&mut self) {
        for (_, passes) in self.announced.values_mut() {
            *passes += 1;
        }
    }

    /// A pass ends.
    pub fn end(&mut self) {
        self.announced.retain(|_, (_, passes)| *passes < ANNOUNCED);
    }

    /// The process that listens there.
    pub fn get(&self, place: Place) -> Option<&str> {
        let announced = self.announced.get(&place).map(|(process, _)| process);
        announced.or_else(|| self.shown.get(&place).map(|(process, _)| process)).map(String::as_str)
    }

    /// Whether anybody listens there.
    pub fn contains(&self, place: Place) -> bool {
        self.get(place).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_taken_while_one_of_its_sockets_listens() {
        let mut listeners = Listeners::default();
        listeners.insert((1, 80), "a".into());
        listeners.insert((1, 80), "b".into());
        listeners.remove((1, 80));
        assert_eq!(listeners.get((1, 80)), Some("b"));
        listeners.remove((1, 80));
        assert_eq!(listeners.get((1, 80)), None);
    }

    #[test]
    fn what_was_announced_stays_until_some_passes_have_gone_by() {
        let mut listeners = Listeners::default();
        listeners.begin();
        listeners.announce((1, 80), "a".into());
        listeners.end();
        for _ in 0..ANNOUNCED {
            assert_eq!(listeners.get((1, 80)), Some("a"));
            listeners.begin();
            listeners.end();
        }
        assert_eq!(listeners.get((1, 80)), None);
    }
}
