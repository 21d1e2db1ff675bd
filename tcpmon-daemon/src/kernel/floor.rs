//! Empty programs on the daemon's tracepoints: `cargo xtask bench` compares the daemon with them.

use aya::{Btf, Ebpf, EbpfLoader, programs::BtfTracePoint};

use tcpmon_btf::plan::{EXIT, PROBES};

use super::{
    OBJECT, ProgramStats, program_stats,
    support::{CannotRun, refused},
};

/// The attached empty programs. They are removed from the kernel when this value is dropped.
#[derive(Debug)]
pub struct Floor(Ebpf);

impl Floor {
    /// Attaches an empty program to each of the named tracepoints, or to all that the daemon uses by default if none is
    /// named.
    ///
    /// # Errors
    /// If the kernel refuses a program or the maps.
    pub fn attach(only: &[String]) -> Result<Self, CannotRun> {
        let types = Btf::from_sys_fs().map_err(|error| refused("its type information", &error))?;
        let mut ebpf = EbpfLoader::new()
            .btf(Some(&types))
            .allow_unsupported_maps()
            .load(OBJECT)
            .map_err(|error| refused("tcpmon's maps", &error))?;
        for probe in PROBES.iter().filter(|probe| probe.daemon && **probe != EXIT) {
            if !only.is_empty() && !only.iter().any(|name| name == probe.name) {
                continue;
            }
            let program = ebpf
                .program_mut(&format!("floor_{}", probe.name))
                .expect("the object of this build has a floor program per probe");
            <&mut BtfTracePoint>::try_from(program)
                .and_then(|program| {
                    program.load(probe.name, &types)?;
                    program.attach().map(drop)
                })
                .map_err(|error| refused(probe.name, &error))?;
        }
        Ok(Self(ebpf))
    }

    /// What the kernel counts for each program.
    pub fn programs(&self) -> Vec<(String, ProgramStats)> {
        use std::os::fd::{AsFd, AsRawFd};
        self.0
            .programs()
            .filter_map(|(name, program)| {
                let fd = program.fd().ok()?.as_fd().as_raw_fd();
                Some((name.to_owned(), program_stats(fd).ok()?))
            })
            .collect()
    }
}
