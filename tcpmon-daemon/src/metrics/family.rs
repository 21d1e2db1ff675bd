//! The definition of a metric family: its wire name, its type, its meaning, and how its samples are taken from a
//! metrics page.

use std::borrow::Cow;

use super::page::Page;
use crate::model::snapshot::{Distribution, Group};

/// Type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyType {
    /// Never decreases.
    Counter,
    /// Can rise and fall.
    Gauge,
    /// Distribution, as a classic and as a native histogram.
    Histogram,
    /// Always 1; the information is in the labels.
    Info,
}

/// What a family describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A group of sockets and readers: labels `process`, `service` and, if enabled, `cgroup`.
    Group,
    /// The host.
    Host,
    /// tcpmon itself.
    Tcpmon,
}

/// Defines a constructor for each type. Its arguments are the fields of the family, in their order.
macro_rules! constructors {
    ($($name:ident: $kind:ident,)*) => {
        impl Scope {
            $(pub(super) const fn $name(
                self,
                name: &'static str,
                unit: &'static str,
                labels: &'static [&'static str],
                sources: &'static [&'static str],
                help: &'static str,
                read: Read,
            ) -> Family {
                Family { name, kind: FamilyType::$kind, scope: self, unit, labels, sources, help, read }
            })*
        }
    };
}

constructors! {
    counter: Counter,
    gauge: Gauge,
    histogram: Histogram,
    info: Info,
}

/// A metric family.
#[derive(Debug)]
pub struct Family {
    /// Name on the wire, with the suffixes that its unit and type require.
    pub name: &'static str,
    /// Type.
    pub kind: FamilyType,
    /// What it describes.
    pub scope: Scope,
    /// Unit, as it appears at the end of the name (before `_total`); empty for plain counts.
    pub unit: &'static str,
    /// Labels in addition to those of the scope, in the order of their values.
    pub labels: &'static [&'static str],
    /// Where the values come from, as `/status` names it: probes, host sources, `snapshot` for what a pass reads from
    /// the sockets, or `tcpmon` for what it knows about itself.
    pub sources: &'static [&'static str],
    /// Help text, one sentence.
    pub help: &'static str,
    /// Takes the samples from a metrics page; a family without samples is not shown.
    pub(super) read: Read,
}

/// Sources that have counted since before tcpmon started: since the host booted, or since a driver was loaded.
const OLDER_SOURCES: [&str; 4] = ["devices", "psi", "softnet", "stat"];

/// See [`Family::read`].
pub(super) type Read = for<'a> fn(&'a Page) -> Vec<Sample<'a>>;

impl Family {
    /// Whether its series were at zero when tcpmon started. Those of groups start with their group.
    pub(super) fn starts_with_tcpmon(&self) -> bool {
        self.scope != Scope::Group && !self.sources.iter().any(|source| OLDER_SOURCES.contains(source))
    }

    /// The name without the suffix for its type.
    pub(super) fn name_without_type(&self) -> &'static str {
        self.name.strip_suffix(self.kind.suffix()).unwrap_or(self.name)
    }
}

impl FamilyType {
    /// The suffix of the family's name for this type.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            FamilyType::Counter => "_total",
            FamilyType::Info => "_info",
            FamilyType::Gauge | FamilyType::Histogram => "",
        }
    }
}

/// One series of a family.
#[derive(Clone, Debug)]
pub(super) struct Sample<'a> {
    /// The group it belongs to.
    pub(super) group: Option<&'a Group>,
    /// Values of [`Family::labels`]; the rest is unused.
    values: [Cow<'a, str>; 3],
    /// Its value.
    pub(super) value: Value<'a>,
}

/// Value of a series.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    /// A whole number.
    Integer(u64),
    /// Any number.
    Real(f64),
    /// A histogram.
    Distribution(Distribution<'a>),
}

impl From<bool> for Value<'_> {
    fn from(value: bool) -> Self {
        Value::Integer(value.into())
    }
}

impl From<u64> for Value<'_> {
    fn from(value: u64) -> Self {
        Value::Integer(value)
    }
}

impl From<f64> for Value<'_> {
    fn from(value: f64) -> Self {
        Value::Real(value)
    }
}

impl<'a> From<Distribution<'a>> for Value<'a> {
    fn from(value: Distribution<'a>) -> Self {
        Value::Distribution(value)
    }
}

impl<'a> Sample<'a> {
    /// A series without group and labels.
    pub(super) fn plain(value: impl Into<Value<'a>>) -> Self {
        Self::labelled("", value)
    }

    /// A series with up to three labels.
    pub(super) fn with<const N: usize>(labels: [Cow<'a, str>; N], value: impl Into<Value<'a>>) -> Self {
        let mut sample = Self::plain(value);
        for (slot, label) in sample.values.iter_mut().zip(labels) {
            *slot = label;
        }
        sample
    }

    /// A series with one label.
    pub(super) fn labelled(label: impl Into<Cow<'a, str>>, value: impl Into<Value<'a>>) -> Self {
        Self { group: None, values: [label.into(), Cow::Borrowed(""), Cow::Borrowed("")], value: value.into() }
    }

    /// Its labels, names and values: those of its group, then those of its family.
    pub(super) fn labels(&self, family: &'static Family) -> impl Iterator<Item = (&'static str, &str)> {
        let group = self.group.map(|group| &*group.key);
        let cgroup = group.and_then(|group| group.cgroup.as_ref());
        let names = group.map(|group| [("process", &*group.process), ("service", &*group.service)]);
        names
            .into_iter()
            .flatten()
            .chain(cgroup.map(|cgroup| ("cgroup", &*cgroup.label)))
            .chain(family.labels.iter().zip(&self.values).map(|(name, value)| (*name, &**value)))
    }
}

/// One series for each group.
pub(super) fn per_group<'a, V: Into<Value<'a>>>(page: &'a Page, value: impl Fn(&'a Group) -> V) -> Vec<Sample<'a>> {
    per_group_and_label(page, |group| [("", value(group))])
}

/// One histogram for each group that has histograms.
pub(super) fn per_receiver<'a>(page: &'a Page, value: impl Fn(&'a Group) -> Distribution<'a>) -> Vec<Sample<'a>> {
    per_group_and_label(page, |group| group.histograms.then(|| ("", value(group))))
}

/// For each group, one series per label value.
pub(super) fn per_group_and_label<'a, V: Into<Value<'a>>, I: IntoIterator<Item = (&'a str, V)>>(
    page: &'a Page,
    values: impl Fn(&'a Group) -> I,
) -> Vec<Sample<'a>> {
    per_group_and_labels(page, |group| values(group).into_iter().map(|(label, value)| ([label], value)))
}

/// For each group, one series per combination of label values.
pub(super) fn per_group_and_labels<'a, const N: usize, V, I>(
    page: &'a Page,
    values: impl Fn(&'a Group) -> I,
) -> Vec<Sample<'a>>
where
    V: Into<Value<'a>>,
    I: IntoIterator<Item = ([&'a str; N], V)>,
{
    let groups = page.groups();
    let mut samples = Vec::with_capacity(groups.len());
    for group in groups {
        samples.extend(
            values(group)
                .into_iter()
                .map(|(labels, value)| Sample { group: Some(group), ..Sample::with(labels.map(Cow::Borrowed), value) }),
        );
    }
    samples
}
