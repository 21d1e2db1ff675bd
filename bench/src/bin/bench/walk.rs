//! A pass without the model: a second set of tcpmon's programs watches the same sockets, and each step of a pass over
//! them is timed. A step is one system call that looks at sockets, and then the copies of those that have changed.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
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
    /// Duration of the longest system call.
    pub longest_call: Duration,
    /// CPU time of the system call that used most.
    pub busiest_call: Duration,
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
            let (start, cpu) = (Instant::now(), own_cpu_time());
            let looks = self.kernel.look(&pass).unwrap_or_else(|error| panic!("walking on: {error}"));
            walk.busiest_call = walk.busiest_call.max(own_cpu_time() - cpu);
            walk.longest_call = walk.longest_call.max(start.elapsed());
            let more = self.kernel.show(&mut pass, looks, |_, _| walk.shown += 1);
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

/// CPU time that this thread has used.
fn own_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has this clock").into()
}
