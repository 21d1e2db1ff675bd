//! The messages of Prometheus's protobuf format that tcpmon writes, with their fields' names and numbers in
//! `io/prometheus/client/metrics.proto` of github.com/prometheus/client_model.

/// A family of metrics.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MetricFamily {
    /// Name with all suffixes.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) help: String,
    /// `type` in the schema.
    #[prost(enumeration = "MetricType", tag = "3")]
    pub(crate) kind: i32,
    #[prost(message, repeated, tag = "4")]
    pub(crate) metric: Vec<Metric>,
    #[prost(string, tag = "5")]
    pub(crate) unit: String,
}

/// Type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum MetricType {
    Counter = 0,
    Gauge = 1,
    Histogram = 4,
}

/// One series.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Metric {
    #[prost(message, repeated, tag = "1")]
    pub(crate) label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    pub(crate) gauge: Option<GaugeValue>,
    #[prost(message, optional, tag = "3")]
    pub(crate) counter: Option<CounterValue>,
    #[prost(message, optional, tag = "7")]
    pub(crate) histogram: Option<HistogramValue>,
}

/// A label.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LabelPair {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// `Gauge` in the schema.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct GaugeValue {
    #[prost(double, tag = "1")]
    pub(crate) value: f64,
}

/// `Counter` in the schema.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct CounterValue {
    #[prost(double, tag = "1")]
    pub(crate) value: f64,
    #[prost(message, optional, tag = "3")]
    pub(crate) start_timestamp: Option<Timestamp>,
}

/// `Histogram` in the schema: the classic and the native form.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HistogramValue {
    #[prost(uint64, tag = "1")]
    pub(crate) sample_count: u64,
    #[prost(double, tag = "2")]
    pub(crate) sample_sum: f64,
    #[prost(message, repeated, tag = "3")]
    pub(crate) bucket: Vec<ClassicBucket>,
    /// 0: each native bucket ends at a power of two.
    #[prost(sint32, tag = "5")]
    pub(crate) schema: i32,
    #[prost(double, tag = "6")]
    pub(crate) zero_threshold: f64,
    #[prost(uint64, tag = "7")]
    pub(crate) zero_count: u64,
    #[prost(message, repeated, tag = "12")]
    pub(crate) positive_span: Vec<BucketSpan>,
    /// Count of each native bucket minus the count of the bucket before it.
    #[prost(sint64, repeated, tag = "13")]
    pub(crate) positive_delta: Vec<i64>,
    #[prost(message, optional, tag = "15")]
    pub(crate) start_timestamp: Option<Timestamp>,
}

/// A classic bucket.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct ClassicBucket {
    #[prost(uint64, tag = "1")]
    pub(crate) cumulative_count: u64,
    #[prost(double, tag = "2")]
    pub(crate) upper_bound: f64,
}

/// Native buckets that follow each other.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct BucketSpan {
    /// Index of the first.
    #[prost(sint32, tag = "1")]
    pub(crate) offset: i32,
    #[prost(uint32, tag = "2")]
    pub(crate) length: u32,
}

/// `google.protobuf.Timestamp`: a time since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub(crate) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}
