//! Runs the program that looks at sockets.
#![expect(unsafe_code, reason = "a bpf(2) call that no crate wraps")]

use std::{
    error::Error,
    io,
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::{
    Ebpf,
    programs::{ProgramFd, RawTracePoint},
};
use tcpmon_common::look::{LOOKS, Look, LookArguments};

use super::{
    bpf::{BPF_PROG_TEST_RUN, bpf},
    mapped::Mapped,
};

/// The part of `union bpf_attr` that `BPF_PROG_TEST_RUN` reads and writes.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
}

/// The program, and the array in which it leaves what it has found.
pub(super) struct Looker {
    program: ProgramFd,
    looks: Mapped<Look>,
}

impl Looker {
    /// Loads the program and runs it once over nothing. With `can_cast`, tries the faster variant first.
    ///
    /// # Errors
    /// Why the kernel lets no variant run.
    pub(super) fn load(ebpf: &mut Ebpf, looks: Mapped<Look>, can_cast: bool) -> Result<Self, Box<dyn Error>> {
        let load = |ebpf: &mut Ebpf, name: &str| -> Result<ProgramFd, Box<dyn Error>> {
            let program = ebpf.program_mut(name).expect("the object of this build has both looks");
            let program: &mut RawTracePoint = program.try_into()?;
            program.load()?;
            Ok(program.fd()?.try_clone()?)
        };
        let program = match load(ebpf, if can_cast { "look" } else { "look_probed" }) {
            Err(_) if can_cast => load(ebpf, "look_probed")?,
            loaded => loaded?,
        };
        let looker = Self { program, looks };
        looker.run(0, 0, 0)?;
        Ok(looker)
    }

    /// Looks at the sockets of `count` states from `first` on, at most [`LOOKS`]; `show` is one of the `SHOW_`
    /// constants.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub(super) fn run(&self, first: u32, count: u32, show: u32) -> io::Result<Vec<Look>> {
        let arguments = LookArguments { first: first.into(), count: count.into(), show: show.into() };
        let mut run = TestRun {
            prog_fd: self.program.as_fd().as_raw_fd() as u32,
            ctx_size_in: size_of::<LookArguments>() as u32,
            ctx_in: (&raw const arguments) as u64,
            ..TestRun::default()
        };
        // SAFETY: these are the attributes of the command, and the arguments live during the call.
        unsafe { bpf(BPF_PROG_TEST_RUN, &mut run)? };
        Ok((0..run.retval.min(LOOKS) as usize).filter_map(|number| self.looks.get(number)).collect())
    }
}
