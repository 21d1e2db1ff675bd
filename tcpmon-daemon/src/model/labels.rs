//! The labels of sockets and readers: process, service and control group.

use std::hash::{BuildHasher as _, RandomState};

use tcpmon_common::{
    reader::ReaderSlot,
    socket::{LIVE_PORT_CHOSEN, SOCKET_SERVICE, SocketRecord, SocketState},
};
use zerocopy::IntoBytes as _;

use super::{
    cgroups::{CgroupOf, Cgroups, Process},
    listeners::{Listener, Listeners},
    service::{self, Endpoints},
    snapshot::GroupKey,
};
use crate::decode;

/// What the labels are made from, besides the socket or reader itself.
pub(super) struct Labels {
    pub(super) listeners: Listeners,
    /// `None` if the label `cgroup` is off.
    cgroups: Option<Cgroups>,
    hasher: RandomState,
}

impl Labels {
    /// `cgroup_of` looks up the path of a control group; `None` turns that label off.
    pub(super) fn new(cgroup_of: Option<CgroupOf>) -> Self {
        Self { listeners: Listeners::default(), cgroups: cgroup_of.map(Cgroups::new), hasher: RandomState::new() }
    }

    /// The labels of a connection.
    pub(super) fn of_socket(&mut self, record: &SocketRecord) -> GroupKey {
        let identity = &record.state.identity;
        let mut process = process(&record.state);
        if process.name.is_empty() {
            // Nobody has read yet: the connection belongs to the process that listens there.
            let address = decode::address(identity.family, identity.local_address);
            if let Some(listener) = self.listeners.accepting((identity.netns, identity.local_port), address) {
                process = listener.process.clone();
            }
        }
        if process.name.is_empty() {
            process.name.push_str("other");
        }
        let endpoints = Endpoints {
            flags: record.state.flags,
            netns: identity.netns,
            local_port: identity.local_port,
            remote_port: identity.remote_port,
        };
        self.key(process, endpoints)
    }

    /// The labels of a reader's slot.
    pub(super) fn of_reader(&mut self, reader: &ReaderSlot) -> GroupKey {
        let endpoints = Endpoints {
            flags: reader.socket_flags,
            netns: reader.netns,
            local_port: reader.local_port,
            remote_port: reader.remote_port,
        };
        let name = name(reader.process.as_bytes(), reader.tgid);
        self.key(Process { tgid: reader.tgid, cgroup: reader.cgroup, name }, endpoints)
    }

    fn key(&mut self, process: Process, endpoints: Endpoints) -> GroupKey {
        let name = process.name.clone();
        let cgroup = self.cgroups.as_mut().map(|cgroups| cgroups.of(process));
        GroupKey { process: name, service: service::service(endpoints, &self.listeners), cgroup }
    }

    /// A hash of what determines the labels of a connection, as the kernel has it: while the hash stays the same, so do
    /// the labels.
    pub(super) fn hash_of_socket(&self, state: &SocketState) -> u64 {
        self.hasher.hash_one((state.process, state.flags & SOCKET_SERVICE, state.reader_tgid, state.cgroup))
    }

    /// A hash of what determines the labels of a reader's slot.
    pub(super) fn hash_of_reader(&self, reader: &ReaderSlot) -> u64 {
        let ports = (reader.netns, reader.local_port, reader.remote_port);
        self.hasher.hash_one((reader.process, reader.socket_flags & SOCKET_SERVICE, ports, reader.tgid, reader.cgroup))
    }

    /// Ends a pass.
    pub(super) fn end_pass(&mut self) {
        if let Some(cgroups) = &mut self.cgroups {
            cgroups.end_pass();
        }
    }
}

/// The process to which a socket belongs.
fn process(state: &SocketState) -> Process {
    let name = name(state.process.as_bytes(), state.reader_tgid);
    Process { tgid: state.reader_tgid, cgroup: state.cgroup, name }
}

/// The label of a process, empty if there is none (process id 0). A process may have taken its name off (`prctl`).
fn name(bytes: &[u8], tgid: u32) -> String {
    let name = decode::name(bytes);
    if name.is_empty() && tgid != 0 { "unnamed".to_owned() } else { name }
}

/// A listening socket, as its record shows it.
pub(super) fn listener(record: &SocketRecord) -> Listener {
    Listener { process: process(&record.state), port_chosen: record.live.flags & LIVE_PORT_CHOSEN != 0 }
}
