//! Reads the totals that the programs have folded, and takes the records that they have sent.

use std::{
    io,
    mem::offset_of,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::atomic::{Ordering, fence},
};

use aya::maps::MapError;
use tcpmon_common::{
    connections::{CONNECTIONS_OPENED, CONNECTIONS_UNSENT},
    drops::DropKey,
    ignored::IGNORED_WHY,
    loss::Loss,
    memory_limit::KINDS,
    napi::{NAPI_SLOTS, NapiDevice},
    reader::ReaderSlot,
};

use super::{Kernel, ProgramStats, program_stats, skipped};
use crate::decode::{self, DecodeError, Event};

/// Reading from the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum KernelReadError {
    /// The program that looks at sockets did not run.
    #[error("the program that looks at sockets: {0}")]
    Look(io::Error),
    /// The kernel's statistics of a program could not be read.
    #[error("the statistics of a program: {0}")]
    Statistics(io::Error),
    /// A map could not be read or written.
    #[error("map {name}: {source}")]
    Map {
        /// Its name.
        name: &'static str,
        /// The error.
        source: MapError,
    },
    /// The ring held a record that this build does not produce.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// A reader slot in use.
pub type RawReader = (u32, ReaderSlot);

/// Everything that is not per socket.
#[derive(Clone, Debug, Default)]
pub struct Raw {
    /// Losses in the order of [`Loss::ALL`].
    pub lost: Vec<u64>,
    /// Copies of states that were given up because an event did not end: their totals come with the next pass.
    pub copies_given_up: u64,
    /// Devices, one entry per device and CPU; the name `None` stands for all devices that found no slot.
    pub napi: Vec<(Option<[u8; 16]>, NapiDevice)>,
    /// Requests for socket memory that a limit refused, in the order of [`KINDS`].
    pub memory_limit_exceeded: Vec<u64>,
    /// Ignored sockets, in the order of [`IGNORED_WHY`].
    pub ignored: Vec<u64>,
    /// What the kernel counts for each program, sorted by name.
    pub programs: Vec<(String, ProgramStats)>,
    /// Events lost because the program was already running on that CPU, by program.
    pub skipped: Vec<(String, u64)>,
}

impl Raw {
    /// How often `what` was lost.
    pub fn lost(&self, what: Loss) -> u64 {
        self.lost[what as usize]
    }

    /// Every kind of loss, zero or not. A connection whose start was seen late is not included, because nothing was
    /// lost.
    pub fn losses(&self) -> impl Iterator<Item = (String, u64)> {
        let counts = Loss::ALL.iter().zip(&self.lost).filter(|(what, _)| **what != Loss::SocketFoundLate);
        let counted = counts.map(|(what, count)| (what.name().to_owned(), *count));
        counted
            .chain([("socket_copy".to_owned(), self.copies_given_up)])
            .chain(self.skipped.iter().map(|(name, count)| (format!("recursion_{name}"), *count)))
    }
}

impl Kernel {
    /// Connections that the programs have seen start to open, whether or not that succeeded.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn opened(&self) -> Result<u64, KernelReadError> {
        let count = |what| match self.connections.get(&what, 0) {
            Ok(per_cpu) => Ok(per_cpu.iter().sum::<u64>()),
            Err(source) => Err(KernelReadError::Map { name: "CONNECTIONS", source }),
        };
        // In this order: a connection without sent data was counted as opened before it was counted as unsent.
        let unsent = count(CONNECTIONS_UNSENT)?;
        Ok(count(CONNECTIONS_OPENED)?.saturating_sub(unsent))
    }

    /// The ring's file descriptor, to wait on: the programs wake the waiter whenever another quarter of the ring is
    /// full.
    ///
    /// # Errors
    /// If no file descriptors are left.
    pub fn ring(&self) -> io::Result<OwnedFd> {
        self.ring.as_fd().try_clone_to_owned()
    }

    /// Takes records from the ring until it is empty or `limit` records have been taken; returns their number. The
    /// limit ensures that this returns even if producers are faster than it.
    ///
    /// # Errors
    /// If a record cannot be decoded.
    pub fn drain(&mut self, limit: usize, mut each: impl FnMut(Event)) -> Result<usize, KernelReadError> {
        let mut taken = 0;
        while taken < limit {
            let Some(item) = self.ring.next() else { break };
            let event = decode::event(&item)?;
            drop(item);
            each(event);
            taken += 1;
        }
        Ok(taken)
    }

    /// Reads everything that is not per socket.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn raw(&mut self) -> Result<Raw, KernelReadError> {
        let map = |name| move |source| KernelReadError::Map { name, source };
        let mut raw = Raw::default();
        for what in Loss::ALL {
            raw.lost.push(self.lost(what)?);
        }
        raw.copies_given_up = self.copies_given_up;
        for index in 0..=NAPI_SLOTS {
            for device in self.napi.get(&index, 0).map_err(map("NAPI"))?.iter() {
                if device.polls > 0 {
                    let name = (index < NAPI_SLOTS).then(|| zerocopy::transmute!(device.name));
                    raw.napi.push((name, *device));
                }
            }
        }
        for kind in 0..KINDS.len() as u32 {
            raw.memory_limit_exceeded
                .push(self.memory_limits.get(&kind, 0).map_err(map("MEMORY_LIMITS"))?.iter().sum());
        }
        for why in 0..IGNORED_WHY.len() as u32 {
            raw.ignored.push(self.ignored.get(&why, 0).map_err(map("IGNORED"))?.iter().sum());
        }
        for (name, program) in self.ebpf.programs() {
            // Programs that this mode does not use are not loaded and have no descriptor.
            if let Ok(fd) = program.fd() {
                let stats = program_stats(fd.as_fd().as_raw_fd()).map_err(KernelReadError::Statistics)?;
                raw.programs.push((name.to_owned(), stats));
            }
        }
        raw.programs.sort_by(|a, b| a.0.cmp(&b.0));
        raw.skipped = skipped(&raw.programs, self.both_preemptible);
        Ok(raw)
    }

    /// How often `what` was lost.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn lost(&self, what: Loss) -> Result<u64, KernelReadError> {
        let counts = self.lost.get(&(what as u32), 0);
        Ok(counts.map_err(|source| KernelReadError::Map { name: "LOST", source })?.iter().sum())
    }

    /// Drops since the last call that succeeded; the caller must count them, because no later call returns them again.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn drops(&mut self) -> Result<Vec<(DropKey, u64)>, KernelReadError> {
        self.drops.read().map_err(|source| KernelReadError::Map { name: "DROPS", source })
    }

    /// Number of pairs of socket and reason in the map of drops.
    pub fn drop_entries(&self) -> usize {
        self.drops.len()
    }

    /// One reader slot, as it is now; `None` if it is free.
    pub fn reader(&self, slot: u32) -> Option<ReaderSlot> {
        // The flags are read first: a free slot costs only one load, and what a thread wrote before it exited is seen
        // together with the flag that says so.
        let flags = self.slots.peek::<u32>(slot as usize, offset_of!(ReaderSlot, flags)).filter(|flags| *flags != 0)?;
        fence(Ordering::Acquire);
        Some(ReaderSlot { flags, ..self.slots.get(slot as usize)? })
    }

    /// The reader slots in use now, with their numbers.
    pub fn readers(&self) -> Vec<RawReader> {
        (0..self.slots.len() as u32).filter_map(|slot| Some((slot, self.reader(slot)?))).collect()
    }

    /// Clears the slot of a reader that has exited, and frees it.
    ///
    /// # Errors
    /// If a map cannot be written.
    pub fn free_reader(&mut self, slot: u32) -> Result<(), KernelReadError> {
        let empty = <ReaderSlot as zerocopy::FromZeros>::new_zeroed();
        self.readers.set(slot, empty, 0).map_err(|source| KernelReadError::Map { name: "READERS", source })?;
        self.free_slots.push(slot, 0).map_err(|source| KernelReadError::Map { name: "FREE_SLOTS", source })
    }
}
