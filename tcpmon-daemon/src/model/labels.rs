//! The labels of sockets and readers: process, service and control group.

use std::hash::{BuildHasher as _, RandomState};

use tcpmon_common::{
    reader::ReaderSlot,
    socket::{LIVE_PORT_CHOSEN, SOCKET_SERVICE, SocketRecord, SocketState},
};
use zerocopy::IntoBytes as _;

use super::{
    cgroups::{CgroupOf, Cgroups},
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
    /// `cgroup_of` looks up the control group of a thread group; `None` turns that label off.
    pub(super) fn new(cgroup_of: Option<CgroupOf>) -> Self {
        Self { listeners: Listeners::default(), cgroups: cgroup_of.map(Cgroups::new), hasher: RandomState::new() }
    }

    /// The labels of a connection.
    pub(super) fn of_socket(&mut self, record: &SocketRecord) -> GroupKey {
        let live = &record.live;
        let mut process = decode::name(record.state.process.as_bytes());
        if process.is_empty() {
            // Nobody has read yet: the connection belongs to the process that listens there.
            if let Some(listener) = self.listeners.get((live.netns, live.local_port)) {
                process.push_str(&listener.process);
            }
        }
        if process.is_empty() {
            process.push_str("other");
        }
        let endpoints = Endpoints {
            flags: record.state.flags,
            netns: live.netns,
            local_port: live.local_port,
            remote_port: live.remote_port,
        };
        self.key(process, endpoints, record.state.reader_tgid)
    }

    /// The labels of a reader's slot.
    pub(super) fn of_reader(&mut self, reader: &ReaderSlot) -> GroupKey {
        let endpoints = Endpoints {
            flags: reader.socket_flags,
            netns: reader.netns,
            local_port: reader.local_port,
            remote_port: reader.remote_port,
        };
        self.key(decode::name(reader.process.as_bytes()), endpoints, reader.tgid)
    }

    fn key(&mut self, process: String, endpoints: Endpoints, tgid: u32) -> GroupKey {
        let cgroup = self.cgroups.as_mut().map(|cgroups| cgroups.label(tgid, &process));
        GroupKey { process, service: service::service(endpoints, &self.listeners), cgroup }
    }

    /// A hash of what determines the labels of a connection, as the kernel has it: while the hash stays the same, so do
    /// the labels.
    pub(super) fn hash_of_socket(&self, state: &SocketState) -> u64 {
        self.hasher.hash_one((state.process, state.flags & SOCKET_SERVICE, state.reader_tgid))
    }

    /// A hash of what determines the labels of a reader's slot.
    pub(super) fn hash_of_reader(&self, reader: &ReaderSlot) -> u64 {
        let ports = (reader.netns, reader.local_port, reader.remote_port);
        self.hasher.hash_one((reader.process, reader.socket_flags & SOCKET_SERVICE, ports, reader.tgid))
    }

    /// Ends a pass.
    pub(super) fn end_pass(&mut self) {
        if let Some(cgroups) = &mut self.cgroups {
            cgroups.end_pass();
        }
    }
}

/// A listening socket, as its record shows it.
pub(super) fn listener(record: &SocketRecord) -> Listener {
    Listener {
        process: decode::name(record.state.process.as_bytes()),
        port_chosen: record.live.flags & LIVE_PORT_CHOSEN != 0,
    }
}
