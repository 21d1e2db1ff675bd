//! Where the endpoint, the local socket and a screen get their data: from the collector and the host thread.

use super::{collector::CollectorHandle, flight_child::FlightWatch, host_thread::HostHandle};
use crate::{
    http::DataSource,
    live::LiveSource,
    model::{
        live::{LiveHost, LiveSample},
        snapshot::Observed,
    },
    status::{SandboxStatus, Unavailable},
};

/// See the module documentation.
#[derive(Clone, Debug)]
pub(super) struct LiveData {
    pub(super) collector: CollectorHandle,
    pub(super) host: HostHandle,
    pub(super) sandbox: SandboxStatus,
    pub(super) flight: Option<FlightWatch>,
}

impl DataSource for LiveData {
    fn health(&self) -> Result<(), Unavailable> {
        self.collector.health()
    }

    async fn sample(&self) -> Result<Observed, Unavailable> {
        let (snapshot, host) = tokio::join!(self.collector.snapshot(), self.host.sample());
        let host = host.map_err(|error| Unavailable(error.to_string()))?;
        let flight = self.flight.as_ref().map(FlightWatch::status);
        Ok(Observed { snapshot: snapshot?, host, sandbox: self.sandbox.clone(), flight })
    }
}

impl LiveSource for LiveData {
    async fn live(&self, since: u64) -> Result<LiveSample, String> {
        let (sample, host) = tokio::join!(self.collector.live(since), self.host.sample());
        let host = host.map_err(|error| error.to_string())?;
        let (snapshot, sample) = sample.map_err(|error| error.to_string())?;
        Ok(LiveSample { host: LiveHost::new(&snapshot, &host), ..sample })
    }
}
