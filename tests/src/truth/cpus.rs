//! The kernel's counters of its CPUs, and whether a page lies between two readings of them.

use super::{Softnet, context_switches, softnet};
use crate::Page;

/// A reading of the counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuCounters {
    /// The softnet counters of each online CPU.
    pub softnet: Vec<Softnet>,
    /// Context switches of all CPUs together.
    pub context_switches: u64,
}

impl CpuCounters {
    /// Reads the counters.
    pub fn read() -> Self {
        Self { softnet: softnet(), context_switches: context_switches() }
    }

    /// Checks that every counter of a page lies between this reading, which was made before it, and a later one.
    pub fn check(&self, page: &Page, after: &Self) -> Result<(), String> {
        let within = |name: &str, labels: &[(&str, &str)], least: u64, most: u64| match page.value(name, labels) {
            Some(shown) if least as f64 <= shown && shown <= most as f64 => Ok(()),
            shown => Err(format!("{name} {labels:?} is {shown:?}, and the kernel counted {least}..{most}")),
        };
        for before in &self.softnet {
            let after = after.softnet.iter().find(|after| after.cpu == before.cpu);
            let after = after.ok_or_else(|| format!("CPU {} went offline between the readings", before.cpu))?;
            let cpu = before.cpu.to_string();
            let labels = [("cpu", cpu.as_str())];
            within("tcpmon_softnet_processed_total", &labels, before.processed, after.processed)?;
            within("tcpmon_softnet_dropped_total", &labels, before.dropped, after.dropped)?;
            within("tcpmon_softnet_time_squeezed_total", &labels, before.time_squeezed, after.time_squeezed)?;
        }
        within("tcpmon_context_switches_total", &[], self.context_switches, after.context_switches)
    }
}
