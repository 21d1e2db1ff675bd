//! A CPU that is offline.

use std::fs;

use crate::must;

/// A CPU that is offline for as long as this lives.
#[derive(Debug)]
pub struct OfflineCpu(u32);

impl OfflineCpu {
    /// Takes it offline. The kernel moves its threads, timers and queued packets to other CPUs.
    #[track_caller]
    pub fn new(cpu: u32) -> Self {
        must(fs::write(switch(cpu), "0"), format!("taking CPU {cpu} offline"));
        Self(cpu)
    }
}

impl Drop for OfflineCpu {
    fn drop(&mut self) {
        if let Err(error) = fs::write(switch(self.0), "1") {
            eprintln!("bringing CPU {} online: {error}", self.0);
        }
    }
}

fn switch(cpu: u32) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/online")
}
