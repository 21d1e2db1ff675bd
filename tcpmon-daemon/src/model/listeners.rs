//! Listening sockets: they name the process of connections that nobody has read yet, and show which connections were
//! accepted.

use std::collections::HashMap;

use super::cgroups::Process;

/// Network namespace (its inode number) and port.
pub type Place = (u32, u16);

/// A pass can miss a socket while other sockets start and end. After this many passes, it has been shown or is gone.
const ANNOUNCED: u8 = 8;

/// Listening sockets by network namespace and port.
#[derive(Debug, Default)]
pub struct Listeners {
    /// Those that snapshots have shown: the one that was shown last, and how many sockets listen there.
    shown: HashMap<Place, (Listener, u32)>,
    /// Those that were reported when they started to listen, until passes have shown them: the socket, and how many
    /// passes have started since.
    announced: HashMap<Place, (Listener, u8)>,
}

/// A listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The process that called `listen`.
    pub process: Process,
    /// Whether the kernel chose the port.
    pub port_chosen: bool,
}

impl Listeners {
    /// A socket has started to listen.
    pub fn announce(&mut self, place: Place, listener: Listener) {
        self.announced.insert(place, (listener, 0));
    }

    /// A pass shows a listening socket.
    pub fn insert(&mut self, place: Place, listener: Listener) {
        let sockets = self.shown.remove(&place).map_or(0, |(_, sockets)| sockets);
        self.shown.insert(place, (listener, sockets + 1));
    }

    /// A listening socket that a pass has shown is gone.
    pub fn remove(&mut self, place: Place) {
        if let Some((_, sockets)) = self.shown.get_mut(&place) {
            *sockets -= 1;
            if *sockets == 0 {
                self.shown.remove(&place);
            }
        }
    }

    /// A pass starts.
    pub fn begin(&mut self) {
        for (_, passes) in self.announced.values_mut() {
            *passes += 1;
        }
    }

    /// A pass ends.
    pub fn end(&mut self) {
        self.announced.retain(|_, (_, passes)| *passes < ANNOUNCED);
    }

    /// The listening socket at this place.
    pub fn get(&self, place: Place) -> Option<&Listener> {
        let announced = self.announced.get(&place).map(|(listener, _)| listener);
        announced.or_else(|| self.shown.get(&place).map(|(listener, _)| listener))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(process: &str) -> Listener {
        Listener { process: Process { tgid: 1, cgroup: 1, name: process.into() }, port_chosen: false }
    }

    #[test]
    fn a_place_is_taken_while_one_of_its_sockets_listens() {
        let mut listeners = Listeners::default();
        listeners.insert((1, 80), named("a"));
        listeners.insert((1, 80), named("b"));
        listeners.remove((1, 80));
        assert_eq!(listeners.get((1, 80)), Some(&named("b")));
        listeners.remove((1, 80));
        assert_eq!(listeners.get((1, 80)), None);
    }

    #[test]
    fn what_was_announced_stays_until_some_passes_have_gone_by() {
        let mut listeners = Listeners::default();
        listeners.begin();
        listeners.announce((1, 80), named("a"));
        listeners.end();
        for _ in 0..ANNOUNCED {
            assert_eq!(listeners.get((1, 80)), Some(&named("a")));
            listeners.begin();
            listeners.end();
        }
        assert_eq!(listeners.get((1, 80)), None);
    }
}
