//! A TCP sender or reader (or a sender of bursts, a CPU hog, or a process that steps the clock) that carries out
//! orders: `traffic ROLE PLAN`, where PLAN is the JSON of `tcpmon_tests::traffic::plan`. The harness runs it. It ends
//! when its stdin closes.

mod burst;
mod clock;
mod connection;
mod gate;
mod option;
mod reader;
mod sender;
mod session;
mod turns;

use std::env;
use std::error::Error;
use std::hint::spin_loop;
use std::process::ExitCode;

use tcpmon_tests::traffic::plan::{Answer, HogPlan, Order, ProcessPlan};

use session::{Session, reply};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [role, plan] = arguments.as_slice() else {
        eprintln!("usage: traffic reader|sender|burst|clock|hog PLAN");
        return ExitCode::from(2);
    };
    match run(role, plan) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            reply(&Answer::Failed(error.to_string()));
            ExitCode::FAILURE
        }
    }
}

fn run(role: &str, plan: &str) -> Result<(), Box<dyn Error>> {
    match role {
        "reader" => reader::run(&serde_json::from_str(plan)?)?,
        "executed" => reader::resume(&serde_json::from_str(plan)?)?,
        "sender" => sender::run(&serde_json::from_str(plan)?)?,
        "burst" => burst::run(&serde_json::from_str(plan)?)?,
        "clock" => clock::run(&serde_json::from_str(plan)?)?,
        "hog" => hog(serde_json::from_str(plan)?)?,
        _ => return Err(format!("unknown role {role:?}: reader, sender, burst, clock or hog").into()),
    }
    Ok(())
}

fn hog(plan: HogPlan) -> std::io::Result<()> {
    let process =
        ProcessPlan { comm: Some("hog".to_owned()), cpu: Some(plan.cpu), nice: plan.nice, ..ProcessPlan::default() };
    let session = Session::start(&process)?;
    session.obey(|order| match order {
        Order::Exit | Order::Report => Some(0),
        _ => None,
    });
    reply(&Answer::Ready(0));
    loop {
        spin_loop();
    }
}
