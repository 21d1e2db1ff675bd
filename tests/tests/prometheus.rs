//! A real Prometheus reads tcpmon's output: formats, classic and native histograms, and alerts that go to Alertmanager.

mod common;

use std::io::Write as _;
use std::process::{Command, Stdio};

use common::{DEADLINE, sender};
use tcpmon_tests::page::Sample;
use tcpmon_tests::prometheus::{PrometheusOptions, Version};
use tcpmon_tests::traffic::Between;
use tcpmon_tests::{Alertmanager, Cgroup, Daemon, Lab, Namespace, Prometheus, Traffic, equal, eventually, rules};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0";
const PROTOBUF: &str = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

const HISTOGRAM: &str = "tcpmon_reader_run_queue_wait_seconds";

#[test]
fn histograms_arrive_native_where_asked_for_and_classic_otherwise_with_the_same_count() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("native").spawn();
    let running = sender(&lab, &reader).rate(1_000_000).message(1_000).bytes(200_000).hold_open().spawn();
    eventually(DEADLINE, "all is read", || equal(reader.report().bytes, 200_000));
    // From here on the reader waits for ever, so its histogram does not change.
    let labels = [("process", "native")];
    let count = daemon.scrape().sum(&format!("{HISTOGRAM}_count"), &labels);
    assert!(count > 10.0, "{count} activations");

    let host = Namespace::current();
    let of = |native_histograms| {
        Prometheus::start(&host, &daemon, PrometheusOptions { native_histograms, ..PrometheusOptions::default() })
    };
    let (native, classic) = (of(true), of(false));
    let selector = "{process=\"native\"}";
    let is = |prometheus: &Prometheus, expression: &str, expected: f64| {
        eventually(DEADLINE, &format!("{expression} is {expected}"), || match prometheus.value(expression)? {
            value if value == expected => Ok(()),
            value => Err(value.to_string()),
        });
    };
    is(&native, &format!("histogram_count({HISTOGRAM}{selector})"), count);
    is(&classic, &format!("{HISTOGRAM}_count{selector}"), count);
    is(&classic, &format!("{HISTOGRAM}_bucket{{process=\"native\",le=\"+Inf\"}}"), count);
    let none = |prometheus: &Prometheus, expression: &str| {
        assert_eq!(prometheus.query(expression).unwrap(), [], "{expression}");
    };
    none(&native, &format!("{HISTOGRAM}_bucket{selector}"));
    none(&classic, &format!("histogram_count({HISTOGRAM}{selector})"));
    let median = native.value(&format!("histogram_quantile(0.5, {HISTOGRAM}{selector})")).unwrap();
    let mean = native.value(&format!("histogram_sum({HISTOGRAM}{selector}) / {count}")).unwrap();
    assert!(median > 0.0 && mean > 0.0, "median {median}, mean {mean}");
    running.finish();
}

#[test]
fn an_alert_is_pending_then_firing_then_active_at_alertmanager_and_resolves() {
    let lab = Lab::new();
    let inside = lab.receiver();
    let daemon = Daemon::start_in(inside, &[]);
    let alertmanager = Alertmanager::start(inside);
    let text = "groups:\n- name: test\n  rules:\n  - alert: Reads\n    for: 5m\n    \
                expr: rate(tcpmon_receive_read_bytes_total{process=\"alerted\"}[5m]) > 1000\n    \
                annotations: {summary: 'reads {{ $labels.service }}'}\n";
    let rules = [rules::rescaled(text)];
    let options =
        PrometheusOptions { rules: &rules, alertmanager: Some(&alertmanager), ..PrometheusOptions::default() };
    let prometheus = Prometheus::start(inside, &daemon, options);
    assert_eq!(prometheus.alerting_rules().unwrap().into_iter().collect::<Vec<_>>(), [("Reads".to_owned(), true)]);
    eventually(DEADLINE, "the daemon is scraped", || prometheus.value("up").is_ok_and(|up| up == 1.0));
    assert_eq!(prometheus.alerts().unwrap(), []);

    let reader = Traffic::reader(lab.receiver()).comm("alerted").spawn();
    let running = sender(&lab, &reader).rate(1_000_000).spawn();
    let service = format!("local:{}", reader.port());
    let labels = [("process", "alerted"), ("service", service.as_str())];
    eventually(DEADLINE, "the alert is active", || {
        let alerts = alertmanager.alerts()?;
        match alerts.as_slice() {
            [alert] if alert.name == "Reads" && alert.state == "active" && alert.bears(&labels) => Ok(()),
            _ => Err(format!("{alerts:?}, at Prometheus {:?}", prometheus.alerts())),
        }
    });
    let alerts = prometheus.alerts().unwrap();
    assert!(alerts.iter().any(|alert| alert.state == "firing" && alert.bears(&labels)), "{alerts:?}");
    assert_eq!(alerts[0].annotations["summary"], format!("reads {service}"));
    assert_eq!(prometheus.alerted("alertstate=\"pending\"", 60).unwrap(), ["Reads"]);
    assert_eq!(prometheus.alerted("alertstate=\"firing\"", 60).unwrap(), ["Reads"]);

    running.finish();
    eventually(DEADLINE, "the alert is over", || match (prometheus.alerts()?, alertmanager.alerts()?) {
        (at_prometheus, at_alertmanager) if at_prometheus.is_empty() && at_alertmanager.is_empty() => Ok(()),
        alerts => Err(format!("{alerts:?}")),
    });
    let answer = prometheus.query("no such thing");
    assert!(answer.is_err(), "{answer:?}");
}

#[test]
fn counters_that_start_with_tcpmon_start_at_zero_and_those_of_the_kernel_do_not() {
    const VALUES: &str = "{__name__=~\"process_cpu_seconds_total|tcpmon_context_switches_total\"}[10m]";
    let daemon = Daemon::start(&[]);
    for created_timestamps in [true, false] {
        let options =
            PrometheusOptions { version: Version::Newest, created_timestamps, ..PrometheusOptions::default() };
        let prometheus = Prometheus::start(&Namespace::current(), &daemon, options);
        let starts = eventually(DEADLINE, "there are two scrapes", || {
            let values = prometheus.values(VALUES)?;
            let enough = values.len() == 2 && values.iter().all(|values| values.len() > 2);
            if enough { Ok(values) } else { Err(format!("{values:?}")) }
        });
        let mut starts: Vec<f64> = starts.iter().map(|values| values[0]).collect();
        starts.sort_by(f64::total_cmp);
        // CPU time is below a minute, and the host has switched more often than that.
        assert!((0.0..60.0).contains(&starts[0]) && starts[1] > 60.0, "{starts:?}");
        assert_eq!(starts[0] == 0.0, created_timestamps, "{starts:?}");
        assert_eq!(prometheus.value("up"), Ok(1.0));
    }
}

#[test]
fn every_format_is_served_by_its_type() {
    let daemon = Daemon::start(&[]);
    let text = daemon.get("/metrics", "");
    assert_eq!((text.status, text.content_type.as_str()), (200, "text/plain; version=0.0.4; charset=utf-8"));
    let open = daemon.get("/metrics", OPENMETRICS);
    assert!(open.content_type.starts_with("application/openmetrics-text; version=1.0.0"), "{}", open.content_type);
    let end = open.body.len().saturating_sub(6);
    assert_eq!(String::from_utf8_lossy(&open.body[end..]), "# EOF\n");
    let binary = daemon.get("/metrics", PROTOBUF);
    assert!(binary.content_type.starts_with("application/vnd.google.protobuf"), "{}", binary.content_type);
    let names = String::from_utf8_lossy(&binary.body);
    assert!(names.contains("tcpmon_receive_bytes_tot"), "{names}");
}

#[test]
fn promtool_finds_nothing_to_complain_about() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("promtool").spawn();
    sender(&lab, &reader).bytes(1_000_000).spawn().wait();
    reader.wait();
    let page = daemon.get("/metrics", "").body;
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed by `cargo xtask test` (package prometheus)");
    promtool.stdin.take().unwrap().write_all(&page).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.trim(), "", "promtool says nothing about a good page");
}

#[test]
fn readers_in_pods_get_the_names_of_their_pods_and_containers() {
    const UID: &str = "0c1a5f5e-7b0c-4a35-9d31-2f6f3f3c9a11";
    const RECORDED: &str = "namespace_pod_container_cause:tcpmon_receive_limited:rate5m{cause=\"application\"}";
    let containers = [("nginx", "0123456789abcdef".repeat(4)), ("proxy", "89abcdef01234567".repeat(4))];
    let lab = Lab::new();
    let top = Cgroup::new("join");
    let kubepods = top.child("kubepods");
    let pod = kubepods.child(&format!("pod{UID}"));
    let inner = containers.each_ref().map(|(_, id)| pod.child(id));
    let daemon = Daemon::start(&["--cgroup-label"]);
    let host = Namespace::current();
    // What kube-state-metrics would show of these containers, as series of their own.
    let known: String = containers
        .iter()
        .map(|(name, id)| {
            format!(
                "  - record: kube_pod_container_info\n    expr: vector(1)\n    labels: {{container: {name}, \
                 container_id: 'containerd://{id}', namespace: web, pod: nginx-x2v4k, uid: {UID}, image: x}}\n"
            )
        })
        .collect();
    let join = include_str!("../../deploy/kubernetes/join.yaml");
    let rules = [format!("groups:\n- name: kube\n  rules:\n{known}"), rules::rescaled(join)];
    let prometheus =
        Prometheus::start(&host, &daemon, PrometheusOptions { rules: &rules, ..PrometheusOptions::default() });
    let running = inner.each_ref().map(|cgroup| {
        let slow = Between::Sleep(20_000);
        let reader = Traffic::reader(lab.receiver()).comm("joined").chunk(1_000).between(slow).spawn();
        cgroup.take(reader.pid());
        let sender = sender(&lab, &reader).spawn();
        (reader, sender)
    });
    eventually(DEADLINE, "both containers have names, and wait for their readers", || {
        let samples = prometheus.query(RECORDED)?;
        let is_there = |container: &str| {
            let names = [("container", container), ("namespace", "web"), ("pod", "nginx-x2v4k")];
            let named = |sample: &&Sample| {
                names.iter().all(|(name, value)| sample.labels.get(*name).is_some_and(|found| found == value))
            };
            samples.iter().filter(named).any(|sample| sample.value > 0.5 && sample.value < 1.1)
        };
        let all = samples.len() == 2 && containers.iter().all(|(name, _)| is_there(name));
        if all { Ok(()) } else { Err(format!("{samples:?}, of {:?}", prometheus.query("tcpmon_cgroup_info"))) }
    });
    drop(running);
}
