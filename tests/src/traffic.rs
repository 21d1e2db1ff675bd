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

mod helper;
pub mod plan;
mod reader;
mod sender;

pub use plan::{Between, Call, Method, Report, Threads};
pub use reader::{Reader, ReaderBuilder};
pub use sender::{Sender, SenderBuilder};

use helper::Helper;
use plan::{BurstPlan, HogPlan};

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
    pub fn hog(cpu: usize, nice: i32) -> Hog {
        let (helper, _) = Helper::spawn(&End::host(), "hog", &HogPlan { cpu, nice });
        Hog { helper }
    }

    /// A process that sends bursts of datagrams, during which nothing else runs on its CPU.
    pub fn burst(end: &End, plan: BurstPlan) -> Burst {
        let (helper, _) = Helper::spawn(end, "burst", &plan);
        Burst { helper }
    }
}

/// A process that keeps a CPU busy for as long as this lives.
#[derive(Debug)]
pub struct Hog {
    helper: Helper,
}

impl Hog {
    /// The process id.
    pub fn pid(&self) -> u32 {
        self.helper.pid()
    }
}

/// Bursts of datagrams, for as long as this lives or until all are sent.
#[derive(Debug)]
pub struct Burst {
    helper: Helper,
}

impl Burst {
    /// Starts or resumes the bursts. They are paused at first.
    #[track_caller]
    pub fn resume(&self) {
        self.helper.order(plan::Order::Resume);
    }

    /// Stops after the current burst; no datagram is sent after this returns.
    #[track_caller]
    pub fn pause(&self) {
        self.helper.order(plan::Order::Pause);
    }

    /// The number of bursts sent so far (`calls`) and their payload.
    #[track_caller]
    pub fn report(&self) -> Report {
        self.helper.report()
    }
}
