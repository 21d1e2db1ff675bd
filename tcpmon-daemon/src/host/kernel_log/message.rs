//! Page allocation failures in records of the kernel log.

/// Maximum length of a process name in the kernel, bytes (`TASK_COMM_LEN` without its NUL).
const PROCESS_NAME: usize = 15;

/// No kernel has larger orders.
const MAX_ORDER: u32 = 20;

/// The text between the process name and the figures (order and mode).
const FAILURE: &str = ": page allocation failure";

/// Flags that allow an allocation to wait (direct reclaim), by the kernel's names (`include/trace/events/mmflags.h`).
/// Other names are for single bits that do not. The kernel prints the largest sets first, so GFP_ATOMIC with direct
/// reclaim is `GFP_ATOMIC|__GFP_DIRECT_RECLAIM`.
const BLOCKING_FLAGS: [&str; 12] = [
    "GFP_KERNEL",
    "GFP_KERNEL_ACCOUNT",
    "GFP_USER",
    "GFP_HIGHUSER",
    "GFP_HIGHUSER_MOVABLE",
    "GFP_TEMPORARY",
    "GFP_TRANSHUGE",
    "GFP_NOFS",
    "GFP_NOIO",
    "__GFP_RECLAIM",
    "__GFP_DIRECT_RECLAIM",
    "__GFP_WAIT",
];

/// `__GFP_WAIT` in Linux 4.3 and older.
const WAIT: u32 = 0x10;

/// `__GFP_DIRECT_RECLAIM` in Linux 4.4 and 4.5, the only versions that have it and do not print names.
const DIRECT_RECLAIM: u32 = 0x40_0000;

/// `__GFP_KSWAPD_RECLAIM` in the same versions; both GFP_ATOMIC and GFP_KERNEL have it. Before, the bit was unused.
const KSWAPD_RECLAIM: u32 = 0x200_0000;

/// One record of `/dev/kmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KmsgRecord<'a> {
    /// Its sequence number: one more than that of the record before it.
    pub sequence: u64,
    /// Whether the kernel wrote it: what user space writes to the log cannot have facility 0.
    pub from_kernel: bool,
    /// The text, in which the kernel escapes everything but printable ASCII in the form `\x0a`.
    pub message: &'a str,
}

/// Kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind<'a> {
    /// An allocation failed.
    Failure(Failure<'a>),
    /// The kernel's rate limit suppressed this many such messages.
    Suppressed(u64),
    /// An allocation failed, but the rest is not in the format of any known kernel.
    Malformed,
    /// Something else.
    Other,
}

/// A failure of the page allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure<'a> {
    /// Name of the process that was running.
    pub process: &'a str,
    /// 2^order pages were requested.
    pub order: u32,
    /// It was not allowed to wait.
    pub atomic: bool,
}

/// Parses a record: `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,...];MESSAGE` and continuation lines. `None` if it is not
/// one.
pub fn parse_record(text: &str) -> Option<KmsgRecord<'_>> {
    let (header, rest) = text.split_once(';')?;
    let mut fields = header.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let sequence = fields.next()?.parse().ok()?;
    let message = rest.lines().next().unwrap_or_default();
    Some(KmsgRecord { sequence, from_kernel: priority >> 3 == 0, message })
}

/// Classifies a message of the kernel.
pub fn classify(message: &str) -> MessageKind<'_> {
    // Up to Linux 4.9 the function was called warn_alloc_failed.
    let limited = ["warn_alloc: ", "warn_alloc_failed: "].iter().find_map(|name| message.strip_prefix(name));
    if let Some(count) = limited.and_then(|rest| rest.strip_suffix(" callbacks suppressed")) {
        return count.parse().map_or(MessageKind::Malformed, MessageKind::Suppressed);
    }
    match message.split_once(FAILURE) {
        // A longer name is other text of the kernel, such as a device's name, which may come from anywhere.
        Some((process, figures)) if unescaped_length(process) <= PROCESS_NAME => {
            let figures = order_and_atomic(figures).filter(|(order, _)| *order <= MAX_ORDER);
            figures.map_or(MessageKind::Malformed, |(order, atomic)| {
                MessageKind::Failure(Failure { process, order, atomic })
            })
        }
        _ => MessageKind::Other,
    }
}

/// Length of a text before the kernel escaped some of its bytes as `\x0a`, bytes.
fn unescaped_length(spelled: &str) -> usize {
    spelled.len().saturating_sub(3 * spelled.matches("\\x").count())
}

/// Parses `: order:0, mode:0x40820(GFP_ATOMIC|__GFP_COMP), ...`. Before Linux 4.6 there are no names, and before 2.6.39
/// the text starts with a full stop.
fn order_and_atomic(figures: &str) -> Option<(u32, bool)> {
    let (order, rest) = figures.strip_prefix([':', '.'])?.strip_prefix(" order:")?.split_once(", mode:0x")?;
    let digits = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
    let (mode, rest) = rest.split_at(digits);
    let mode = u32::from_str_radix(mode, 16).ok()?;
    let names = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map(|(names, _)| names);
    let may_block = match names {
        Some(names) => names.split('|').any(|name| BLOCKING_FLAGS.contains(&name)),
        None if mode & KSWAPD_RECLAIM != 0 => mode & DIRECT_RECLAIM != 0,
        None => mode & WAIT != 0,
    };
    Some((order.parse().ok()?, !may_block))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn failure(process: &str, order: u32, atomic: bool) -> MessageKind<'_> {
        MessageKind::Failure(Failure { process, order, atomic })
    }

    #[test]
    fn records_are_parsed_by_their_header() {
        let records: Vec<_> = include_str!("../captured/6.1/kmsg_all_raw").lines().filter_map(parse_record).collect();
        let taken = |sequence| *records.iter().find(|record| record.sequence == sequence).expect("captured");
        // Two lines, such as ` SUBSYSTEM=acpi`, are not records; the facilities user and local7 are not the kernel.
        assert_eq!(records.len(), 7);
        assert_eq!(taken(87).message, "rcu: \\x09RCU restricting CPUs from NR_CPUS=8192 to nr_cpu_ids=2.");
        assert!(taken(87).from_kernel && !taken(459).from_kernel && !taken(463).from_kernel);
        assert_eq!(taken(459).message, "tcpmon capture: plain user record");

        let text = "7,160,424069,-,caller=T1;pci_root PNP0A03:00: host; bridge\n SUBSYSTEM=acpi\n";
        let message = "pci_root PNP0A03:00: host; bridge";
        assert_eq!(parse_record(text), Some(KmsgRecord { sequence: 160, from_kernel: true, message }));
        for text in ["", "4,5,6,-", "x,5,6,-;a", "4,x,6,-;a", "-4,5,6,-;a"] {
            assert_eq!(parse_record(text), None, "{text:?}");
        }
    }

    #[test]
    fn messages_of_all_kernel_versions_are_parsed() {
        // Written by hand: Linux 4.6 and newer, 2.6.39 to 4.5, and the original of 2005.
        for (message, expected) in [
            (
                "swapper/0: page allocation failure: order:0, mode:0x40820(GFP_ATOMIC|__GFP_COMP), \
                 nodemask=(null),cpuset=/,mems_allowed=0",
                failure("swapper/0", 0, true),
            ),
            (
                "kworker/10:2: page allocation failure: order:7, mode:0xcc0(GFP_KERNEL), x",
                failure("kworker/10:2", 7, false),
            ),
            ("stapio: page allocation failure: order:9, mode:0x2080020(GFP_ATOMIC)", failure("stapio", 9, true)),
            ("nginx: page allocation failure: order:2, mode:0x204020", failure("nginx", 2, true)),
            ("java: page allocation failure. order:0, mode:0x20", failure("java", 0, true)),
            ("swapper: page allocation failure. order:1, mode:0xd0", failure("swapper", 1, false)),
            ("a: b: page: page allocation failure: order:0, mode:0x0()", failure("a: b: page", 0, true)),
            (
                "15\\x09bytes\\x3b_long: page allocation failure: order:0, mode:0x1",
                failure("15\\x09bytes\\x3b_long", 0, true),
            ),
        ] {
            assert_eq!(classify(message), expected, "{message}");
        }
    }

    #[test]
    fn an_allocation_that_may_wait_is_not_atomic() {
        let atomic = |mode: &str| match classify(&format!("a: page allocation failure: order:0, mode:{mode}, x")) {
            MessageKind::Failure(failure) => failure.atomic,
            other => panic!("{mode}: {other:?}"),
        };
        for names in
            BLOCKING_FLAGS.into_iter().chain(["GFP_ATOMIC|__GFP_DIRECT_RECLAIM", "__GFP_HIGH|GFP_NOIO|__GFP_COMP"])
        {
            assert!(!atomic(&format!("0x1({names})")), "{names}");
        }
        for names in [
            "GFP_ATOMIC",
            "GFP_NOWAIT|__GFP_NOWARN",
            "__GFP_HIGH|__GFP_COMP",
            "GFP_TRANSHUGE_LIGHT",
            "__GFP_KSWAPD_RECLAIM|0x8000000",
            "",
        ] {
            assert!(atomic(&format!("0x10({names})")), "{names}");
        }
        // GFP_KERNEL and GFP_ATOMIC of Linux 4.4; also with __GFP_RECLAIMABLE, which has the former bit of __GFP_WAIT.
        assert_eq!(["0x24000c0", "0x2080020", "0x2080030"].map(atomic), [false, true, true]);
        assert_eq!(["0xd0", "0x10", "0x20", "0x400020"].map(atomic), [false, false, true, true]);
    }

    #[test]
    fn unknown_formats_are_malformed_and_other_messages_are_ignored() {
        for figures in [
            ": order:21, mode:0x20",
            ": order:-1, mode:0x20",
            ": order:0, mode:20",
            ": order:0, mode:0x",
            ": order:0, mode:0x100000000",
            ", order:0, mode:0x20",
            "",
        ] {
            assert_eq!(classify(&format!("a{FAILURE}{figures}")), MessageKind::Malformed, "{figures:?}");
        }
        assert_eq!(classify(&format!("a{FAILURE}: order:20, mode:0x20")), failure("a", 20, true));
        for message in [
            "",
            "usb 1-1: Product: page allocation failure: order:0, mode:0x20",
            "a: vmalloc error: size 4096, page order 0, failed to allocate pages, mode:0xcc0(GFP_KERNEL)",
            "page allocation failure: order:0, mode:0x20",
            "audit: 9 callbacks suppressed",
        ] {
            assert_eq!(classify(message), MessageKind::Other, "{message}");
        }
    }

    #[test]
    fn the_kernel_s_rate_limit_is_counted() {
        assert_eq!(classify("warn_alloc: 29 callbacks suppressed"), MessageKind::Suppressed(29));
        assert_eq!(classify("warn_alloc_failed: 3 callbacks suppressed"), MessageKind::Suppressed(3));
        assert_eq!(classify("warn_alloc: -1 callbacks suppressed"), MessageKind::Malformed);
        assert_eq!(classify("warn_alloc: a callback"), MessageKind::Other);
    }

    proptest! {
        #[test]
        fn no_text_can_panic_the_parsers(text in "(?s).{0,100}", mode in "[0-9a-f]{0,9}[(),|A-Z_]{0,12}", order: i32) {
            let _ = parse_record(&text);
            let _ = parse_record(&format!("4,1,1,-;{text}"));
            let _ = classify(&text);
            let _ = classify(&format!("{text}{FAILURE}{text}"));
            let _ = classify(&format!("\\x\\x\\x{FAILURE}: order:{order}, mode:0x{mode}"));
            let _ = classify(&format!("warn_alloc: {text} callbacks suppressed"));
        }
    }
}
