//! BPF iterators over a map, which aya's `Iter::attach` cannot create: it passes no `bpf_iter_link_info`.
#![expect(unsafe_code, reason = "two bpf(2) calls that no crate wraps")]

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use super::bpf::{BPF_ITER_CREATE, BPF_LINK_CREATE, bpf};

/// Of `enum bpf_attach_type`.
const BPF_TRACE_ITER: u32 = 28;

/// The part of `union bpf_attr` that `BPF_LINK_CREATE` reads for an iterator.
#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    iter_info: u64,
    iter_info_len: u32,
    padding: u32,
}

/// The member `map` of `union bpf_iter_link_info`.
#[repr(C)]
struct IterInfo {
    map_fd: u32,
    padding: [u32; 3],
}

/// The part of `union bpf_attr` that `BPF_ITER_CREATE` reads.
#[repr(C)]
struct IterCreate {
    link_fd: u32,
    flags: u32,
}

/// A program attached as an iterator, over a map or not. It runs only when the file from [`BpfIterator::open`] is read.
#[derive(Debug)]
pub struct BpfIterator {
    link: OwnedFd,
}

impl BpfIterator {
    /// Attaches a loaded iterator program.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn attach(program: BorrowedFd<'_>, map: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let info = IterInfo { map_fd: map.map_or(0, |map| map.as_raw_fd() as u32), padding: [0; 3] };
        let attributes = LinkCreate {
            prog_fd: program.as_raw_fd() as u32,
            target_fd: 0,
            attach_type: BPF_TRACE_ITER,
            flags: 0,
            iter_info: if map.is_some() { (&raw const info) as u64 } else { 0 },
            iter_info_len: if map.is_some() { size_of::<IterInfo>() as u32 } else { 0 },
            padding: 0,
        };
        Ok(Self { link: open(BPF_LINK_CREATE, &attributes)? })
    }

    /// Starts a pass: reading the file to its end runs the program for every element.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn open(&self) -> io::Result<File> {
        let attributes = IterCreate { link_fd: self.link.as_raw_fd() as u32, flags: 0 };
        Ok(open(BPF_ITER_CREATE, &attributes)?.into())
    }

    /// Runs a whole pass of a program that prints nothing.
    ///
    /// # Errors
    /// The error of bpf(2) or read(2).
    pub fn run_to_end(&self) -> io::Result<()> {
        io::copy(&mut self.open()?, &mut io::sink()).map(drop)
    }
}

/// Runs a command that returns a new file descriptor.
fn open<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the attributes are what the command reads, and what they point to is alive in the caller's frame.
    let fd = unsafe { bpf(command, attributes)? };
    // SAFETY: the kernel has just created this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
