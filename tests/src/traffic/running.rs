//! A `traffic` process as a child: orders go in and answers come out, each within a time limit.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::plan::{Answer, Order, Report};
use crate::emulated::patience;
use crate::lab::End;
use crate::{eventually, must, truth};

/// Time limit to carry out an order.
const DEADLINE: Duration = Duration::from_secs(60);

/// A running `traffic` process: a reader, a sender, a hog or bursts of datagrams. It exits when its stdin closes, so it
/// cannot outlive the test. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    line: Mutex<Line>,
}

#[derive(Debug)]
struct Line {
    orders: ChildStdin,
    answers: Receiver<Answer>,
    finished: Option<Report>,
}

impl Running {
    /// Starts a process at `end` and waits until it is ready and has reported its port.
    #[track_caller]
    pub(super) fn spawn(end: &End, role: &str, plan: &impl Serialize) -> (Self, u16) {
        let plan = must(serde_json::to_string(plan), "writing a traffic plan");
        let mut command = Command::new(binary());
        command.args([role, &plan]).stdin(Stdio::piped()).stdout(Stdio::piped());
        end.start_inside(&mut command, false);
        let mut child = must(command.spawn(), "starting traffic");
        let orders = child.stdin.take().expect("stdin is piped");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sink, answers) = channel();
        thread::spawn(move || {
            for text in stdout.lines().map_while(Result::ok) {
                let failed = |error| Answer::Failed(format!("{error} in {text:?}"));
                let answer = serde_json::from_str(&text).unwrap_or_else(failed);
                if sink.send(answer).is_err() {
                    break;
                }
            }
        });
        let name = format!("{role} (pid {})", child.id());
        let running = Self { name, child, line: Mutex::new(Line { orders, answers, finished: None }) };
        let port = match running.answer(&running.line(), DEADLINE) {
            Answer::Ready(port) => port,
            other => panic!("{} began with {other:?}", running.name),
        };
        (running, port)
    }

    /// The process id, which is also the thread id of its main thread.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops moving bytes; none is moved after this returns.
    #[track_caller]
    pub fn pause(&self) {
        self.order(Order::Pause);
    }

    /// Starts or resumes moving bytes without limit.
    #[track_caller]
    pub fn resume(&self) {
        self.order(Order::Resume);
    }

    /// Writes a byte on each open connection, in addition to what its plan sends. Returns the bytes written.
    #[track_caller]
    pub fn send_byte(&self) -> u64 {
        self.order(Order::SendByte)
    }

    /// Reads what has arrived, up to 4096 bytes of each connection, from a thread that does nothing else. Returns the
    /// bytes read.
    #[track_caller]
    pub fn receive(&self) -> u64 {
        self.order(Order::Receive)
    }

    /// Gives an order and waits until it has been carried out.
    #[track_caller]
    pub(super) fn order(&self, order: Order) -> u64 {
        match self.exchange(order) {
            Answer::Done(number) => number,
            other => panic!("{} answered {order:?} with {other:?}", self.name),
        }
    }

    /// What it has done so far; also works after it has finished.
    #[track_caller]
    pub fn report(&self) -> Report {
        match self.exchange(Order::Report) {
            Answer::Report(report) | Answer::Finished(report) => report,
            other => panic!("{} answered with {other:?} instead of a report", self.name),
        }
    }

    /// Ends it now; its connections close.
    #[track_caller]
    pub fn exit(&self) -> Report {
        match self.exchange(Order::Exit) {
            Answer::Finished(report) => report,
            other => panic!("{} answered with {other:?} instead of its last report", self.name),
        }
    }

    /// Tells it to finish, and waits until it has.
    #[track_caller]
    pub(super) fn finish(&self) -> Report {
        match self.exchange(Order::Finish) {
            Answer::Finished(report) => report,
            Answer::Done(_) => self.wait(),
            other => panic!("{} answered with {other:?} when told to finish", self.name),
        }
    }

    /// Waits (at most a minute) until it has done what its plan says and no thread of it is on a CPU: the last
    /// timeslice has ended, too.
    #[track_caller]
    pub fn wait(&self) -> Report {
        self.wait_for(DEADLINE)
    }

    /// The same with another time limit.
    #[track_caller]
    pub fn wait_for(&self, deadline: Duration) -> Report {
        let mut line = self.line();
        if line.finished.is_none() {
            match self.answer(&line, deadline) {
                Answer::Finished(report) => line.finished = Some(report),
                other => panic!("{} said {other:?} instead of its last report", self.name),
            }
            eventually(deadline, &format!("{} has left the CPU", self.name), || truth::is_asleep(self.pid()));
        }
        line.finished.clone().expect("it was just put there")
    }

    /// After it has finished, every query is answered with its last report.
    #[track_caller]
    fn exchange(&self, order: Order) -> Answer {
        let mut line = self.line();
        let text = must(serde_json::to_string(&order), "writing an order");
        // A process that has just finished does not read any more: its last report is already on the way.
        let written = writeln!(line.orders, "{text}").and_then(|()| line.orders.flush());
        let answer = match (&line.finished, written) {
            (Some(report), _) => return Answer::Finished(report.clone()),
            (None, _) => self.answer(&line, DEADLINE),
        };
        if let Answer::Finished(report) = &answer {
            line.finished = Some(report.clone());
        }
        answer
    }

    #[track_caller]
    fn answer(&self, line: &Line, deadline: Duration) -> Answer {
        let start = Instant::now();
        match line.answers.recv_timeout(patience(deadline)) {
            Ok(Answer::Failed(why)) => panic!("{} failed: {why}", self.name),
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => panic!("{} was silent for {:?}", self.name, start.elapsed()),
            Err(RecvTimeoutError::Disconnected) => panic!("{} ended without a last report", self.name),
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Killing a process that has already ended is no error, because it is not reaped before the wait below.
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("{} could not be killed: {error}", self.name);
        }
    }
}

/// `TCPMON_TRAFFIC`; if that is not set, `traffic` next to the running test or, in cargo's layout, one directory up.
fn binary() -> PathBuf {
    if let Some(path) = env::var_os("TCPMON_TRAFFIC") {
        return path.into();
    }
    let test = must(env::current_exe(), "finding the running test");
    let beside = test.ancestors().skip(1).take(2).map(|folder| folder.join("traffic"));
    let found = beside.into_iter().find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("no traffic near {}: run the tests by cargo, or set TCPMON_TRAFFIC", test.display()))
}
