//! The kernel's share of a pass, without the daemon: a second set of tcpmon's programs watches the same sockets, and
//! each system call that walks over them is timed.

use std::time::{Duration, Instant};

use tcpmon::config::Config;
use tcpmon::kernel::{Kernel, Options, Show};

/// See the module documentation.
pub struct Walker {
    kernel: Kernel,
}

/// One walk over all sockets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Walk {
    /// Number of sockets visited.
    pub visited: u64,
    /// Number of sockets shown.
    pub shown: u64,
    /// Number of system calls.
    pub calls: u32,
    /// Duration of all system calls together.
    pub took: Duration,
    /// Duration of the longest system call.
    pub longest: Duration,
}

impl Walker {
    /// Starts to watch the open sockets and shows all of them once; from then on only those that change have to be
    /// shown.
    pub fn start() -> Self {
        let options = Options::from(&Config::default().validate().expect("the defaults are valid"));
        let kernel = Kernel::load(options).unwrap_or_else(|error| panic!("loading programs to walk with: {error}"));
        let mut walker = Self { kernel };
        walker.walk(Show::All);
        walker
    }

    /// Walks over all sockets.
    pub fn walk(&mut self, show: Show) -> Walk {
        let mut walk = Walk::default();
        let mut pass = self.kernel.begin(show).unwrap_or_else(|error| panic!("beginning a walk: {error}"));
        loop {
            let start = Instant::now();
            let more = self.kernel.advance(&mut pass).unwrap_or_else(|error| panic!("walking on: {error}"));
            let took = start.elapsed();
            walk.calls += 1;
            walk.took += took;
            walk.longest = walk.longest.max(took);
            // The records are copied out, as the daemon does.
            walk.shown += self.kernel.records(&pass).count() as u64;
            if !more {
                break;
            }
        }
        walk.visited = self.kernel.visited().iter().map(|bits| u64::from(bits.count_ones())).sum();
        walk
    }
}
