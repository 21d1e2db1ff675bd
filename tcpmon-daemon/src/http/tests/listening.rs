//! Tests of the addresses to listen on and of the path of the metrics page.

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
    for text in [":10793", "127.0.0.1:10793", "[::1]:10793", "0.0.0.0:1"] {
        assert_eq!(text.parse::<ListenAddress>().expect(text).to_string(), text);
    }
    for text in ["", "10793", "127.0.0.1", "::1:10793x", "localhost:10793", ":", ":65536", "1.2.3.4:-1"] {
        let error = text.parse::<ListenAddress>().expect_err(text).to_string();
        assert!(error.contains(&format!("{text:?}")) && error.contains("`:10793`"), "{error}");
    }
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
