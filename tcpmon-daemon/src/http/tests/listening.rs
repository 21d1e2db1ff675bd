//! Tests of the addresses to listen on and of the path of the metrics page.

use std::net::IpAddr;

use super::*;

#[tokio::test]
async fn an_address_in_use_is_named_with_a_remedy() {
    let taken = bind(&["127.0.0.1:0".parse().expect("an address")]).await.expect("a free port");
    let address = taken[0].local_addr().expect("an address").to_string();
    let error = bind(&[address.parse().expect("an address")]).await.expect_err("taken").to_string();
    assert!(error.starts_with(&format!("cannot listen on {address}: ")), "{error}");
    assert!(error.ends_with("or choose another address with --web.listen-address"), "{error}");
}

#[tokio::test]
async fn a_bare_port_listens_on_every_address() {
    let listeners = bind(&[":0".parse().expect("an address")]).await.expect("a free port");
    let port = listeners[0].local_addr().expect("an address").port();
    TcpStream::connect(("127.0.0.1", port)).await.expect("IPv4 is served");
}

#[test]
fn addresses_are_parsed_in_the_formats_of_exporters() {
    for text in [
        ":10793",
        "127.0.0.1:10793",
        "[::1]:10793",
        "0.0.0.0:1",
        "[fe80::1%lo]:10793",
        "[fe80::1%1]:10793",
        "localhost:10793",
        "dtn-1.example:1",
    ] {
        assert_eq!(text.parse::<ListenAddress>().expect(text).to_string(), text);
    }
    for text in [
        "",
        "10793",
        "127.0.0.1",
        "::1:10793",
        "::1:10793x",
        "localhost",
        ":",
        ":65536",
        "1.2.3.4:-1",
        "1.2.3:4",
        "1.2.3.444:5",
        "[::1%]:5",
        "[127.0.0.1]:5",
        "a b:5",
    ] {
        let error = text.parse::<ListenAddress>().expect_err(text).to_string();
        assert!(error.contains(&format!("{text:?}")) && error.contains("`:10793`"), "{error}");
    }
}

#[tokio::test]
async fn an_address_that_no_device_has_yet_and_the_name_of_this_host_are_listened_on() {
    for (text, address) in
        [("192.0.2.77:0", "192.0.2.77"), ("[2001:db8::77]:0", "2001:db8::77"), ("localhost:0", "127.0.0.1")]
    {
        let listeners = bind(&[text.parse().expect("an address")]).await.expect(text);
        let address: IpAddr = address.parse().expect("an address");
        let found = listeners.iter().any(|listener| listener.local_addr().expect("an address").ip() == address);
        assert!(found, "{text}: {listeners:?}");
    }
}

#[tokio::test]
async fn an_address_on_a_link_is_that_of_the_device_named_or_numbered() {
    for text in ["[fe80::77%lo]:0", "[fe80::77%1]:0"] {
        let listeners = bind(&[text.parse().expect("an address")]).await.expect(text);
        let SocketAddr::V6(address) = listeners[0].local_addr().expect("an address") else { panic!("{text}") };
        assert_eq!(address.scope_id(), 1, "{text}");
    }
    let error = bind(&["[fe80::77%nosuch0]:0".parse().expect("an address")]).await.expect_err("no device").to_string();
    assert!(error.starts_with("cannot listen on [fe80::77%nosuch0]:0: No such device"), "{error}");
}

#[test]
fn the_path_of_the_metrics_cannot_hide_another_page() {
    for path in ["/metrics", "/a/b-c_d.e", "/metrics/"] {
        assert_eq!(path.parse::<TelemetryPath>().expect(path).to_string(), path);
    }
    for path in ["", "/", "metrics", "/healthz", "/status", "/{a}", "/a b", "/a?b", "/\u{e4}", "/<b>"] {
        assert!(path.parse::<TelemetryPath>().is_err(), "{path}");
    }
}

#[test]
fn a_build_without_web_config_files_says_what_it_lacks_and_how_to_get_it() {
    for words in ["no TLS and no users", "packages", "--features full"] {
        assert!(WITHOUT_WEB_CONFIG.contains(words), "{words}: {WITHOUT_WEB_CONFIG}");
    }
}
