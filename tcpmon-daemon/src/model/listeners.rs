//! Listening sockets: they name the process of connections that nobody has read yet, and show which connections were
//! accepted.

use std::collections::HashMap;

use super::cgroups::Process;

/// Network namespace (its inode number) and port.
pub type Place = (u32, u16);

/// Listening sockets by network namespace and port.
#[derive(Debug, Default)]
pub struct Listeners {
    /// The one that was shown last, and how many sockets listen there.
    shown: HashMap<Place, (Listener, u32)>,
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
    /// A socket listens.
    pub fn insert(&mut self, place: Place, listener: Listener) {
        let sockets = self.shown.remove(&place).map_or(0, |(_, sockets)| sockets);
        self.shown.insert(place, (listener, sockets + 1));
    }

    /// It does so no more.
    pub fn remove(&mut self, place: Place) {
        if let Some((_, sockets)) = self.shown.get_mut(&place) {
            *sockets -= 1;
            if *sockets == 0 {
                self.shown.remove(&place);
            }
        }
    }

    /// The listening socket at this place.
    pub fn get(&self, place: Place) -> Option<&Listener> {
        self.shown.get(&place).map(|(listener, _)| listener)
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
}
