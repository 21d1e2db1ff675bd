//! BPF iterators over a map, which aya's `Iter::attach` cannot make: it passes no `bpf_iter_link_info`.
#![expect(unsafe_code, reason = "two bpf(2) calls that no crate wraps")]

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// `BPF_LINK_CREATE` and `BPF_ITER_CREATE` of `enum bpf_cmd`, `BPF_TRACE_ITER` of `enum bpf_attach_type`.
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_ITER_CREATE: libc::c_long = 33;
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

/// `union bpf_iter_link_info`, its member `map`.
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

/// A program attached as an iterator, over a map or not. It runs once per [`Iterator::open`], not by itself.
#[derive(Debug)]
pub struct Iterator {
    link: OwnedFd,
}

impl Iterator {
    /// Attaches a loaded iterator program.
    ///
    /// # Errors
    /// What bpf(2) says.
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
        Ok(Self { link: bpf(BPF_LINK_CREATE, &attributes)? })
    }

    /// Begins a pass: reading the file to its end runs the program for every element.
    ///
    /// # Errors
    /// What bpf(2) says.
    pub fn open(&self) -> io::Result<File> {
        let attributes = IterCreate { link_fd: self.link.as_raw_fd() as u32, flags: 0 };
        Ok(bpf(BPF_ITER_CREATE, &attributes)?.into())
    }
}

/// A bpf(2) call that returns a new file descriptor.
fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: `attributes` is a prefix of `union bpf_attr` as long as said, and what it points to lives in the
    // caller's frame during the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attributes as *const T, size_of::<T>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
