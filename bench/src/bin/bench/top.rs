//! What `tcpmon top --own` costs: it loads programs of its own.

use std::fs;
use std::time::{Duration, Instant};

use tcpmon_tests::figures::{Section, Table, target};
use tcpmon_tests::tmux::Tmux;
use tcpmon_tests::{Lab, eventually, interrupt, tcpmon_binary, truth};

use crate::own::used;
use crate::scale::{exchange, mebibytes, pair};

/// Connections, each with both ends on this host, so that `top` has twice as many rows.
const CONNECTIONS: u64 = 5_000;
/// How often `top` takes a sample, and how often each socket receives a byte.
const EVERY: Duration = Duration::from_secs(1);
/// Time limit for the process to appear.
const DEADLINE: Duration = Duration::from_secs(5);

/// Measures 20 s with all sockets at rest, then 20 s with all of them receiving; less if `quick`.
pub fn measure(quick: bool) -> Section {
    let lab = Lab::new();
    lab.allow_many_connections();
    let pair = pair(&lab, CONNECTIONS);
    let command = format!("{} top --own --sockets", tcpmon_binary().display());
    let terminal = Tmux::start(160, 50, &[], &command);
    terminal.shows(&["many"]);
    let pid = pid_of_top(terminal.shell());
    let rounds = if quick { 5 } else { 20 };
    let mut table = Table::new(&["sockets", "of which receive each second", "CPU, % of a core", "RSS, MiB"]);
    let mut measured = |active: bool| {
        // Lets `top` take in everything that happened before, which is not part of the measurement.
        interrupt::sleep(2 * EVERY);
        let start = Instant::now();
        let cpu = used(pid, || {
            for round in 1..=rounds {
                if active {
                    exchange(&pair);
                }
                interrupt::sleep((round * EVERY).saturating_sub(start.elapsed()));
            }
        });
        let sockets = 2 * CONNECTIONS;
        table.row(vec![
            sockets.to_string(),
            if active { sockets } else { 0 }.to_string(),
            format!("{cpu:.1}"),
            mebibytes(truth::rss_bytes(pid)),
        ]);
        cpu
    };
    measured(false);
    let active = measured(true);
    let what = format!("`tcpmon top --own --sockets`, a sample each second, for {rounds} s.");
    let notes = vec![target("top with 10,000 active sockets", active, 2.0, "% of a core")];
    Section { name: "top", what, table, notes }
}

/// The child of the terminal's shell that is tcpmon.
fn pid_of_top(shell: u32) -> u32 {
    let program = tcpmon_binary().canonicalize().expect("it runs");
    eventually(DEADLINE, "the process of top", || {
        let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).ok()?;
        let mut pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        pids.find(|pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program))
    })
}
