//! What the tests relax on an emulated CPU (`cargo xtask vm`), in one place. `docs/kernels.md` names every function of
//! this file, and no other file asks whether the CPU is emulated.

use std::time::Duration;

/// Whether this machine's CPU is emulated: a connection takes milliseconds, and programs run so long that their own
/// tracepoint fires during a run. `cargo xtask vm` sets the variable.
fn is_emulated() -> bool {
    std::env::var_os("TCPMON_EMULATED").is_some()
}

// Less work.

/// A large number of connections, or bytes of the soak: as many as requested, or a fiftieth of that on an emulated CPU.
pub fn many(number: u64) -> u64 {
    fewer(number, number / 50)
}

/// The usual amount of work or rate, or one that lets an emulated CPU finish in time. What is compared afterwards is
/// the same.
pub fn fewer<T>(usual: T, emulated: T) -> T {
    if is_emulated() { emulated } else { usual }
}

// Longer times.

/// A time that is long compared with system calls and interrupts: five times as long on an emulated CPU.
pub fn slowly(nanoseconds: u64) -> u64 {
    if is_emulated() { 5 * nanoseconds } else { nanoseconds }
}

/// A deadline where the tests run: three times as long on an emulated CPU.
pub fn patience(deadline: Duration) -> Duration {
    if is_emulated() { 3 * deadline } else { deadline }
}

/// The pause between two actions of an actor of the soak: sixty times as long on an emulated CPU, or there would be no
/// time for pages and traces.
pub fn longer_pause(pause: Duration) -> Duration {
    if is_emulated() { 60 * pause } else { pause }
}

// Comparisons that are weaker on an emulated CPU, or left out there.

/// Programs run so long that their own tracepoint fires during a run; the kernel skips the program then, and tcpmon
/// counts it as `recursion_*`. A histogram then lacks an entry, or a trace a read.
///
/// `common::lost`, with which `bytes`, `churn`, `cpus` and `store` assert that nothing was lost, leaves
/// `recursion_*` out. `trace::threads_that_steal_each_others_work_are_each_counted_once` may miss reads, as many as the
/// trace says.
pub fn recursion_is_usual() -> bool {
    is_emulated()
}

/// A host without a CPU to spare stops the machine for longer than tcpmon allows its clocks to differ (20 ms). The
/// scheduler's clock of a CPU whose tick is overdue stands still meanwhile, so that a thread which moves to another CPU
/// seems to have waited before it began to read: tcpmon refuses that, and counts it as `impossible_reader`.
///
/// `common::lost`, with which `bytes`, `churn`, `cpus` and `store` assert that nothing was lost, leaves it out.
pub fn clocks_may_stand_still() -> bool {
    is_emulated() && std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1)
}

/// Interrupts and wakeups take longer than a round trip, so that cases that need quick answers cannot be shown, and a
/// page takes so long that the sender's count next to it is from another moment.
///
/// `causes` leaves out the tests of such cases, does not send in pieces of half a window, does not retry after a slow
/// handshake, and does not compare `readers_of_every_kind_add_up_and_have_the_cause_of_a_simple_one` and
/// `a_window_that_memory_pressure_holds_down_is_the_memorys` with their senders.
/// `trace::a_summary_has_exact_totals_of_many_threads_and_what_limited_their_connections` does not compare the causes.
pub fn rounds_are_slow() -> bool {
    is_emulated()
}

/// A virtual machine's init process takes the CPU even more often than the hog does: in
/// `trace::a_preempted_thread_names_who_got_its_cpu`, any thread may have preempted the reader.
pub fn others_preempt() -> bool {
    is_emulated()
}

/// With fewer connections, the ring is not filled even once, and its pages count as resident only once used, so RSS may
/// still grow: `churn::a_hundred_thousand_connections_leave_nothing_behind` does not compare RSS.
pub fn rss_may_grow() -> bool {
    is_emulated()
}

/// The number of passes that this many simultaneous requests stay below: half their number, which shows that they share
/// passes. On an emulated CPU their full number, because it takes longer than a pass there to accept a few connections
/// (`host::who_asks_at_the_same_time_shares_a_pass`).
pub fn shared_passes(asking: usize) -> usize {
    fewer(asking / 2, asking)
}

/// The few rounds of `snapshot::silent_passes_say_what_a_full_one_says_while_connections_come_go_and_change` may all
/// end before a window closes.
pub fn windows_may_stay_open() -> bool {
    is_emulated()
}

/// Everything takes longer, and 10,000 groups take minutes: `load` leaves them out, and does not check the daemon's CPU
/// use under many clients.
pub fn is_too_slow_for_load() -> bool {
    is_emulated()
}

/// The thread that reads the host's counters may take longer than 2 s, and a page then lacks them: [`crate::Daemon`]
/// asks for another one, and the soak does not compare the switches and packets of such a page.
pub fn may_lack_host_counters() -> bool {
    is_emulated()
}

/// The speed of an emulated CPU depends on what else the host does: the soak does not judge the CPU time of a page.
pub fn cpu_time_varies() -> bool {
    is_emulated()
}

/// Files are only in the memory of a virtual machine, so that none can be reclaimed: the kernel may kill the soak's
/// writer in a small control group.
pub fn memory_may_run_out() -> bool {
    is_emulated()
}

// Comparisons that are made on an emulated CPU only.

/// A program takes a hundred times as long, and one pulse in a hundred hits it: only then
/// `trace::a_reader_that_is_preempted_while_its_reads_are_noted_has_all_its_bytes` requires that one was hit.
pub fn pulses_hit_programs() -> bool {
    is_emulated()
}

/// Only the machines of `cargo xtask vm` may lose a CPU, for
/// `cpus::every_sum_is_exact_while_cpus_go_offline_and_come_back`.
pub fn cpus_may_go_offline() -> bool {
    is_emulated()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// The Rust files below a folder that ask whether the CPU is emulated.
    fn asking(folder: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).expect("a folder of the checkout") {
            let path = entry.expect("a file of the checkout").path();
            if path.is_dir() {
                found.extend(asking(&path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a file of the checkout");
                if text.contains("TCPMON_EMULATED") || text.contains("is_emulated") {
                    found.push(path);
                }
            }
        }
        found
    }

    #[test]
    fn no_other_file_asks_whether_the_cpu_is_emulated() {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(asking(tests), [tests.join("src/emulated.rs")]);
    }

    #[test]
    fn the_page_of_kernels_names_every_function_and_no_other() {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let functions = include_str!("emulated.rs").lines().filter_map(|line| {
            let rest = line.strip_prefix("pub fn ")?;
            rest.split(|c: char| !is_of_name(c)).next()
        });
        let page = include_str!("../../docs/kernels.md");
        let named = page.split('`').filter_map(|text| text.strip_suffix("()"));
        let named = named.filter(|name| name.chars().all(is_of_name));
        assert_eq!(named.collect::<BTreeSet<_>>(), functions.collect::<BTreeSet<_>>());
    }
}
