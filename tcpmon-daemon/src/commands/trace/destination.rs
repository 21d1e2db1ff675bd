//! Where a trace goes: a stream, a file, or several files.

use std::{fs::File, io, time::Duration};

use tcpmon_trace::{TraceHeader, TraceWriter};

use super::{
    flight::{Alarm, FlightRecorder},
    rotate::{Losses, NumberedFiles, RotatingWriter},
};
use crate::{
    cli::{FileFormat, RotateAt, StandardStream, TraceArgs, TraceFormat},
    commands::trace_file::{create_output, write_file, write_stream},
    trigger::TriggerWatch,
};

/// Where the trace goes.
pub(super) enum Destination {
    Stream(StandardStream, TraceFormat),
    File(File, FileFormat),
    Rotating(NumberedFiles, RotateAt, File),
    Recorder(NumberedFiles, Duration),
}

impl Destination {
    /// Creates the file, if one is needed from the start.
    pub(super) fn create(args: &TraceArgs) -> anyhow::Result<Self> {
        let format = args.format();
        let Some(path) = &args.output else { return Ok(Self::Stream(args.stream(), format.format)) };
        let files = NumberedFiles { path: path.clone(), format, force: args.force, keep: args.keep };
        Ok(match (args.ring, args.rotate) {
            (Some(span), _) => {
                files.check()?;
                Self::Recorder(files, span)
            }
            (None, Some(rotate)) => {
                let first = files.create(1)?;
                Self::Rotating(files, rotate, first)
            }
            (None, None) => Self::File(create_output(path, args.force)?, format),
        })
    }

    /// The writer, with the header written.
    pub(super) fn writer(
        self,
        header: TraceHeader,
        watch: TriggerWatch,
        alarm: Alarm,
        losses: Losses,
    ) -> io::Result<Box<dyn TraceWriter>> {
        Ok(match self {
            Self::Stream(stream, format) => write_stream(stream, format, &header)?,
            Self::File(file, format) => write_file(file, format, &header)?,
            Self::Rotating(files, at, first) => Box::new(RotatingWriter::new(files, at, first, header, losses)?),
            Self::Recorder(files, span) => Box::new(FlightRecorder::new(files, header, span, watch, (alarm, losses))),
        })
    }
}
