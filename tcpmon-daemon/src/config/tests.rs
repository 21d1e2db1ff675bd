//! Tests of config files.

use std::{path::Path, time::Duration};

use super::*;
use crate::tests;

#[track_caller]
fn refused(text: &str, line: usize, parts: &[&str]) {
    let (at, problem) = Config::parse(text).expect_err(text);
    assert_eq!(at, line, "{problem}");
    for part in parts {
        assert!(problem.contains(part), "{problem:?} lacks {part:?}");
    }
}

#[test]
fn an_empty_file_is_the_defaults_and_they_are_valid() {
    assert_eq!(Config::parse(""), Ok(Config::default()));
    let settings = Config::default().validate().expect("valid");
    assert_eq!(settings.listen[0].to_string(), "127.0.0.1:10793");
    assert_eq!(settings.group_ttl, Duration::from_secs(600));
}

#[test]
fn a_printed_config_parses_to_the_same_and_explains_every_key() {
    let config = Config {
        max_groups: 7,
        pin: vec!["nginx".into(), "a \"b\"".into()],
        ephemeral_ports: vec!["50000-51000".into()],
        web: Web {
            listen_address: vec!["[::1]:1".into(), ":2".into()],
            telemetry_path: "/\u{41}".into(),
            config_file: "web.yml".into(),
            systemd_socket: true,
        },
        collect: Collect { zones: false, ..Collect::default() },
        probes: Probes { profile: ProbeProfile::Light, napi_poll: false, ..Probes::default() },
        log: Log { level: LogLevel::Warn, format: LogFormat::Json },
        ..Config::default()
    };
    let text = config.to_string();
    assert_eq!(Config::parse(&text), Ok(config), "{text}");
    assert!(text.starts_with("# Maximum number of groups"), "{text}");
    assert!(text.contains(" [default: 200]\nmax_groups = 7\n"), "{text}");
    assert!(text.contains("\n\n[web]\n# Address"), "{text}");

    // Every key is in the list, and the list has no other key.
    fn count(value: &toml::Value) -> usize {
        value.as_table().map_or(1, |table| table.values().map(count).sum())
    }
    assert_eq!(count(&toml::Value::try_from(Config::default()).expect("TOML")), keys().count());
}

#[test]
fn a_key_has_the_choices_that_are_declared_and_no_other() {
    for key in keys() {
        let set = |text: &str| Config::default().set(key, &[text.to_owned()]);
        for choice in key.choices().into_iter().flatten() {
            assert_eq!(set(choice), Ok(()), "{}", key.name);
        }
        let takes_any = matches!(key.default(), toml::Value::String(_) | toml::Value::Array(_));
        assert_eq!(set("other").is_ok(), takes_any && key.choices().is_none(), "{}", key.name);
    }
}

#[test]
fn an_unknown_key_is_refused_by_name_and_line() {
    refused("max_groups = 1\nmax_group = 2\n", 2, &["unknown field `max_group`", "`max_groups`"]);
    refused("\n[web]\nlisten = []\n", 3, &["web.listen: unknown field `listen`", "`listen_address`"]);
    refused("[collect]\nzone = false\n", 2, &["collect.zone: unknown field `zone`", "`zones`"]);
    refused("[wob]\na = 1\n", 1, &["unknown field `wob`"]);
}

#[test]
fn a_value_of_the_wrong_type_is_refused_by_key_and_line() {
    refused("\nmax_groups = \"many\"\n", 2, &["max_groups: invalid type: string \"many\""]);
    refused("web.listen_address = [\n\":1\",\n2]\n", 3, &["web.listen_address: invalid type: integer `2`"]);
    refused("[collect]\npsi = \"off\"\n", 2, &["collect.psi: invalid type: string \"off\", expected a boolean"]);
    refused("max_readers = -1", 1, &["max_readers: ", "-1"]);
    refused("[log]\n\nlevel = \"loud\"\n", 3, &["log.level: unknown variant `loud`", "`info`"]);
    refused("a b\n", 1, &[]);
    refused("max_groups = 1\nmax_groups = 2\n", 2, &["duplicate key"]);
}

#[test]
fn an_invalid_value_is_refused_by_key_line_and_remedy() {
    refused("max_groups = 0", 1, &["max_groups: 0 is not in the range from 1 to 10000"]);
    refused("\ngroup_ttl = \"10\"", 2, &["group_ttl: \"10\"", "`10m`"]);
    refused("group_ttl = \"0s\"", 1, &["group_ttl: \"0s\"", "`30s`"]);
    refused("\npin = [\"nginx\", \"\"]", 2, &["pin: \"\" is not a process name", "`ps -o comm`"]);
    refused("ephemeral_ports = [\"9-8\"]", 1, &["ephemeral_ports: \"9-8\" is not a range of ports", "`50000-51000`"]);
    refused("ephemeral_ports = [\"0-8\"]", 1, &["ephemeral_ports: \"0-8\" is not a range of ports"]);
    refused(
        "ephemeral_ports = [\"1-1\", \"2-2\", \"3-3\", \"4-4\", \"5-5\", \"6-6\", \"7-7\", \"8-8\", \"9-9\"]",
        1,
        &["ephemeral_ports: 9 ranges are too many, 8 are allowed"],
    );
    refused("ring_bytes = 5000000", 1, &["ring_bytes: 5000000", "for example 8388608"]);
    refused("ring_bytes = 1024", 1, &["ring_bytes: 1024", "for example "]);
    refused("ring_bytes = 4294967296", 1, &["ring_bytes: ", "for example 1073741824"]);
    refused("[web]\n\nlisten_address = [\"x\"]", 3, &["web.listen_address: \"x\" is not an address", ":10793"]);
    refused("web.listen_address = []", 1, &["web.listen_address: give at least one"]);
    refused("[web]\ntelemetry_path = \"/status\"", 2, &["web.telemetry_path: \"/status\""]);
}

#[test]
fn errors_name_the_file() {
    let error = Config::read(Path::new("/nonexistent/tcpmon.toml")).expect_err("no file");
    assert!(error.to_string().starts_with("cannot read the config file /nonexistent/tcpmon.toml: "));
    let error = ConfigError::Line { file: "a.toml".into(), line: 3, problem: "x: y".into() };
    assert!(error.to_string().starts_with("config file a.toml, line 3: x: y ("));
}

#[test]
fn the_document_lists_every_key_with_its_default() {
    const FILE: &str = "../docs/operating.md";
    let document = tests::read(FILE);
    let (head, _) = document.split_once("\n| key | default | what it is for |\n").expect("the table");
    let rows = keys().map(|key| format!("| `{}` | `{}` | {} |\n", key.name, key.default(), key.help));
    let table = rows.collect::<Vec<_>>().concat();
    tests::is_kept_in(FILE, &format!("{head}\n| key | default | what it is for |\n|---|---|---|\n{table}"));
}
