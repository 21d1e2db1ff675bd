//! Tests of whole metrics pages.

use std::{collections::HashSet, mem::offset_of, time::Duration};

use proptest::prelude::*;
use prost::Message as _;
use tcpmon_common::{
    histogram::{FILL_BINS, FILL_BOUNDS, FILL_DEACTIVATION, FILL_ONE, TIME_BINS, TIME_FIRST_EXPONENT},
    reader::ReaderTotals,
    socket::SocketTotals,
};

use zerocopy::IntoBytes as _;

use super::{fixture, protobuf::message as proto, *};
use crate::{
    host::{KernelLog, Sources},
    model::{
        cgroup_label::Cgroup,
        snapshot::{GroupCounters, GroupKey, Snapshot},
    },
    tests::is_kept_in,
};

const GOLDEN: &str = "src/metrics/golden.prom";
const REFERENCE: &str = "../docs/metrics.md";

fn text(page: Page, format: Format) -> String {
    String::from_utf8(bytes(page, format)).expect("UTF-8")
}

fn bytes(page: Page, format: Format) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&page, format, &mut bytes).expect("a page");
    bytes
}

fn protobuf(page: Page) -> Vec<proto::MetricFamily> {
    let bytes = bytes(page, Format::Protobuf);
    let mut rest = bytes.as_slice();
    let families = std::iter::from_fn(|| {
        (!rest.is_empty()).then(|| proto::MetricFamily::decode_length_delimited(&mut rest).expect("a family"))
    });
    families.collect()
}

fn samples(page: &str) -> Vec<&str> {
    page.lines().filter(|line| !line.starts_with('#')).collect()
}

#[test]
fn the_text_page_is_the_golden_one() {
    is_kept_in(GOLDEN, &text(fixture::page(), Format::Text));
}

#[test]
fn the_reference_is_made_from_the_registry() {
    is_kept_in(REFERENCE, &reference::markdown());
}

/// A new counter that has no family must be noticed.
#[test]
fn everything_that_is_counted_is_on_the_page() {
    // Made only once, because pages show when series started to count.
    let (group, rest) = (fixture::busy(GroupKey::other(false)), fixture::page());
    let page = |change: &dyn Fn(&mut GroupCounters)| {
        let mut group = group.clone();
        change(&mut group.counters);
        let snapshot = Arc::new(Snapshot { groups: vec![group], ..Snapshot::default() });
        bytes(Page { snapshot, ..rest.clone() }, Format::Protobuf)
    };
    assert_eq!(page(&|_| {}), page(&|_| {}));
    let before = page(&|_| {});
    // Large enough to be seen in a value in seconds.
    let more = |totals: &mut [u8], at: usize| totals[8 * at + 3] ^= 1;
    // These are shown as parts that add up to them.
    let in_parts = [offset_of!(SocketTotals, observed_ns), offset_of!(SocketTotals, reader_limited_ns)];
    for at in (0..size_of::<SocketTotals>() / 8).filter(|at| !in_parts.contains(&(8 * at))) {
        assert_ne!(page(&|counters| more(counters.sockets.as_mut_bytes(), at)), before, "cell {at} of SocketTotals");
    }
    for at in 0..size_of::<ReaderTotals>() / 8 {
        assert_ne!(page(&|counters| more(counters.readers.as_mut_bytes(), at)), before, "cell {at} of ReaderTotals");
    }
}

#[test]
fn every_family_has_sources_that_status_shows() {
    let host = Sources::open(Vec::new(), KernelLog::open()).read();
    let probes = tcpmon_btf::plan::PROBES.iter().map(|probe| probe.name);
    let known: HashSet<&str> =
        host.sources.iter().map(|source| source.name).chain(probes).chain(["snapshot", "tcpmon"]).collect();
    for family in families() {
        assert!(!family.sources.is_empty(), "{family:?}");
        for source in family.sources {
            assert!(known.contains(source), "{}: {source} is none of {known:?}", family.name);
        }
    }
}

#[test]
fn families_are_named_after_their_unit_and_type_and_explained_in_a_sentence() {
    let mut names = HashSet::new();
    for family in families() {
        let name = family.name;
        let stem = family.name_without_type();
        assert_eq!(name.strip_prefix(stem), Some(family.kind.suffix()));
        assert!(family.unit.is_empty() || stem.ends_with(&format!("_{}", family.unit)), "{name}");
        assert!(name.starts_with("tcpmon_") || name.starts_with("process_"), "{name}");
        assert!(names.insert(name), "{name} is defined twice");
        assert!(family.help.ends_with('.'), "{name}");
        // The formats escape help texts differently, so help texts contain nothing that needs escaping.
        assert!(!family.help.contains(['"', '\\', '\n']), "{name}");
        assert!(family.labels.len() <= 3, "{name}");
    }
}

#[test]
fn every_family_is_shown_with_the_labels_it_declares() {
    let shown = protobuf(fixture::page());
    assert_eq!(shown.len(), families().count());
    for (family, shown) in families().zip(&shown) {
        assert_eq!(shown.name, family.name);
        assert_eq!(shown.help, family.help);
        let group = ["process", "service"].into_iter().filter(|_| family.scope == Scope::Group);
        let declared: Vec<&str> = group.chain(family.labels.iter().copied()).collect();
        for metric in &shown.metric {
            let labels: Vec<&str> = metric.label.iter().map(|label| label.name.as_str()).collect();
            assert_eq!(labels, declared, "{}", family.name);
        }
    }
}

#[test]
fn the_cgroup_is_a_label_when_the_group_has_one() {
    let cgroup = Some(Arc::new(Cgroup { label: "c.service".into(), ..Cgroup::default() }));
    let key = GroupKey { process: "a".into(), service: "b".into(), cgroup };
    let snapshot = Arc::new(fixture::snapshot(vec![fixture::busy(key)]));
    let page = text(Page { snapshot, ..fixture::page() }, Format::Text);
    let line = "tcpmon_receive_drops_total{process=\"a\",service=\"b\",\
                cgroup=\"c.service\",reason=\"tcp_ofomerge\",effect=\"harmless\"} 15";
    assert!(samples(&page).contains(&line), "{page}");
}

#[test]
fn openmetrics_has_the_same_samples_and_ends_with_its_mark() {
    let openmetrics = text(fixture::page(), Format::OpenMetrics);
    assert_eq!(samples(&openmetrics), samples(&text(fixture::page(), Format::Text)));
    assert!(openmetrics.ends_with("\n# EOF\n"));
    assert!(openmetrics.contains("\n# TYPE tcpmon_receive_bytes counter\n# UNIT tcpmon_receive_bytes bytes\n"));
    assert!(openmetrics.contains("\n# TYPE tcpmon_probe info\n"));
}

#[test]
fn protobuf_tells_since_when_a_series_counts_unless_it_is_older_than_tcpmon() {
    let page = fixture::page();
    let since = page.identity.since;
    let mut before = fixture::busy(GroupKey::other(false));
    before.born = since - Duration::from_secs(1);
    let mut after = fixture::busy(GroupKey { process: "z".into(), ..GroupKey::other(false) });
    after.born = since + Duration::from_millis(2250);
    let snapshot = Arc::new(fixture::snapshot(vec![before, after]));
    // The kernel counts these since the host booted or the driver was loaded.
    let older = ["tcpmon_device_", "tcpmon_softnet_", "tcpmon_context_switches_", "tcpmon_psi_"];
    for (family, shown) in families().zip(protobuf(Page { snapshot, ..page })) {
        for metric in shown.metric {
            let counter = metric.counter.and_then(|counter| counter.start_timestamp);
            let start = counter.or(metric.histogram.and_then(|histogram| histogram.start_timestamp));
            let start = start.map(|start| (start.seconds, start.nanos));
            let expected = match (family.scope, family.kind, metric.label.first()) {
                (Scope::Group, FamilyType::Counter | FamilyType::Histogram, Some(process)) if process.value == "z" => {
                    Some((1_700_000_102, 750_000_000))
                }
                (Scope::Group, FamilyType::Counter | FamilyType::Histogram, _) => Some((1_700_000_099, 500_000_000)),
                (_, FamilyType::Counter, _) if !older.iter().any(|name| family.name.starts_with(name)) => {
                    Some((1_700_000_000, 250_000_000))
                }
                _ => None,
            };
            assert_eq!(start, expected, "{} {:?}", family.name, metric.label);
        }
    }
}

#[test]
fn a_group_without_entries_has_no_histograms_in_any_format_and_all_else() {
    // The second group of the fixture.
    let idle = "odd \\\"name\\\" \\\\ \\n";
    for format in [Format::Text, Format::OpenMetrics] {
        let page = text(fixture::page(), format);
        let of = |process: &str, part: &str| {
            let of_process = format!("process=\"{process}\"");
            samples(&page).iter().filter(|line| line.contains(&of_process) && line.contains(part)).count()
        };
        assert_eq!((of(idle, "_bucket{"), of(idle, "_count{"), of(idle, "_sum{")), (0, 0, 0), "{page}");
        assert_eq!((of("iperf3", "_count{"), of("iperf3", "_sum{")), (5, 5), "{page}");
        let drops = of("iperf3", "tcpmon_receive_drops_total{");
        assert_eq!(of(idle, ""), of("iperf3", "") - drops - of("iperf3", "_bucket{") - 10, "{page}");
    }
    let histograms =
        protobuf(fixture::page()).into_iter().filter(|family| family.kind() == proto::MetricType::Histogram);
    let metrics: Vec<_> = histograms.flat_map(|family| family.metric).collect();
    assert_eq!(metrics.len(), 5);
    assert!(metrics.iter().all(|metric| metric.label[0].value == "iperf3"), "{metrics:?}");
}

#[test]
fn families_without_samples_are_left_out_of_the_page() {
    let page = Page { snapshot: Arc::default(), host: Arc::default(), usage: None, ..fixture::page() };
    let page = text(page, Format::Text);
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let families: Vec<_> = families.filter_map(|line| line.split(' ').next()).collect();
    let expected = [
        "tcpmon_build_info",
        "tcpmon_groups_suppressed_total",
        "tcpmon_sockets_found_late_total",
        "tcpmon_groups_held_at_zero",
        "tcpmon_scrape_duration_seconds",
        "process_start_time_seconds",
    ];
    assert_eq!(families, expected);
}

#[test]
fn protobuf_pages_are_delimited_messages() {
    let page = bytes(fixture::page(), Format::Protobuf);
    let mut rest = page.as_slice();
    let mut messages = 0;
    while !rest.is_empty() {
        let (mut length, mut shift) = (0, 0);
        while let [byte, tail @ ..] = rest {
            rest = tail;
            length |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        rest = &rest[length..];
        messages += 1;
    }
    assert_eq!(messages, families().count());
}

/// Counts per bucket of the two forms as a server reads them: upper bound and count.
struct Read {
    classic: Vec<(f64, u64)>,
    zero: (f64, u64),
    native: Vec<(f64, u64)>,
}

fn read(histogram: &proto::HistogramValue) -> Read {
    let mut below = 0;
    let classic = histogram.bucket.iter().map(|bucket| {
        let count = bucket.cumulative_count - below;
        below = bucket.cumulative_count;
        (bucket.upper_bound, count)
    });
    let classic = classic.collect();
    assert_eq!(histogram.schema, 0);
    let mut native = Vec::new();
    let (mut index, mut count, mut deltas) = (0, 0, histogram.positive_delta.iter());
    for span in &histogram.positive_span {
        index += span.offset;
        for _ in 0..span.length {
            count += deltas.next().expect("a delta for each bucket");
            native.push((2f64.powi(index), count as u64));
            index += 1;
        }
    }
    assert_eq!(deltas.next(), None);
    Read { classic, zero: (histogram.zero_threshold, histogram.zero_count), native }
}

/// Compares with bins that are given by their upper bounds.
fn check(histogram: &proto::HistogramValue, bins: &[(f64, u64)], last_native: f64) {
    let read = read(histogram);
    let total: u64 = bins.iter().map(|bin| bin.1).sum();
    let between =
        |low: f64, high: f64| -> u64 { bins.iter().filter(|bin| bin.0 > low && bin.0 <= high).map(|bin| bin.1).sum() };
    assert_eq!(histogram.sample_count, total);

    let mut low = f64::NEG_INFINITY;
    for (high, count) in &read.classic {
        assert_eq!(*count, between(low, *high), "classic bucket up to {high}");
        low = *high;
    }
    assert_eq!(low, f64::INFINITY);

    let (threshold, zeros) = read.zero;
    assert_eq!(zeros, between(f64::NEG_INFINITY, threshold));
    let mut seen = zeros;
    for (high, count) in &read.native {
        assert!(*high > threshold && *high <= last_native, "native bucket up to {high}");
        let high_of_bins = if *high == last_native { f64::INFINITY } else { *high };
        assert_eq!(*count, between(high / 2.0, high_of_bins), "native bucket up to {high}");
        seen += count;
    }
    assert_eq!(seen, total, "native buckets and zero bucket hold all");
}

#[test]
fn many_groups_make_one_family_of_all_their_metrics() {
    let group = |number: usize| {
        let key = GroupKey { service: format!("local:{number}"), ..GroupKey::other(false) };
        fixture::busy(key)
    };
    let snapshot = Arc::new(fixture::snapshot((0..1_000).map(group).collect()));
    let families = protobuf(Page { snapshot, ..fixture::page() });
    let received: Vec<_> = families.iter().filter(|family| family.name == "tcpmon_receive_bytes_total").collect();
    assert!(received.len() == 1 && received[0].help.starts_with("In-order"), "{}", received[0].help);
    assert_eq!(received[0].metric.len(), 1_000);
    assert!(
        received[0].metric.iter().zip(0..).all(|(metric, number)| metric.label[1].value == format!("local:{number}"))
    );
}

fn histograms(group: crate::model::snapshot::Group, name: &str) -> Vec<proto::HistogramValue> {
    let snapshot = Arc::new(fixture::snapshot(vec![group]));
    let families = protobuf(Page { snapshot, ..fixture::page() });
    let family = families.into_iter().find(|family| family.name == name).expect(name);
    family.metric.into_iter().filter_map(|metric| metric.histogram).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn fill_histograms_tell_the_truth_in_both_forms(
        bins in prop::array::uniform20(prop_oneof![Just(0), 0..3u64, 0..1u64 << 50]),
    ) {
        let mut group = fixture::busy(GroupKey::other(false));
        let totals = &mut group.counters.sockets;
        totals.fill_sums[FILL_DEACTIVATION] = 160;
        for (bin, count) in totals.fills.iter_mut().zip(bins) {
            bin[FILL_DEACTIVATION] = count;
        }
        let histogram = &histograms(group, "tcpmon_timeslice_fill_ratio")[1];
        prop_assert_eq!(histogram.sample_sum, 0.25);
        let mut bounded = [(f64::INFINITY, 0); FILL_BINS];
        for (i, bin) in bounded.iter_mut().enumerate() {
            if let Some(bound) = FILL_BOUNDS.get(i) {
                bin.0 = f64::from(*bound) / f64::from(FILL_ONE);
            }
            bin.1 = bins[i];
        }
        check(histogram, &bounded, 8.0);
    }

    #[test]
    fn duration_histograms_tell_the_truth_in_both_forms(
        bins in prop::array::uniform32(prop_oneof![Just(0), 0..3u64, 0..1u64 << 50]),
    ) {
        let mut group = fixture::busy(GroupKey::other(false));
        (group.counters.readers.run_queue_wait, group.counters.readers.run_queue_wait_ns) = (bins, 2_500_000_000);
        let histogram = &histograms(group, "tcpmon_reader_run_queue_wait_seconds")[0];
        prop_assert_eq!(histogram.sample_sum, 2.5);
        let mut bounded = [(f64::INFINITY, 0); TIME_BINS];
        for (i, bin) in bounded.iter_mut().enumerate() {
            if i + 1 < TIME_BINS {
                bin.0 = 2f64.powi(TIME_FIRST_EXPONENT + i as i32);
            }
            bin.1 = bins[i];
        }
        check(histogram, &bounded, 256.0);
    }
}
