//! `tcpmon doctor`: its facts are those of sysctl, ethtool and `/proc`; what is changed is found; it changes nothing.

mod common;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

use common::{run, tcpmon};
use serde_json::{Value, json};
use tcpmon_tests::lab::End;
use tcpmon_tests::{Daemon, Lab, report, tcpmon_binary};

/// The doctor's answer to one call.
struct Answer {
    code: Option<i32>,
    json: Value,
}

impl Answer {
    /// What it says of the host, in this end's network namespace.
    fn of(end: &End, arguments: &[&str]) -> Self {
        Self::from(&end.run(|| doctor(arguments).output().expect("tcpmon can be started")))
    }

    fn from(output: &Output) -> Self {
        let text = String::from_utf8_lossy(&output.stdout);
        let json = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        Self { code: output.status.code(), json }
    }

    /// What each rule found, by the rule.
    fn findings(&self) -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let findings = self.json["findings"].as_array().expect("a list");
        findings.iter().map(|finding| (text(&finding["rule"]), text(&finding["found"]))).collect()
    }

    /// What a rule that found something says to set.
    fn advice(&self, rule: &str) -> &str {
        let mut findings = self.json["findings"].as_array().expect("a list").iter();
        let finding = findings.find(|finding| finding["rule"] == rule);
        finding.unwrap_or_else(|| panic!("{rule}: {}", self.json))["set"].as_str().expect("a text")
    }
}

fn doctor(arguments: &[&str]) -> Command {
    let mut command = tcpmon(&["doctor", "--format", "json"]);
    command.args(arguments);
    command
}

/// What a tool prints in this end's network namespace.
fn tool(end: &End, program: &str, arguments: &[&str]) -> String {
    let output = end.run(|| Command::new(program).args(arguments).output()).expect("it is installed");
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("it prints text")
}

/// The numbers in what sysctl(8) prints.
fn sysctl(end: &End, name: &str) -> Vec<u64> {
    let text = tool(end, "sysctl", &["-n", name]);
    text.split_ascii_whitespace().map(|word| word.parse().expect("a number")).collect()
}

/// What ethtool(8) prints of a device of this process's network namespace; none if the device does not have it.
fn ethtool(option: &str, device: &str) -> Option<String> {
    let output = Command::new("ethtool").args([option, device]).output().expect("it is installed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || said.contains("not supported"), "ethtool {option} {device}: {output:?}");
    output.status.success().then(|| String::from_utf8(output.stdout).expect("it prints text"))
}

/// The numbers that ethtool(8) prints after this word; 0 for one that the device does not have (`n/a`).
fn numbers_of(text: &str, word: &str) -> Vec<u64> {
    let found = text.lines().filter_map(|line| Some(line.strip_prefix(word)?.strip_prefix(':')?.trim()));
    found.map(|number| if number == "n/a" { 0 } else { number.parse().expect("a number") }).collect()
}

/// Compares what the doctor reads of a device with what ethtool(8) prints.
fn compare_with_ethtool(device: &Value) {
    let name = device["name"].as_str().expect("a name");
    let features = ethtool("-k", name).expect("each device has features");
    let words = features.lines().find_map(|line| line.trim().strip_prefix("rx-gro-hw: ")).expect("the kernel knows it");
    // What is off and fixed, it cannot have.
    let gro_hw = match words {
        "off [fixed]" => Value::Null,
        words => Value::Bool(words.starts_with("on")),
    };
    assert_eq!(device["gro_hw"], gro_hw, "{name}: {features}");
    let channels = ethtool("-l", name).map_or(Value::Null, |text| {
        let (own, both) = (numbers_of(&text, "RX"), numbers_of(&text, "Combined"));
        json!({ "queues": own[1] + both[1], "max_queues": own[0].max(both[0]) })
    });
    assert_eq!(device["channels"], channels, "{name}");
    let coalescing = ethtool("-c", name).map_or(Value::Null, |text| {
        let is_adaptive = text.lines().any(|line| line.starts_with("Adaptive RX: on"));
        json!({
            "is_adaptive": is_adaptive,
            "usecs": numbers_of(&text, "rx-usecs")[0],
            "packets": numbers_of(&text, "rx-frames")[0],
        })
    });
    assert_eq!(device["coalescing"], coalescing, "{name}");
    let sizes = ethtool("-g", name).map(|text| numbers_of(&text, "TX")).filter(|sizes| sizes[0] > 0);
    let ring = sizes.map_or(Value::Null, |sizes| json!({ "entries": sizes[1], "max_entries": sizes[0] }));
    assert_eq!(device["tx_ring"], ring, "{name}");
}

#[test]
fn facts_of_the_hosts_own_devices_are_those_of_ethtool() {
    let entries = fs::read_dir("/sys/class/net").unwrap().map(|entry| entry.unwrap().path());
    let on_a_bus = entries.filter(|path| path.join("device").exists());
    let names: Vec<_> = on_a_bus.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    if names.is_empty() {
        return report::not_supported("this machine has no network device on a bus");
    }
    let arguments: Vec<_> = names.iter().flat_map(|name| ["--device", name]).collect();
    let answer = Answer::from(&doctor(&arguments).output().unwrap());
    let devices = answer.json["facts"]["devices"].as_array().unwrap();
    assert_eq!(devices.len(), names.len(), "{}", answer.json);
    for device in devices {
        compare_with_ethtool(device);
    }
}

#[test]
fn facts_are_those_of_other_tools() {
    let lab = Lab::new();
    let end = lab.receiver();
    let answer = Answer::of(end, &["--device", &end.device]);
    let (run, host) = (&answer.json["facts"]["run"], &answer.json["facts"]["host"]);
    for (fact, name) in [
        ("rmem_max", "net.core.rmem_max"),
        ("wmem_max", "net.core.wmem_max"),
        ("netdev_budget_usecs", "net.core.netdev_budget_usecs"),
        ("overcommit_memory", "vm.overcommit_memory"),
        ("min_free_kbytes", "vm.min_free_kbytes"),
        ("netdev_max_backlog", "net.core.netdev_max_backlog"),
        ("netdev_budget", "net.core.netdev_budget"),
        ("window_scaling", "net.ipv4.tcp_window_scaling"),
        ("timestamps", "net.ipv4.tcp_timestamps"),
        ("sack", "net.ipv4.tcp_sack"),
        ("moderate_rcvbuf", "net.ipv4.tcp_moderate_rcvbuf"),
        ("optmem_max", "net.core.optmem_max"),
        ("ip_forward", "net.ipv4.ip_forward"),
    ] {
        // Some settings are only in the first network namespace before Linux 6.9.
        match host[fact].as_u64() {
            Some(found) => assert_eq!(vec![found], sysctl(end, name), "{name}"),
            None => assert!(host[fact]["unknown"].as_str().unwrap().contains("No such file"), "{fact}: {host}"),
        }
    }
    let numbers = |value: &Value| serde_json::from_value::<Vec<u64>>(value.clone()).unwrap();
    assert_eq!(numbers(&host["tcp_rmem"]), sysctl(end, "net.ipv4.tcp_rmem"));
    // Only the first network namespace has this one.
    let first = Answer::from(&doctor(&[]).output().unwrap());
    let tcp_mem = fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").unwrap();
    let tcp_mem: Vec<u64> = tcp_mem.split_ascii_whitespace().map(|word| word.parse().unwrap()).collect();
    assert_eq!(numbers(&first.json["facts"]["host"]["tcp_mem"]), tcp_mem);
    let first = tool(end, "sysctl", &["-n", "net.ipv4.tcp_congestion_control"]);
    assert_eq!(host["congestion_control"], first.trim());
    assert_eq!(host["page_bytes"].to_string(), tool(end, "getconf", &["PAGESIZE"]).trim());
    assert_eq!(host["cpus"].to_string(), tool(end, "getconf", &["_NPROCESSORS_ONLN"]).trim());
    assert_eq!(run["prerequisites"]["release"], tool(end, "uname", &["-r"]).trim());
    let memory = tool(end, "free", &["-b"]);
    let memory = memory.lines().find_map(|line| line.strip_prefix("Mem:")).unwrap();
    assert_eq!(host["memory_bytes"].to_string(), memory.split_ascii_whitespace().next().unwrap());
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    let swapped: u64 =
        swaps.lines().skip(1).map(|line| line.split_whitespace().nth(3).unwrap().parse::<u64>().unwrap()).sum();
    assert!(host["swapped_bytes"].as_u64().unwrap().abs_diff(swapped << 10) < 1 << 20, "{swaps} {host}");
    let squeezed: u64 = fs::read_to_string("/proc/net/softnet_stat")
        .unwrap()
        .lines()
        .map(|line| u64::from_str_radix(line.split_ascii_whitespace().nth(2).unwrap(), 16).unwrap())
        .sum();
    assert!(host["softnet"]["time_squeezed"].as_u64().unwrap() <= squeezed, "{host}");

    let device = &answer.json["facts"]["devices"][0];
    let features = tool(end, "ethtool", &["-k", &end.device]);
    let is_on = |feature: &str| features.lines().any(|line| line.trim().starts_with(&format!("{feature}: on")));
    assert_eq!(device["gro"].as_bool(), Some(is_on("generic-receive-offload")), "{features}");
    assert_eq!(device["lro"].as_bool(), Some(is_on("large-receive-offload")), "{features}");
    // A veth cannot have this one, and has no interrupts.
    assert!(features.contains("rx-gro-hw: off [fixed]") && device["gro_hw"].is_null(), "{device} {features}");
    let offloads = device["offloads"].as_object().unwrap();
    // ethtool(8) has names of its own for some.
    let named = |line: &str| offloads.get(line.trim().split_once(": ")?.0)?.as_bool();
    let compared: Vec<_> = features.lines().filter_map(|line| Some((line, named(line)?))).collect();
    assert!(compared.iter().all(|(line, is_on)| line.contains(": on") == *is_on), "{device} {features}");
    assert!(compared.len() >= 10 && offloads["tx-tcp-segmentation"] == true, "{device} {features}");
    assert!(device["tx_ring"].is_null(), "{device}");
    assert!(device["coalescing"].is_null(), "{device}");
    assert!(device["pcie"]["unknown"].as_str().unwrap().contains("another network namespace"), "{device}");
    let channels = tool(end, "ethtool", &["-l", &end.device]);
    let receive: Vec<u64> = channels.lines().filter_map(|line| line.strip_prefix("RX:")?.trim().parse().ok()).collect();
    assert_eq!(
        (device["channels"]["max_queues"].as_u64(), device["channels"]["queues"].as_u64()),
        (Some(receive[0]), Some(receive[1])),
        "{channels}"
    );
    let driver = tool(end, "ethtool", &["-i", &end.device]);
    assert_eq!(driver.lines().next(), Some(&*format!("driver: {}", device["driver"].as_str().unwrap())));
    let settings = tool(end, "ethtool", &[&end.device]);
    let speed = device["speed"].as_u64().unwrap() / 1_000_000;
    assert!(settings.contains(&format!("Speed: {speed}Mb/s")), "{settings}");
    assert!(tool(end, "ip", &["link", "show", &end.device]).contains(&format!("mtu {} ", device["mtu"])), "{device}");
}

#[test]
fn the_queueing_disciplines_of_mq_are_those_that_tc_shows() {
    let lab = Lab::new();
    let end = lab.receiver();
    tool(end, "ip", &["link", "add", "queues0", "numtxqueues", "4", "type", "veth", "peer", "name", "queues1"]);
    tool(end, "tc", &["qdisc", "replace", "dev", "queues0", "root", "handle", "1:", "mq"]);
    tool(end, "tc", &["qdisc", "replace", "dev", "queues0", "parent", "1:2", "pfifo"]);
    let mut shown = BTreeMap::<_, u64>::new();
    for line in tool(end, "tc", &["qdisc", "show", "dev", "queues0"]).lines() {
        if line.contains(" parent 1:") {
            *shown.entry(line.split(' ').nth(1).expect("a kind").to_owned()).or_default() += 1;
        }
    }
    assert_eq!((shown.values().sum(), shown["pfifo"]), (4, 1), "{shown:?}");
    let answer = Answer::of(end, &["--device", "queues0"]);
    assert_eq!(answer.json["facts"]["devices"][0]["queue_qdiscs"], json!(shown));
    let found = &answer.findings()["device.qdisc"];
    assert!(found.contains("pfifo on 1"), "{found}");
}

#[test]
fn changed_settings_and_nothing_else_are_found_and_the_advice_ends_the_findings() {
    let lab = Lab::new();
    let end = lab.receiver();
    let examine = || Answer::of(end, &["--device", &end.device, "--rtt", "1ms", "--bandwidth", "1G"]);
    let findings = |answer: &Answer| -> Vec<String> {
        // These are of the whole host, and may change at any time: what it counted since it started, and daemons of
        // tests that run beside this one.
        let of_the_host = ["host.backlog-drops", "run.another"];
        answer.findings().into_keys().filter(|rule| !of_the_host.contains(&rule.as_str())).collect()
    };
    tool(end, "ethtool", &["-K", &end.device, "gro", "on"]);
    let before = findings(&examine());
    let sysctls = [
        ("net.ipv4.tcp_window_scaling", "0", "host.window-scaling"),
        ("net.ipv4.tcp_timestamps", "0", "host.timestamps"),
        ("net.ipv4.tcp_sack", "0", "host.sack"),
        ("net.ipv4.tcp_moderate_rcvbuf", "0", "host.autotuning"),
        ("net.ipv4.tcp_rmem", "4096 8192 16384", "host.rcv-buffer"),
    ];
    let mut expected = before.clone();
    for (name, value, rule) in sysctls {
        end.set_sysctl(name, value);
        expected.push(rule.to_owned());
    }
    tool(end, "ethtool", &["-K", &end.device, "gro", "off"]);
    expected.push("device.gro".into());
    expected.sort();
    let after = examine();
    assert_eq!(findings(&after), expected, "{}", after.json);
    assert_eq!(after.code, Some(1));
    // What it advises is what ends the finding.
    for rule in
        ["host.window-scaling", "host.timestamps", "host.sack", "host.autotuning", "host.rcv-buffer", "device.gro"]
    {
        tool(end, "sh", &["-c", after.advice(rule)]);
    }
    assert_eq!(findings(&examine()), before);
}

#[test]
fn facts_that_changed_since_an_answer_was_saved_are_listed_and_nothing_else() {
    let lab = Lab::new();
    let end = lab.receiver();
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let before = file("before.json");
    let ask = |arguments: &[&str]| {
        let arguments = [&["--device", &end.device], arguments].concat();
        let (code, out) = end.run(|| {
            let output = tcpmon(&["doctor"]).args(arguments).output().unwrap();
            (output.status.code(), [output.stdout, output.stderr].concat())
        });
        (code, String::from_utf8(out).unwrap())
    };
    let answer = Answer::of(end, &["--device", &end.device, "--save", &before]);
    let saved: Value = serde_json::from_slice(&fs::read(&before).unwrap()).unwrap();
    assert_eq!(saved, answer.json);
    assert_eq!(ask(&["--diff", &before]), (Some(0), "nothing has changed\n".into()));
    let sack = sysctl(end, "net.ipv4.tcp_sack")[0];
    end.set_sysctl("net.ipv4.tcp_sack", &(1 - sack).to_string());
    let gro = answer.json["facts"]["devices"][0]["gro"].as_bool().unwrap();
    tool(end, "ethtool", &["-K", &end.device, "gro", if gro { "off" } else { "on" }]);
    let expected = format!(
        "devices.{}.gro: {gro} -> {}\nhost.sack: {sack} -> {}\n\n2 facts have changed\n",
        end.device,
        !gro,
        1 - sack
    );
    assert_eq!(ask(&["--diff", &before]), (Some(1), expected));
    let changed = Answer::of(end, &["--device", &end.device, "--diff", &before]);
    assert_eq!(changed.json["differences"][1]["fact"], "host.sack", "{}", changed.json);
    // What was saved is not overwritten, and what is no answer is not compared.
    let (code, said) = ask(&["--save", &before]);
    assert!(code == Some(2) && said.contains("the file exists"), "{code:?} {said}");
    fs::write(file("other.json"), "{}").unwrap();
    let (code, said) = ask(&["--diff", &file("other.json")]);
    assert!(code == Some(2) && said.contains("not an answer of"), "{code:?} {said}");
    let (code, said) = ask(&["--diff", &file("none.json")]);
    assert!(code == Some(1) && said.contains("none.json: No such file"), "{code:?} {said}");
}

/// Runs the doctor without these capabilities.
fn without(capabilities: &[&str]) -> Answer {
    let sets: String = capabilities.iter().map(|capability| format!(",-{capability}")).collect();
    let sets = sets.trim_start_matches(',');
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", sets, "--inh-caps", sets]);
    command.arg(tcpmon_binary()).args(["doctor", "--format", "json"]);
    Answer::from(&command.output().expect("setpriv is installed"))
}

#[test]
fn a_missing_capability_is_named_and_tells_whether_tcpmon_runs() {
    let missing = |answer: &Answer| -> Vec<String> {
        answer.findings().into_keys().filter(|rule| rule.starts_with("run.cap-")).collect()
    };
    let all = without(&["checkpoint_restore"]);
    assert_eq!((missing(&all), &all.json["can_run"]), (vec![], &Value::Bool(true)), "{}", all.json);
    for (capabilities, rules, can_run) in [
        (&["sys_ptrace"][..], &["run.cap-sys-ptrace"][..], true),
        (&["sys_admin"], &["run.cap-sys-admin"], true),
        (&["bpf"], &[], true),
        (&["bpf", "sys_admin"], &["run.cap-bpf", "run.cap-sys-admin"], false),
        (&["perfmon", "sys_admin"], &["run.cap-perfmon", "run.cap-sys-admin"], false),
    ] {
        let answer = without(capabilities);
        assert_eq!(missing(&answer), rules, "without {capabilities:?}: {}", answer.json);
        assert_eq!(answer.json["can_run"], can_run, "without {capabilities:?}: {}", answer.json);
        assert_eq!(answer.code == Some(3), !can_run, "without {capabilities:?}: {:?}", answer.code);
    }
}

#[test]
fn another_tcpmon_and_a_container_are_found() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let answer = Answer::of(lab.receiver(), &[]);
    let found = &answer.findings()["run.another"];
    assert!(found.contains(&format!("{} (", daemon.pid())), "{found}");
    drop(daemon);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]).arg(tcpmon_binary()).args(["doctor", "--format", "json"]);
    let answer = Answer::from(&command.output().expect("unshare is installed"));
    assert_eq!(answer.findings()["run.container"], "this process has a PID namespace of its own");
    assert!(!answer.findings().contains_key("run.another"), "{}", answer.json);
}

#[test]
fn nothing_is_changed_and_no_program_is_left_behind() {
    let lab = Lab::new();
    let end = lab.receiver();
    let look = || {
        // Random numbers, counts and times change by themselves.
        let volatile = ["random.", "nr_", "-nr", "usage", "count", "dirty", "state", "ns_last_pid", "seed", "cpu_"];
        let all = end.run(|| Command::new("sysctl").arg("-a").output()).unwrap().stdout;
        let mut lines: Vec<_> = String::from_utf8_lossy(&all).lines().map(str::to_owned).collect();
        lines.retain(|line| !volatile.iter().any(|name| line.split('=').next().unwrap().contains(name)));
        (lines, tool(end, "ethtool", &["-k", &end.device]))
    };
    let before = look();
    assert!(before.0.len() > 500, "{}", before.0.len());
    let mut child = doctor(&["--device", &end.device]);
    let answer = end.run(|| child.output()).unwrap();
    assert!(answer.status.code().is_some_and(|code| code < 2), "{answer:?}");
    assert_eq!(look(), before);
}

#[test]
fn people_see_every_finding_of_the_programs_format() {
    let lab = Lab::new();
    let end = lab.receiver();
    let arguments = ["--device", &end.device, "--bandwidth", "400G"];
    end.set_sysctl("net.ipv4.tcp_sack", "0");
    // Less than what each of the streams gets of any host's memory.
    end.set_sysctl("net.ipv4.tcp_rmem", "4096 8192 16384");
    let answer = Answer::of(end, &arguments);
    let text = end.run(|| tcpmon(&["doctor"]).args(arguments).output()).unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    for rule in ["host.rcv-buffer", "host.sack"] {
        assert!(answer.findings().contains_key(rule), "{rule}: {}", answer.json);
    }
    // The host's first process may be one whose namespaces nobody may read.
    let not_checked = answer.json["not_checked"].as_array().unwrap();
    let is_unknown = not_checked.iter().any(|rule| rule["rule"] == "run.container");
    assert_eq!(is_unknown, std::fs::read_link("/proc/1/ns/net").is_err(), "{}", answer.json);
    assert_eq!(answer.findings().contains_key("run.container"), !is_unknown, "{}", answer.json);
    for finding in answer.json["findings"].as_array().unwrap() {
        for part in ["rule", "set"] {
            assert!(text.contains(finding[part].as_str().unwrap()), "{part} of {finding} in {text}");
        }
    }
    assert!(
        text.contains("receive 400 Gbit/s in 40 streams at a round trip of 100ms (4.7 GiB in flight)? no"),
        "{text}"
    );
}

#[test]
fn streams_share_the_rate_and_the_memory() {
    let lab = Lab::new();
    let end = lab.receiver();
    end.set_sysctl("net.ipv4.tcp_rmem", "4096 8192 16384");
    let fast = ["--device", &end.device, "--bandwidth", "100G", "--rtt", "100ms"];
    let four = [&fast[..], &["--streams", "4"]].concat();
    let one = [&fast[..], &["--streams", "1"]].concat();
    // Without the option, one for each 10 Gbit/s.
    for (arguments, streams) in [(&four[..], 4), (&one, 1), (&fast, 10)] {
        let answer = Answer::of(end, arguments);
        let goal = json!({ "bandwidth": 100_000_000_000_u64, "streams": streams, "rtt_seconds": 0.1 });
        assert_eq!(answer.json["goal"], goal);
        // 1.25 GB are in flight; a buffer has twice that, and 2 GiB at most, and all buffers an eighth of the memory.
        let memory = answer.json["facts"]["host"]["memory_bytes"].as_u64().unwrap();
        let buffer = (2_500_000_000 / streams).min(2_147_483_647).min(memory / 8 / streams);
        let expected = format!("sysctl -w net.ipv4.tcp_rmem=\"4096 8192 {buffer}\"");
        assert_eq!(answer.advice("host.rcv-buffer"), expected, "{streams}");
        // TCP's largest window is 1 GiB.
        assert_eq!(answer.findings().contains_key("host.streams"), streams == 1, "{}", answer.json);
    }
    let text = end.run(|| tcpmon(&["doctor"]).args(&four).output()).unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    let asked = "receive 100 Gbit/s in 4 streams at a round trip of 100ms (1.2 GiB in flight)?";
    assert!(text.contains(asked), "{text}");
}

#[test]
fn a_list_of_devices_that_the_kernel_does_not_send_is_not_an_empty_one() {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=recvfrom", "-e", "inject=recvfrom:error=ENOBUFS"]);
    let output = strace.arg(tcpmon_binary()).args(["doctor", "--format", "json", "--device", "lo"]).output();
    let answer = Answer::from(&output.expect("strace is installed by `cargo xtask test`"));
    let missing = answer.json["facts"]["devices_missing"].as_str().unwrap_or_else(|| panic!("{}", answer.json));
    assert!(missing.starts_with("cannot list the network devices over rtnetlink: No buffer space"), "{missing}");
    assert!(missing.ends_with("the kernel has no memory for its answer: free some"), "{missing}");
    let not_checked = answer.json["not_checked"].as_array().expect("a list");
    assert!(not_checked.iter().any(|it| it["rule"] == "device.ring" && it["reason"] == missing), "{}", answer.json);
}

#[test]
fn an_alias_in_latin_1_hides_neither_its_device_nor_another_one() {
    const ALIAS: &[u8] = b"B\xfcro";
    let lab = Lab::new();
    let end = lab.receiver();
    let mut ip = Command::new("ip");
    ip.args(["link", "set", "dev", &end.device, "alias"]).arg(OsStr::from_bytes(ALIAS));
    let set = end.run(|| ip.output()).expect("ip is installed (package iproute2)");
    assert!(set.status.success(), "{set:?}");
    let of_kernel = end.with_own_sys(|| fs::read(format!("/sys/class/net/{}/ifalias", end.device))).unwrap();
    assert_eq!(of_kernel.trim_ascii_end(), ALIAS);
    for device in ["lo", &end.device] {
        let answer = Answer::of(end, &["--device", device]);
        let devices = answer.json["facts"]["devices"].as_array().expect("a list");
        assert_eq!(devices.len(), 1, "{device}: {}", answer.json);
        assert_eq!(devices[0]["name"], device);
        let mtu = end.with_own_sys(|| fs::read_to_string(format!("/sys/class/net/{device}/mtu"))).unwrap();
        assert_eq!(mtu.trim(), devices[0]["mtu"].to_string(), "{}", devices[0]);
    }
}

#[test]
fn a_device_that_does_not_exist_is_a_usage_error_that_names_those_that_do() {
    let (code, error) = run(tcpmon(&["doctor", "--device", "eth99"]).process_group(0));
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("--device eth99: no such device") && error.contains("lo"), "{error}");
}
