//! A page in headless Chromium, driven by ChromeDriver: what a person sees, points at and clicks.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::Process;
use crate::{eventually, free_port, must};

/// Time limit to start and to answer.
const DEADLINE: Duration = Duration::from_secs(60);

/// Without these, Chromium contacts its vendor's servers.
const QUIET: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
];

/// A browser with one page. Ended when dropped.
#[derive(Debug)]
pub struct Browser {
    session: String,
    _driver: Process,
    _profile: TempDir,
}

impl Browser {
    /// Starts Chromium with a window of this size.
    #[track_caller]
    pub fn start(width: u32, height: u32) -> Self {
        let port = must(free_port(), "looking for a free port");
        let driver = Process::spawn(Command::new("chromedriver").arg(format!("--port={port}")));
        eventually(DEADLINE, "chromedriver listens", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        let profile = must(TempDir::new(), "making a directory");
        let own = [format!("--user-data-dir={}", profile.path().display()), format!("--window-size={width},{height}")];
        let arguments: Vec<&str> = QUIET.into_iter().chain(own.iter().map(String::as_str)).collect();
        let options = json!({ "args": arguments });
        let wanted = json!({ "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let base = format!("http://127.0.0.1:{port}/session");
        let session = request(&base, Some(&json!({ "capabilities": { "alwaysMatch": wanted } })));
        let id = session["sessionId"].as_str().expect("a session");
        Self { session: format!("{base}/{id}"), _driver: driver, _profile: profile }
    }

    /// Opens a file and waits until it says that it is drawn.
    #[track_caller]
    pub fn open(&self, file: &Path) {
        self.post("url", &json!({ "url": format!("file://{}", file.display()) }));
        eventually(DEADLINE, "the page is drawn", || {
            if self.run("return document.body.dataset.ready") == "1" { Ok(()) } else { Err(self.problems().join("; ")) }
        });
    }

    /// Shows a page that is nothing but text.
    #[track_caller]
    pub fn show(&self, file: &Path) {
        self.post("url", &json!({ "url": format!("file://{}", file.display()) }));
    }

    /// Runs a script in the page and returns its value.
    #[track_caller]
    pub fn run(&self, script: &str) -> Value {
        self.post("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// What the browser complains about: script errors, refused requests.
    #[track_caller]
    pub fn problems(&self) -> Vec<String> {
        let log = self.post("se/log", &json!({ "type": "browser" }));
        log.as_array().expect("a log").iter().map(|line| line["message"].to_string()).collect()
    }

    /// Drags the mouse across an element, from one fraction of its width to another.
    #[track_caller]
    pub fn drag(&self, selector: &str, from: f64, to: f64) {
        let [x, y, width, height] = self.place(selector);
        let y = (y + height / 2.0) as i64;
        let at = |share: f64| json!({ "type": "pointerMove", "x": (x + width * share) as i64, "y": y });
        self.pointer(&[at(from), json!({ "type": "pointerDown", "button": 0 }), at((from + to) / 2.0), at(to), up()]);
    }

    /// Clicks the middle of an element this many times.
    #[track_caller]
    pub fn click(&self, selector: &str, times: usize) {
        let [x, y, width, height] = self.place(selector);
        let at = json!({ "type": "pointerMove", "x": (x + width / 2.0) as i64, "y": (y + height / 2.0) as i64 });
        let press = [json!({ "type": "pointerDown", "button": 0 }), up()];
        let all: Vec<Value> = [at].into_iter().chain((0..times).flat_map(|_| press.clone())).collect();
        self.pointer(&all);
    }

    /// Writes a screenshot of the window, as PNG.
    #[track_caller]
    pub fn picture(&self, file: &Path) {
        let encoded = request(&format!("{}/screenshot", self.session), None);
        let encoded = encoded.as_str().expect("a picture");
        let decoded = Command::new("base64").arg("-d").stdin(must(input(encoded), "writing a file")).output();
        must(fs::write(file, must(decoded, "running base64").stdout), "writing a picture");
    }

    /// Where an element is in the window, after scrolling to it: left, top, width and height.
    fn place(&self, selector: &str) -> [f64; 4] {
        let script = format!(
            "const e = document.querySelector({selector:?}); e.scrollIntoView({{block: 'center'}}); \
             const r = e.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]"
        );
        let place = self.run(&script);
        let number = |index: usize| place[index].as_f64().unwrap_or_else(|| panic!("no {selector}: {place}"));
        [0, 1, 2, 3].map(number)
    }

    fn pointer(&self, actions: &[Value]) {
        let mouse = json!({ "type": "pointer", "id": "mouse", "actions": actions });
        self.post("actions", &json!({ "actions": [mouse] }));
    }

    fn post(&self, command: &str, body: &Value) -> Value {
        request(&format!("{}/{command}", self.session), Some(body))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends Chromium; its driver is killed.
        let _ = minreq::delete(&self.session).with_timeout(10).send();
    }
}

fn up() -> Value {
    json!({ "type": "pointerUp", "button": 0 })
}

/// A file with this text, to be read from its beginning.
fn input(text: &str) -> std::io::Result<fs::File> {
    use std::io::{Seek as _, Write as _};
    let mut file = tempfile::tempfile()?;
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Sends a command to ChromeDriver and returns its value.
#[track_caller]
fn request(url: &str, body: Option<&Value>) -> Value {
    let request = match body {
        Some(body) => minreq::post(url).with_header("Content-Type", "application/json").with_body(body.to_string()),
        None => minreq::get(url),
    };
    let answer = must(request.with_timeout(DEADLINE.as_secs()).send(), format!("asking chromedriver for {url}"));
    let text = must(answer.as_str(), "reading chromedriver's answer").to_owned();
    let mut value: Value = must(serde_json::from_str(&text), format!("parsing {text}"));
    assert_eq!(answer.status_code, 200, "{url}: {text}");
    value["value"].take()
}
