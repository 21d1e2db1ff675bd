"""Rows, panels and queries as the dashboards list them, and their conversion to a dashboard with Grafana's SDK."""

import string
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as models

# Grafana's grid is 24 columns wide; three panels fit side by side.
PANEL_WIDTH = 8
PANEL_HEIGHT = 8

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")


@dataclass(frozen=True)
class Query:
    """PromQL and the legend of its series.

    `{@}` stands for the dashboard's matchers, `{@,x="y"}` for these plus one more, `[@]` for Grafana's rate interval.
    """

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel. `unit` is Grafana's name for the unit; `maximum` is set if the unit has one (a share)."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    maximum: float | None = None
    # Whether to show a text with the names of the existing series instead of a graph.
    names_only: bool = False


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A choice of one or more label values; `all_values` also offers all of them."""

    name: str
    values: str
    all_values: bool


@dataclass(frozen=True)
class Dashboard:
    """One dashboard. `matchers` are inserted where its queries have `{@`."""

    uid: str
    title: str
    description: str
    matchers: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]


def quantile(q: float, family: str, labels: str) -> str:
    """Quantile of a histogram family by `labels`, from classic buckets or from native histograms."""
    classic = f"histogram_quantile({q}, sum by (le, {labels}) (rate({family}_bucket{{@}}[@])))"
    native = f"histogram_quantile({q}, sum by ({labels}) (rate({family}{{@}}[@])))"
    return f"{classic} or {native}"


def total(family: str, labels: str) -> str:
    """Rate of the sum of a histogram family's observations by `labels`, from classic or native histograms."""
    classic = f"sum by ({labels}) (rate({family}_sum{{@}}[@]))"
    native = f"sum by ({labels}) (histogram_sum(rate({family}{{@}}[@])))"
    return f"{classic} or {native}"


def build(dashboard: Dashboard) -> models.Dashboard:
    """The dashboard in the SDK's model. The same input always gives the same output."""
    builder = builders.Dashboard(dashboard.title).uid(dashboard.uid).description(dashboard.description)
    builder = builder.tags(["tcpmon"]).time("now-1h", "now").refresh("30s").timezone("browser").readonly()
    builder = builder.tooltip(models.DashboardCursorSync.CROSSHAIR).link(_link())
    builder = builder.with_variable(_datasource())
    for variable in dashboard.variables:
        builder = builder.with_variable(_variable(variable))
    number = 0
    for row in dashboard.rows:
        number += 1
        builder = builder.with_row(builders.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            builder = builder.with_panel(_panel(panel, dashboard.matchers).id(number))
    return builder.build()


def _link() -> builders.DashboardLink:
    link = builders.DashboardLink("tcpmon").type(models.DashboardLinkType.DASHBOARDS).tags(["tcpmon"])
    return link.include_vars(True).keep_time(True)


def _datasource() -> builders.DatasourceVariable:
    return builders.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _variable(variable: Variable) -> builders.QueryVariable:
    builder = builders.QueryVariable(variable.name).label(variable.name.capitalize()).datasource(DATASOURCE)
    builder = builder.query(variable.values).multi(True).include_all(variable.all_values)
    if variable.all_values:
        # One pattern instead of every value: it is cheaper, and also matches values that appear later.
        builder = builder.all_value(".*").current(models.VariableOption(text="All", value="$__all"))
    builder = builder.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    return builder.sort(models.VariableSort.ALPHABETICAL_ASC)


def _panel(panel: Panel, matchers: str) -> stat.Panel | timeseries.Panel:
    builder = _names(panel) if panel.names_only else _graph(panel)
    builder = builder.title(panel.title).description(panel.description).unit(panel.unit).datasource(DATASOURCE)
    builder = builder.span(PANEL_WIDTH).height(PANEL_HEIGHT)
    for ref_id, query in zip(string.ascii_uppercase, panel.queries):
        expr = query.expr.replace("{@", "{" + matchers).replace("[@]", "[$__rate_interval]")
        target = prometheus.Dataquery().ref_id(ref_id).datasource(DATASOURCE).expr(expr).legend_format(query.legend)
        builder = builder.with_target(target.instant() if panel.names_only else target.range())
    return builder


def _graph(panel: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().display_mode(options.LegendDisplayMode.TABLE).show_legend(True)
    legend = legend.placement(options.LegendPlacement.BOTTOM).calcs(["lastNotNull", "max"])
    legend = legend.sort_by("Max").sort_desc(True)
    tooltip = common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI).sort(options.SortOrder.DESCENDING)
    builder = timeseries.Panel().legend(legend).tooltip(tooltip).line_width(1).fill_opacity(5)
    builder = builder.show_points(options.VisibilityMode.AUTO).min(0)
    if panel.maximum is not None:
        builder = builder.max(panel.maximum)
    return builder


def _names(panel: Panel) -> stat.Panel:
    reduce = common.ReduceDataOptions().calcs(["lastNotNull"])
    builder = stat.Panel().reduce_options(reduce).text_mode(options.BigValueTextMode.NAME)
    return builder.graph_mode(options.BigValueGraphMode.NONE).color_mode(options.BigValueColorMode.NONE)
