//! `tcpmon top`: takes samples, draws, and passes keys on.

mod terminal;

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, bail};
use tcpmon_common::store::DEFAULT_MAX_SOCKETS;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    time::{MissedTickBehavior, interval, sleep},
};

use self::terminal::Screenful;
use super::{collector, host_thread, live_data::LiveData};
use crate::{
    cli::{TopArgs, TopFormat},
    host::cgroup_paths::CgroupPaths,
    kernel::{Kernel, Options},
    live::{DEFAULT_SOCKET, LiveClient, LiveSource as _},
    model::{cgroups::Process, live::LiveSample, table::TableLimits},
    sandbox::{self, Sandbox},
    top::{Reaction, RowFilter, Screen, Source, Theme, plain},
};

/// Maximum number of groups that have a row of their own; the others are in `other`.
const MAX_GROUPS: usize = 10_000;

/// Sources of the host that the screen does not show.
const NOT_SHOWN: [&str; 7] = ["cgroups", "inet_diag", "netstat", "psi", "sockstat", "stat", "zones"];

/// A group that has been idle for this long has no row.
const GROUP_TTL: Duration = Duration::from_secs(120);

/// Runs until `q` or a signal; with `--once`, until one table has been printed.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    sandbox::begin().context("cannot give up capabilities")?;
    let runtime = super::runtime()?;
    let result = runtime.block_on(async {
        let samples = Samples::open(args).await?;
        sandbox::give_up_all(false).context("cannot give up capabilities")?;
        if args.once { print_once(args, samples).await } else { watch(args, samples).await }
    });
    // The thread that waits for keys is still blocked in a read.
    runtime.shutdown_background();
    result
}

/// Where the samples come from.
enum Samples {
    Daemon(LiveClient),
    OwnPrograms(Box<LiveData>),
}

impl Samples {
    /// Connects to a daemon; if there is none, loads programs of its own.
    async fn open(args: &TopArgs) -> anyhow::Result<Self> {
        if !args.own {
            let path = args.daemon.as_deref().unwrap_or(Path::new(DEFAULT_SOCKET));
            match LiveClient::connect(path).await {
                Ok(client) => return Ok(Self::Daemon(client)),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    bail!("{}: {error}: join the group of that file, or use --own as root", path.display())
                }
                Err(error) if args.daemon.is_some() => {
                    return Err(error).with_context(|| format!("no daemon listens at {}", path.display()));
                }
                // There is no daemon, or it has ended.
                Err(_) => {}
            }
        }
        let kernel = Kernel::load(Options {
            trace: None,
            max_sockets: DEFAULT_MAX_SOCKETS,
            max_readers: args.max_readers,
            max_drop_entries: 4096,
            drops: true,
            ring_bytes: 1 << 22,
            ephemeral_ports: Vec::new(),
            switched_off: Vec::new(),
        })?;
        let mut paths = CgroupPaths::of_this_host();
        let limits = TableLimits {
            max_groups: MAX_GROUPS,
            group_ttl: GROUP_TTL,
            pin: Vec::new(),
            cgroup_of: Some(Box::new(move |process: &Process| paths.paths(process.tgid, process.cgroup))),
        };
        let sandbox = Sandbox::new(true, Vec::new());
        // If one of them ends, the next sample reports it.
        let (collector_ended, host_ended) = (oneshot::channel().0, oneshot::channel().0);
        let collector = collector::start(kernel, limits, &sandbox, collector_ended);
        let collector = collector.context("cannot start the collector thread")?;
        let host =
            host_thread::start(NOT_SHOWN.to_vec(), &sandbox, host_ended).context("cannot start the host thread")?;
        Ok(Self::OwnPrograms(Box::new(LiveData { collector, host, sandbox: Default::default(), flight: None })))
    }

    async fn next(&mut self, since: u64) -> anyhow::Result<LiveSample> {
        match self {
            Self::Daemon(client) => Ok(client.sample(since).await?),
            Self::OwnPrograms(data) => data.live(since).await.map_err(anyhow::Error::msg),
        }
    }

    fn source(&self) -> Source {
        match self {
            Self::Daemon(_) => Source::Daemon,
            Self::OwnPrograms(_) => Source::OwnPrograms,
        }
    }
}

/// An empty screen with the options that the flags select.
fn screen(args: &TopArgs, samples: &Samples) -> Screen {
    let filter = RowFilter {
        pids: args.pid.clone(),
        comms: args.comm.clone(),
        ports: args.port.clone(),
        cgroups: args.cgroup.clone(),
    };
    let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut screen = Screen::new(hostname, samples.source(), args.interval.as_secs_f64(), filter);
    (screen.sort, screen.sockets) = (args.sort, args.sockets);
    screen
}

/// Prints what happened in one interval.
async fn print_once(args: &TopArgs, mut samples: Samples) -> anyhow::Result<()> {
    let mut screen = screen(args, &samples);
    screen.update(samples.next(0).await?);
    sleep(args.interval).await;
    screen.update(samples.next(screen.rows.pass).await?);
    if !args.cgroup.is_empty() && screen.rows.groups.iter().all(|group| group.cgroup.is_none()) {
        bail!("--cgroup: the daemon does not know control groups: set cgroup_label = true in its config, or use --own");
    }
    let mut shown = screen.shown();
    shown.truncate(args.limit.map_or(usize::MAX, |limit| limit as usize));
    let text = match args.format {
        TopFormat::Text => plain::table(&shown),
        TopFormat::Json => plain::json(&shown)?,
    };
    match io::stdout().write_all(text.as_bytes()) {
        // `tcpmon top --once | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

/// Signals that end the screen.
struct EndSignals([Signal; 3]);

impl EndSignals {
    fn listen() -> io::Result<Self> {
        let on = |kind| signal(kind);
        Ok(Self([on(SignalKind::terminate())?, on(SignalKind::hangup())?, on(SignalKind::quit())?]))
    }

    async fn next(&mut self) {
        let [terminate, hangup, quit] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
            _ = quit.recv() => {}
        }
    }
}

/// Shows the screen until it is left.
async fn watch(args: &TopArgs, mut samples: Samples) -> anyhow::Result<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!("standard input and output are not a terminal: use --once");
    }
    let variable = |name| std::env::var(name).ok();
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| variable(name).filter(|of| !of.is_empty()));
    let mut theme = Theme::of(variable("NO_COLOR").as_deref(), variable("TERM").as_deref(), locale.as_deref());
    theme.ascii |= args.ascii;
    let mut screen = screen(args, &samples);
    // Take the first sample before the screen, so that an error is still printed on the normal terminal.
    screen.update(samples.next(0).await?);
    let mut ends = EndSignals::listen().context("cannot install a signal handler")?;
    let mut terminal = Screenful::open().context("cannot use the terminal")?;
    let mut tick = interval(args.interval);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The second sample comes sooner, so that the screen shows rates at once.
    tick.reset_after(args.interval.min(Duration::from_millis(250)));
    loop {
        terminal.draw(&mut screen, theme).context("cannot write to the terminal")?;
        tokio::select! {
            () = ends.next() => return Ok(()),
            _ = tick.tick() => if !screen.paused {
                match samples.next(screen.rows.pass).await {
                    Ok(sample) => screen.update(sample),
                    Err(error) => {
                        screen.problem = Some(super::one_line(&error));
                        samples = reconnect(samples, args).await;
                        screen.rows.pass = 0;
                    }
                }
            },
            event = terminal.next() => match event {
                Some(Some(key)) => match screen.key(key) {
                    Reaction::Draw => {}
                    Reaction::Quit => return Ok(()),
                    Reaction::Suspend => terminal.suspend().context("cannot use the terminal")?,
                },
                // The size has changed.
                Some(None) => {}
                None => return Ok(()),
            },
        }
    }
}

/// Connects to a daemon that was restarted; until that works, the old connection stays.
async fn reconnect(samples: Samples, args: &TopArgs) -> Samples {
    let Samples::Daemon(_) = samples else { return samples };
    let path = args.daemon.as_deref().unwrap_or(Path::new(DEFAULT_SOCKET));
    LiveClient::connect(path).await.map_or(samples, Samples::Daemon)
}
