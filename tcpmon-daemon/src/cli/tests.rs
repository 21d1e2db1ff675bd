//! Claims about flags, and the help texts as operators see them.

use std::{env, fs};

use super::*;
use crate::tests::is_kept_in;

fn parse(line: &str) -> Result<Command, clap::Error> {
    Cli::from_arguments(line.split_whitespace()).map(|cli| cli.command)
}

fn daemon(line: &str) -> DaemonArgs {
    match parse(&format!("tcpmon daemon {line}")) {
        Ok(Command::Daemon(args)) => args,
        other => panic!("{line}: {other:?}"),
    }
}

fn trace(line: &str) -> TraceArgs {
    match parse(&format!("tcpmon trace {line}")) {
        Ok(Command::Trace(args)) => args,
        other => panic!("{line}: {other:?}"),
    }
}

/// The message of a usage error, which must end tcpmon with status 2.
#[track_caller]
fn refused(line: &str) -> String {
    let error = parse(line).expect_err(line);
    assert_eq!(error.exit_code(), 2, "{line}");
    error.to_string()
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn the_help_text_matches_the_committed_file() {
    for name in ["help", "daemon", "trace", "report", "convert", "doctor"] {
        let line = if name == "help" { "tcpmon --help".into() } else { format!("tcpmon {name} --help") };
        let help = parse(&line).expect_err("help").to_string();
        is_kept_in(&format!("src/cli/{name}.txt"), &help);
        assert!(help.lines().all(|line| line.len() <= 110), "{help}");
    }
}

#[test]
fn flags_override_the_config_file() {
    let directory = env::temp_dir().join(format!("tcpmon-cli-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    let file = directory.join("tcpmon.toml");
    fs::write(
        &file,
        "max_groups = 5\nmax_readers = 6\npin = [\"a\"]\ncgroup_label = true\nweb.listen_address = [\":1\", \":2\"]\n",
    )
    .expect("a file");
    let args = daemon(&format!(
        "--config {} --max-groups 7 --web.listen-address [::1]:3 --cgroup-label=false --pin b --group-ttl 90s \
         --log.format json",
        file.display()
    ));
    let settings = args.settings().expect("valid");
    fs::remove_dir_all(&directory).expect("removed");
    assert_eq!((settings.max_groups, settings.max_readers), (7, 6));
    assert_eq!(settings.listen, ["[::1]:3".parse().expect("an address")]);
    assert!(!settings.cgroup_label);
    assert_eq!(settings.pin, ["b"]);
    assert_eq!(settings.group_ttl, Duration::from_secs(90));
    assert_eq!(settings.log.format, crate::config::LogFormat::Json);
}

#[test]
fn without_flags_the_defaults_apply_and_each_flag_is_applied() {
    assert_eq!(daemon("").config().expect("valid"), Config::default());
    let config = daemon(
        "--web.listen-address :1 --web.listen-address 127.0.0.1:2 --web.telemetry-path /m --web.config.file w.yml \
         --web.systemd-socket --max-groups 3 \
         --group-ttl 4m --pin nginx --pin postgres --cgroup-label --ephemeral-ports 50000-51000 \
         --ephemeral-ports 7-7 --max-sockets 2048 --max-readers 5 --max-drop-entries 6 --ring-bytes 131072 \
         --log.level debug --log.format json --collect.softnet=false --collect.sockstat=false \
         --collect.zones=false --collect.psi=false --collect.stat=false --collect.netstat=false \
         --probes.sched-switch=false \
         --probes.napi-poll=false --probes.kfree-skb=false",
    );
    let config = config.config().expect("valid");
    assert_eq!(config.web.listen_address, [":1", "127.0.0.1:2"]);
    assert_eq!(config.web.telemetry_path, "/m");
    assert_eq!((config.web.config_file.as_str(), config.web.systemd_socket), ("w.yml", true));
    assert_eq!((config.max_groups, config.group_ttl.as_str(), config.cgroup_label), (3, "4m", true));
    assert_eq!(config.pin, ["nginx", "postgres"]);
    assert_eq!(config.ephemeral_ports, ["50000-51000", "7-7"]);
    assert_eq!((config.max_sockets, config.max_readers), (2048, 5));
    assert_eq!((config.max_drop_entries, config.ring_bytes), (6, 131072));
    assert_eq!((config.log.level, config.log.format), (crate::config::LogLevel::Debug, crate::config::LogFormat::Json));
    assert_eq!(config.collect.switched_off(), ["softnet", "sockstat", "zones", "psi", "stat", "netstat"]);
    let probes = ["sched_switch", "napi_poll", "kfree_skb"];
    assert_eq!(config.probes.switched_off(), probes);
    assert_eq!(daemon("--probes.profile light").config().expect("valid").probes.switched_off(), probes);
    assert_eq!(daemon("--probes.kfree-skb=false").config().expect("valid").probes.switched_off(), ["kfree_skb"]);
    assert_eq!(daemon("--collect.psi=false").config().expect("valid").collect.switched_off(), ["psi"]);
    assert!(daemon("--print-config").print_config);
}

#[test]
fn a_wrong_flag_is_named_with_a_remedy() {
    for (line, parts) in [
        ("daemon --web.listen-address localhost", ["--web.listen-address", "`127.0.0.1:10793`"]),
        ("daemon --web.telemetry-path /healthz", ["--web.telemetry-path", "`/status`"]),
        ("daemon --max-groups 0", ["--max-groups", "from 1 to 10000"]),
        ("daemon --pin=", ["--pin", "not a process name"]),
        ("daemon --ephemeral-ports 50000", ["--ephemeral-ports", "`50000-51000`"]),
        ("daemon --group-ttl 10", ["--group-ttl", "`10m`"]),
        ("daemon --ring-bytes 5000000", ["--ring-bytes", "for example 8388608"]),
        ("daemon --ring-bytes x", ["--ring-bytes", "not a number"]),
        ("daemon --log.level loud", ["--log.level", "warn"]),
        ("daemon --nonsense", ["--nonsense", "Usage: tcpmon daemon"]),
        ("trace --pid 0", ["--pid", "0"]),
        ("trace --port 65536", ["--port", "65536"]),
        ("trace --all --duration soon", ["--duration", "`30s`"]),
        ("trace --all --format xml", ["--format", "jsonl"]),
        ("trace --all --rotate 1GiB", ["--output <FILE>", "Usage: tcpmon trace"]),
        ("trace --all --output f --rotate 5", ["--rotate", "such as 10m"]),
        ("trace --all --output f --rotate 10ms", ["--rotate", "the minimum is 1s"]),
        ("trace --all --output f --rotate 0MB", ["--rotate", "is not a size"]),
        ("trace --all --output f --keep 3", ["--keep needs --rotate or --ring", "Usage: tcpmon trace"]),
        ("trace --all --output f --ring 5s --trigger load>3", ["--trigger", "`zero-window>1s`"]),
        ("trace --all --output f --trigger drop", ["--ring <TIME>", "Usage: tcpmon trace"]),
        ("convert run.jsonl", ["<OUTPUT>", "Usage: tcpmon convert"]),
    ] {
        let message = refused(&format!("tcpmon {line}"));
        for part in parts {
            assert!(message.contains(part), "{message:?} lacks {part:?}");
        }
    }
    refused("tcpmon");
}

#[test]
fn a_trace_needs_a_filter() {
    let message = refused("tcpmon trace --duration 1s");
    assert!(message.contains("nothing to trace: add --pid"), "{message}");
    assert!(message.contains("Usage: tcpmon trace"), "{message}");
    assert_eq!(trace("-- iperf3 -s").command, ["iperf3", "-s"]);
    assert!(refused("tcpmon trace --pid 1 -- iperf3 -s").contains("cannot be used with"));
    assert!(refused("tcpmon trace --all --follow").contains("--pid <PID>"));
    assert_eq!(trace("--all --start-at +30s").start_at, Some(StartTime::After(Duration::from_secs(30))));
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(7_258_118_400);
    assert_eq!(trace("--all --start-at 2200-01-01T00:00:00Z").start_at, Some(StartTime::At(at)));
    assert!(refused("tcpmon trace --all --start-at noon").contains("--start-at <TIME>"));
    let nine = "--cgroup x ".repeat(9);
    assert!(refused(&format!("tcpmon trace {nine}")).contains("at most 8 times"));
}

#[test]
fn filters_combine_and_repeat() {
    let args = trace("--pid 1 --pid 2 --comm a --port 80 --cgroup x --all --duration 1m --ring-bytes 131072");
    assert_eq!((args.pid, args.comm, args.port), (vec![1, 2], vec!["a".to_owned()], vec![80]));
    assert_eq!(args.cgroup, [PathBuf::from("x")]);
    assert!(args.all);
    assert_eq!(args.duration, Some(Duration::from_secs(60)));
    assert_eq!(args.ring_bytes, 131_072);
    assert_eq!(trace("--all").ring_bytes, 8 << 20);
}

#[test]
fn the_default_format_follows_from_the_name_of_the_file() {
    let plain = |format| FileFormat { format, compression: Compression::None };
    assert_eq!(trace("--all").format(), plain(TraceFormat::Table));
    assert_eq!(trace("--all --output f").format(), plain(TraceFormat::Jsonl));
    assert_eq!(trace("--all --output f.x --format table").format(), plain(TraceFormat::Table));
    for (name, format, compression) in [
        ("run.parquet", TraceFormat::Parquet, Compression::None),
        ("run.pftrace", TraceFormat::Perfetto, Compression::None),
        ("run.perfetto-trace", TraceFormat::Perfetto, Compression::None),
        ("run.csv", TraceFormat::Csv, Compression::None),
        ("run.json", TraceFormat::Jsonl, Compression::None),
        ("run.jsonl.gz", TraceFormat::Jsonl, Compression::Gzip),
        ("run.csv.zst", TraceFormat::Csv, Compression::Zstd),
        ("run.gz", TraceFormat::Jsonl, Compression::Gzip),
        ("/dev/stdout", TraceFormat::Jsonl, Compression::None),
    ] {
        assert_eq!(trace(&format!("--all --output {name}")).format(), FileFormat { format, compression }, "{name}");
    }
    for name in ["run.pcapng", "run.xlsx", "run.perfetto", "run.parquet.gz"] {
        for command in ["trace --all --output", "convert in.jsonl"] {
            let arguments = format!("tcpmon {command} {name}");
            let refused = Cli::from_arguments(arguments.split(' ')).expect_err(name).to_string();
            assert!(refused.contains(&format!("{name}: ")), "{refused}");
            let says_what_would_do = refused.contains("use .jsonl, .parquet, .pftrace or .csv");
            assert_eq!(says_what_would_do, name != "run.parquet.gz", "{refused}");
        }
    }
}

#[test]
fn a_build_without_the_formats_says_how_to_get_them() {
    for (name, is_small) in [
        ("run.jsonl", true),
        ("run.jsonl.gz", true),
        ("run.jsonl.zst", false),
        ("run.parquet", false),
        ("run.pftrace", false),
        ("run.csv", false),
    ] {
        let format = trace(&format!("--all --output {name}")).format();
        assert_eq!(format.check_in(true), Ok(format), "{name}");
        match format.check_in(false) {
            Ok(same) => assert!(is_small && same == format, "{name}"),
            Err((_, problem)) => {
                assert!(!is_small && problem.contains("packages") && problem.contains("--features full"), "{name}")
            }
        }
    }
}

#[test]
fn a_file_ends_after_a_size_or_a_time() {
    let rotate = |text: &str| trace(&format!("--all --output f --rotate {text}")).rotate;
    assert_eq!(rotate("1GiB"), Some(RotateAt::Bytes(1 << 30)));
    assert_eq!(rotate("500MB"), Some(RotateAt::Bytes(500_000_000)));
    assert_eq!(rotate("10m"), Some(RotateAt::Time(Duration::from_secs(600))));
    assert_eq!(trace("--all --output f --rotate 1h --keep 24").keep, Some(Keep::Files(24)));
    assert_eq!(trace("--all --output f --ring 1h --keep 2GB").keep, Some(Keep::Bytes(2_000_000_000)));
}

#[test]
fn the_doctor_takes_rates_and_round_trips_as_people_write_them() {
    let goal = |line: &str| match parse(line).expect(line) {
        Command::Doctor(args) => (args.bandwidth, args.rtt),
        other => panic!("{other:?}"),
    };
    assert_eq!(goal("tcpmon doctor"), (None, Duration::from_millis(100)));
    assert_eq!(goal("tcpmon doctor --bandwidth 100G --rtt 60ms"), (Some(100_000_000_000), Duration::from_millis(60)));
    for (text, rate) in
        [("2.5Gbit/s", 2_500_000_000), ("100 Mbps", 100_000_000), ("1000000", 1_000_000), ("1T", 1_000_000_000_000)]
    {
        assert_eq!(parse_rate(text), Ok(rate), "{text}");
    }
    for wrong in [
        "--bandwidth -1",
        "--bandwidth 0",
        "--bandwidth 11T",
        "--bandwidth fast",
        "--rtt 0s",
        "--rtt -1",
        "--rtt 2m",
        "--format xml",
    ] {
        assert!(refused(&format!("tcpmon doctor {wrong}")).contains("--"), "{wrong}");
    }
    assert!(refused("tcpmon doctor --bandwidth -1").contains("such as 2.5G or 100M"));
}
