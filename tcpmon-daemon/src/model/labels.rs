//! The labels of sockets and readers: process, service and control group.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
};

use tcpmon_common::{
    owner::Owner,
    reader::ReaderSlot,
    socket::{SOCKET_PORT_CHOSEN, SOCKET_SERVICE, SocketRecord, SocketState},
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
    /// By socket cookie: the processes that have the socket open, for listening sockets and sockets with unread data.
    /// In the order of process ids: a socket is mostly passed on to a younger process, so the last one is taken for its
    /// owner.
    owners: HashMap<u64, Vec<Arc<Process>>>,
    /// When the owners were looked up; `CLOCK_MONOTONIC`, ns.
    owners_at_ns: u64,
    /// `None` if the label `cgroup` is off.
    cgroups: Option<Cgroups>,
    hasher: RandomState,
}

impl Labels {
    /// `cgroup_of` looks up the path of a control group; `None` turns that label off.
    pub(super) fn new(cgroup_of: Option<CgroupOf>) -> Self {
        Self {
            listeners: Listeners::default(),
            owners: HashMap::new(),
            owners_at_ns: 0,
            cgroups: cgroup_of.map(Cgroups::new),
            hasher: RandomState::new(),
        }
    }

    /// Replaces the owners of listening sockets and of sockets with unread data, as they were at this time.
    pub(super) fn set_owners(&mut self, records: &[Owner], at_ns: u64) {
        self.owners_at_ns = at_ns;
        let mut owners: HashMap<u64, Vec<Arc<Process>>> = HashMap::with_capacity(self.owners.len());
        let mut last = Arc::new(Process { tgid: 0, cgroup: 0, name: String::new() });
        for record in records {
            let process = Process {
                tgid: record.tgid,
                cgroup: record.cgroup,
                name: name(record.process.as_bytes(), record.tgid),
            };
            // The records come process by process.
            if *last != process {
                last = Arc::new(process);
            }
            owners.entry(record.cookie).or_default().push(Arc::clone(&last));
        }
        if owners == self.owners {
            return;
        }
        self.listeners.for_each(|cookie, listener| {
            if let Some(owner) = owners.get(&cookie).and_then(|owners| owners.last()) {
                listener.process = Process::clone(owner);
            }
        });
        self.owners = owners;
    }

    /// A listening socket, as its record shows it.
    pub(super) fn listener(&self, record: &SocketRecord) -> Listener {
        let owner = self.owner(&record.state);
        let process = owner.map_or_else(|| process(&record.state), Process::clone);
        Listener { process, port_chosen: record.state.flags & SOCKET_PORT_CHOSEN != 0 }
    }

    /// The process that a connection belongs to; without a name if it is not known.
    fn process(&self, state: &SocketState) -> Process {
        // The last reader; before the first read, the process that opened the connection or had it open when tcpmon
        // started.
        let known = process(state);
        if let Some(owner) = self.owner(state) {
            return owner.clone();
        }
        if state.reader_tid != 0 {
            return known;
        }
        if !known.name.is_empty() {
            return known;
        }
        let identity = &state.identity;
        let listener = self.listeners.by_cookie(state.listener).or_else(|| {
            let address = decode::address(identity.family, identity.local_address);
            self.listeners.accepting((identity.netns, identity.service_port), address)
        });
        listener.map_or(known, |listener| listener.process.clone())
    }

    /// The process that has a socket open, if the owners were looked up and the last reader is not one of them any
    /// more: it may have passed the socket on.
    fn owner(&self, state: &SocketState) -> Option<&Process> {
        let owners = self.owners.get(&state.cookie)?;
        if state.reader_tid != 0 {
            let read_since = state.reads.queued_since_ns >= self.owners_at_ns;
            if read_since || owners.iter().any(|owner| owner.tgid == state.reader_tgid) {
                return None;
            }
        }
        owners.last().map(|owner| &**owner)
    }

    /// The id of the process that a connection belongs to; 0 if it is not known.
    pub(super) fn tgid_of(&self, state: &SocketState) -> u32 {
        self.process(state).tgid
    }

    /// The labels of a connection.
    pub(super) fn of_socket(&mut self, record: &SocketRecord) -> GroupKey {
        let identity = &record.state.identity;
        let mut process = self.process(&record.state);
        if process.name.is_empty() {
            process.name.push_str("other");
        }
        let endpoints = Endpoints {
            flags: record.state.flags,
            listener_known: record.state.listener != 0,
            netns: identity.netns,
            local_port: identity.service_port,
            local_address: Some(decode::address(identity.family, identity.local_address)),
            remote_port: identity.remote_port,
        };
        self.key(process, endpoints)
    }

    /// The labels of a reader's slot.
    pub(super) fn of_reader(&mut self, reader: &ReaderSlot) -> GroupKey {
        let endpoints = Endpoints {
            flags: reader.socket_flags,
            // The slot does not say: it is one for all connections of the service.
            listener_known: false,
            netns: reader.netns,
            local_port: reader.local_port,
            local_address: None,
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
        // The owner is not in the state.
        let owner = if state.reader_tid == 0 { Some(self.process(state)) } else { self.owner(state).cloned() };
        self.hasher.hash_one((state.process, state.flags & SOCKET_SERVICE, state.reader_tgid, state.cgroup, owner))
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

/// The process that a socket belongs to, according to its state.
fn process(state: &SocketState) -> Process {
    let name = name(state.process.as_bytes(), state.reader_tgid);
    Process { tgid: state.reader_tgid, cgroup: state.cgroup, name }
}

/// The label of a process; empty if there is none (process id 0). A process may have cleared its name (`prctl`).
fn name(bytes: &[u8], tgid: u32) -> String {
    let name = decode::name(bytes);
    if name.is_empty() && tgid != 0 { "unnamed".to_owned() } else { name }
}
