//! The kernel's share of a pass, without the daemon: programs of our own watch the same sockets, and each system call
//! that walks them is timed.

use std::time::{Duration, Instant};

use tcpmon::kernel::{Kernel, Options, Show};

/// See the module.
pub struct Walker {
    kernel: Kernel,
}

/// One walk over all sockets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Walk {
    /// Sockets met.
    pub met: u64,
    /// Sockets shown.
    pub shown: u64,
    /// System calls it took.
    pub calls: u32,
    /// All of them together.
    pub took: Duration,
    /// The longest of them.
    pub longest: Duration,
}

impl Walker {
    /// Watches what is open, and shows it once: from then on only what changes is to be shown.
    pub fn start() -> Self {
        let options = Options { trace: None, max_readers: 4096, max_drop_entries: 4096, ring_bytes: 1 << 21 };
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
            // Copied out, as the daemon does.
            walk.shown += self.kernel.records(&pass).count() as u64;
            if !more {
                break;
            }
        }
        walk.met = self.kernel.met().iter().map(|bits| u64::from(bits.count_ones())).sum();
        walk
    }
}
