//! A pass without the model: a second set of tcpmon's programs watches the same sockets, and each step of a pass over
//! them (one system call that looks at sockets, and the copies of those that have changed) is timed.

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
    /// Number of sockets watched.
    pub visited: u64,
    /// Number of sockets shown.
    pub shown: u64,
    /// Number of steps, each of which has one system call.
    pub calls: u32,
    /// Duration of all steps together.
    pub took: Duration,
    /// Duration of the longest step.
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
        let mut pass = self.kernel.begin(show);
        loop {
            let start = Instant::now();
            let shown = &mut walk.shown;
            let more = self.kernel.advance(&mut pass, |_, _| *shown += 1);
            let more = more.unwrap_or_else(|error| panic!("walking on: {error}"));
            let took = start.elapsed();
            walk.calls += 1;
            walk.took += took;
            walk.longest = walk.longest.max(took);
            if !more {
                break;
            }
        }
        walk.visited = self.kernel.sockets_in_use().into();
        walk
    }
}
