//! A pass of the snapshot over all sockets, one system call at a time: see [`tcpmon_common::pass`].

use std::{
    fs::File,
    io::{self, Read as _},
};

use tcpmon_common::{
    pass::{PassControl, RECORDS, SHOW_ALL, SHOW_CHANGED, SHOW_LISTENERS},
    socket::{SOCKET_INDEXES, SocketRecord},
};

use super::{Kernel, KernelReadError, mapped::Mapped};

/// Which sockets a pass shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Sockets that have changed since they were last shown, or are not at rest.
    Changed = SHOW_CHANGED as isize,
    /// All sockets.
    All = SHOW_ALL as isize,
    /// Listening sockets that have not been shown yet.
    Listeners = SHOW_LISTENERS as isize,
}

/// The arrays that the iterator and user space share.
#[derive(Debug)]
pub(super) struct PassMaps {
    pub(super) control: Mapped<PassControl>,
    pub(super) records: Mapped<SocketRecord>,
    pub(super) visited: Mapped<u64>,
    pub(super) lost_finals: Mapped<[u8; 8]>,
    /// Indexes that no socket has; the last one is given out first.
    free: Vec<u32>,
    /// Indexes from this one on have never been given out.
    fresh: u32,
}

impl PassMaps {
    pub(super) fn new(
        control: Mapped<PassControl>,
        records: Mapped<SocketRecord>,
        visited: Mapped<u64>,
        lost_finals: Mapped<[u8; 8]>,
    ) -> Self {
        Self { control, records, visited, lost_finals, free: Vec::new(), fresh: 0 }
    }

    /// Prepares the next system call.
    fn prepare(&mut self, show: Show) {
        let wanted = (RECORDS as usize).saturating_sub(self.free.len()) as u32;
        let fresh = self.fresh..(self.fresh + wanted).min(SOCKET_INDEXES);
        self.fresh = fresh.end;
        self.free.splice(0..0, fresh.rev());
        let mut control = PassControl {
            show: show as u32,
            free_count: self.free.len().min(RECORDS as usize) as u32,
            ..PassControl::ZERO
        };
        for (place, index) in control.free.iter_mut().zip(self.free.iter().rev()) {
            *place = *index;
        }
        self.control.set(0, control);
    }

    /// Reads the results of the system call.
    fn made(&mut self, pass: &mut Pass) {
        let control = self.control.get(0).unwrap_or(PassControl::ZERO);
        self.free.truncate(self.free.len().saturating_sub(control.taken as usize));
        pass.records = (control.records as usize).min(self.records.len());
        pass.living += u64::from(control.living);
    }
}

/// A pass in progress.
#[derive(Debug)]
pub struct Pass {
    /// The walk over the map that the pass has reached.
    file: File,
    /// Number of maps that the pass has started on.
    maps: usize,
    show: Show,
    records: usize,
    living: u64,
}

impl Pass {
    /// Connections that the pass has visited so far and that have not ended.
    pub fn living(&self) -> u64 {
        self.living
    }
}

impl Kernel {
    /// Starts a pass over all watched sockets, without stopping any of them.
    ///
    /// # Errors
    /// If the iterator cannot be opened.
    pub fn begin(&mut self, show: Show) -> Result<Pass, KernelReadError> {
        for word in 0..self.shared.fresh.div_ceil(64) as usize {
            self.shared.visited.set(word, 0);
        }
        Ok(Pass { file: self.snapshot[0].open()?, maps: 1, show, records: 0, living: 0 })
    }

    /// Visits the next sockets, for a few milliseconds at most; false if there are no more. The results are in
    /// [`Kernel::records`] until the next call.
    ///
    /// # Errors
    /// If the iterator cannot be read. What this pass would have shown is then lost, and the next pass must show all
    /// sockets.
    pub fn advance(&mut self, pass: &mut Pass) -> Result<bool, KernelReadError> {
        self.shared.prepare(pass.show);
        let more = loop {
            // The iterator writes nothing: a read either reaches its end, or the program ends the system call.
            match pass.file.read(&mut [0; 8]) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break true,
                Err(error) => return Err(error.into()),
            }
            let Some(next) = self.snapshot.get(pass.maps) else { break false };
            pass.file = next.open()?;
            pass.maps += 1;
        };
        self.shared.made(pass);
        Ok(more)
    }

    /// The records that the last [`Kernel::advance`] made.
    pub fn records(&self, pass: &Pass) -> impl Iterator<Item = SocketRecord> + '_ {
        (0..pass.records).filter_map(|number| self.shared.records.get(number))
    }

    /// The indexes of the sockets that the pass has visited, as bits.
    pub fn visited(&self) -> Vec<u64> {
        (0..self.shared.fresh.div_ceil(64) as usize).filter_map(|word| self.shared.visited.get(word)).collect()
    }

    /// Returns an index that no socket has any more.
    pub fn free_index(&mut self, index: u32) {
        self.shared.free.push(index);
    }

    /// Takes the indexes of sockets whose final record was lost. Call this after reading the sums of these sockets:
    /// each socket in the sums is then marked here.
    pub fn lost_finals(&mut self) -> Vec<u32> {
        let mut lost_finals = Vec::new();
        for word in 0..self.shared.fresh.div_ceil(8) {
            let marks = self.shared.lost_finals.take(word as usize);
            lost_finals.extend((0..8).filter(|byte| marks[*byte as usize] != 0).map(|byte| 8 * word + byte));
        }
        lost_finals
    }
}
