//! Looks up which processes have open the sockets that nobody has read yet.
#![expect(unsafe_code, reason = "bpf(2) calls that no crate wraps")]

use std::{
    error::Error,
    fs::File,
    io,
    os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
};

use aya::{Btf as KernelTypes, Ebpf, programs::Iter};
use tcpmon_common::owner::Owner;

use super::{
    Kernel,
    bpf::{BPF_ITER_CREATE, BPF_LINK_CREATE, bpf},
    iterator,
};

/// `BPF_TRACE_ITER` of `enum bpf_attach_type`.
const TRACE_ITER: u32 = 28;

/// The part of `union bpf_attr` that `BPF_LINK_CREATE` reads for an iterator without parameters.
#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    iter_info: u64,
    iter_info_len: u32,
    padding: u32,
}

/// The part that `BPF_ITER_CREATE` reads.
#[repr(C)]
#[derive(Default)]
struct IterCreate {
    link_fd: u32,
    flags: u32,
}

/// The iterator over open files. A file made from it can be read once; a link makes any number of files.
pub(super) struct Owners {
    link: OwnedFd,
}

impl Owners {
    /// Loads the iterator.
    ///
    /// # Errors
    /// Why the kernel does not let it run.
    pub(super) fn load(ebpf: &mut Ebpf, types: &KernelTypes) -> Result<Self, Box<dyn Error>> {
        let program = ebpf.program_mut("owners").expect("the object of this build has this iterator");
        let program: &mut Iter = program.try_into()?;
        program.load("task_file", types)?;
        let prog_fd = program.fd()?.as_fd().as_raw_fd() as u32;
        let mut link = LinkCreate { prog_fd, attach_type: TRACE_ITER, ..LinkCreate::default() };
        // SAFETY: these are the attributes of the command.
        let owners = Self { link: descriptor(unsafe { bpf(BPF_LINK_CREATE, &mut link)? }) };
        owners.open()?;
        Ok(owners)
    }

    /// A file that visits all open files while it is read.
    fn open(&self) -> io::Result<File> {
        let mut iterator = IterCreate { link_fd: self.link.as_raw_fd() as u32, flags: 0 };
        // SAFETY: these are the attributes of the command.
        Ok(descriptor(unsafe { bpf(BPF_ITER_CREATE, &mut iterator)? }).into())
    }

    /// Visits all open files.
    ///
    /// # Errors
    /// The error of bpf(2) or of the read.
    fn read(&self) -> io::Result<Vec<Owner>> {
        Ok(iterator::records(&iterator::read(self.open()?)?))
    }
}

impl Kernel {
    /// The processes that have open a listening socket, or a connection with data that nobody has read; `None` where
    /// the kernel does not tell. Takes as long as it takes to visit all open files of all processes.
    ///
    /// # Errors
    /// The error of bpf(2) or of the read.
    pub fn owners(&self) -> io::Result<Option<Vec<Owner>>> {
        self.owners.as_ref().map(Owners::read).transpose()
    }
}

/// The descriptor that a command has returned.
fn descriptor(returned: i32) -> OwnedFd {
    // SAFETY: the kernel has just returned this descriptor, so nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(returned) }
}
