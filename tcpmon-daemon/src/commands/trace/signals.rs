//! The signals that end a trace cleanly.

use std::{future::poll_fn, io, task::Poll};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::host::read_text;

/// SIGINT, SIGTERM, SIGQUIT and SIGHUP.
#[derive(Debug)]
pub(super) struct Signals(pub(super) Vec<(SignalKind, Signal)>);

impl Signals {
    /// From now on, these signals do not end the process, and neither does SIGUSR1 if it is wanted.
    pub(super) fn listen(usr1_wanted: bool) -> io::Result<Self> {
        let mut kinds = vec![SignalKind::interrupt(), SignalKind::terminate(), SignalKind::quit()];
        if usr1_wanted {
            kinds.push(SignalKind::user_defined1());
        }
        // Under `nohup`, closing the terminal must not end the trace.
        if !read_text("/proc/self/status").is_ok_and(|status| ignores_hangup(&status)) {
            kinds.push(SignalKind::hangup());
        }
        Ok(Self(kinds.into_iter().map(|kind| Ok((kind, signal(kind)?))).collect::<io::Result<_>>()?))
    }

    /// Waits for the next of these signals.
    pub(super) async fn next(&mut self) -> SignalKind {
        poll_fn(|context| {
            let came =
                self.0.iter_mut().find_map(|(kind, signal)| signal.poll_recv(context).is_ready().then_some(*kind));
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Whether `/proc/PID/status` has SIGHUP, the lowest bit, among the ignored signals.
fn ignores_hangup(status: &str) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_proc_status() {
        let status = |set| format!("SigBlk:\t0000000000000001\nSigIgn:\t{set}\nSigCgt:\t0000000000000001\n");
        assert!(ignores_hangup(&status("0000000000001001")));
        assert!(!ignores_hangup(&status("0000000000001000")));
        assert!(!ignores_hangup(""));
    }
}
