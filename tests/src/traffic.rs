//! TCP senders and readers, each a separate process with known behaviour whose bytes are counted.
//!
//! ```no_run
//! # use tcpmon_tests::{Lab, Traffic};
//! let lab = Lab::new();
//! let reader = Traffic::reader(lab.receiver()).comm("slow").paused().spawn();
//! let sender = Traffic::sender(lab.sender()).to(reader.address()).bytes(1 << 20).spawn();
//! assert_eq!(reader.read(1000), 1000);
//! reader.resume();
//! assert_eq!(reader.wait().bytes, sender.wait().bytes);
//! ```

pub mod plan;
mod reader;
mod running;
mod sender;

pub use plan::{Between, Call, Method, Report, Threads};
pub use reader::{Reader, ReaderBuilder};
pub use running::Running;
pub use sender::{Sender, SenderBuilder};

use plan::{BurstPlan, ClockPlan, HogPlan};

use crate::lab::End;

/// Builders for traffic.
#[derive(Debug)]
pub struct Traffic;

impl Traffic {
    /// A process that listens and reads at `end`.
    pub fn reader(end: &End) -> ReaderBuilder {
        ReaderBuilder::new(end)
    }

    /// A process that connects and writes from `end`.
    pub fn sender(end: &End) -> SenderBuilder {
        SenderBuilder::new(end)
    }

    /// A process that keeps a CPU busy, so that other threads must wait for it. `nice` may be negative.
    pub fn hog(cpu: usize, nice: i32) -> Running {
        Running::spawn(&End::host(), "hog", &HogPlan { cpu, nice }).0
    }

    /// A process that has stepped the wall clock; see [`crate::fault::WrongClock`].
    pub(crate) fn clock(seconds: i64) -> Running {
        Running::spawn(&End::host(), "clock", &ClockPlan { seconds }).0
    }

    /// A process that sends bursts of datagrams, during which nothing else runs on its CPU. It is paused at first;
    /// its report counts bursts (`calls`) and their payload.
    pub fn burst(end: &End, plan: BurstPlan) -> Running {
        Running::spawn(end, "burst", &plan).0
    }
}
