"""Rows, panels and queries as the dashboards list them, and their conversion to a dashboard with Grafana's SDK."""

import re
import string
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

# Grafana's grid is 24 columns wide; four panels fit side by side.
GRID = 24
PANEL_WIDTH = 6
PANEL_HEIGHT = 7
STAT_HEIGHT = 4

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
# What Grafana's import asks for.
INPUT = "DS_PROMETHEUS"

# What a panel shows where its metrics do not exist.
NOT_HERE = "not on this host"


@dataclass(frozen=True)
class Query:
    """PromQL and the legend of its series.

    `{@}` stands for the dashboard's matchers, `{@,x="y"}` for these plus one more, `[@]` for Grafana's rate interval.
    """

    expr: str
    legend: str


@dataclass(frozen=True)
class Steps:
    """Values from which a number is shown in orange and in red; below both it is green."""

    orange: float
    red: float | None = None


@dataclass(frozen=True)
class Panel:
    """One panel. `unit` is Grafana's name for the unit; `maximum` is set if the unit has one (a share)."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    maximum: float | None = None
    # Shows this many series for each query, those with the highest values now, and none that are 0 now.
    top: int | None = None
    steps: Steps | None = None
    # Whether its metrics are missing on some hosts.
    optional: bool = False
    width: int = PANEL_WIDTH


@dataclass(frozen=True)
class Stat:
    """The values of now, as numbers with a colour; without `steps`, the names of the series instead."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    steps: Steps | None
    # What is shown if there is no series.
    empty: str = NOT_HERE
    width: int = PANEL_WIDTH


@dataclass(frozen=True)
class Column:
    """One column of a table: the value of a query by `Table.keys`, or one of its labels."""

    title: str
    expr: str
    unit: str = "short"
    # The label to show instead of the value.
    label: str | None = None
    steps: Steps | None = None
    # Text and colour that are shown instead of some values.
    texts: tuple[tuple[str, str, str], ...] = ()
    # Pixels; without, what the other columns leave.
    width: int | None = 100


@dataclass(frozen=True)
class Table:
    """A line for each combination of `keys`, sorted by the last column, which is not shown."""

    title: str
    description: str
    keys: tuple[str, ...]
    columns: tuple[Column, ...]
    # Where a click on a key leads: title and URL.
    links: tuple[tuple[str, str], ...]
    height: int = 10
    width: int = GRID
    # Pixels for each key.
    key_width: int = 150


AnyPanel = Panel | Stat | Table


@dataclass(frozen=True)
class Row:
    """Panels under one heading, which may be folded away."""

    title: str
    panels: tuple[AnyPanel, ...]
    collapsed: bool = False


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


class Annotation(models.AnnotationQuery):
    """Adds what Grafana's Prometheus data source reads beside the fields that are in the SDK's schema."""

    # The text beside a mark on a graph; it would be empty without these.
    FORMATS = {"titleFormat": "{{alertname}}", "textFormat": "{{instance}} {{process}} {{service}}", "step": "60s"}

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), **self.FORMATS}


def quantile(q: float, family: str, labels: str, of: str = "") -> str:
    """Quantile of a histogram family by `labels`, from classic buckets or from native histograms; `of` chooses some."""
    classic = f"histogram_quantile({q}, sum by (le, {labels}) (rate({family}_bucket{{@}}[@]){of}))"
    native = f"histogram_quantile({q}, sum by ({labels}) (rate({family}{{@}}[@]){of}))"
    return f"{classic} or {native}"


def top_quantile(q: float, family: str, labels: str, lines: int) -> str:
    """The same for as many `labels` as there are `lines`: those with the highest now.

    `Panel.top` would calculate the quantiles of all at each point of the graph, which takes seconds on a large host.
    """
    return quantile(q, family, labels, f" and on ({labels}) topk({lines}, ({at_end(quantile(q, family, labels))}) > 0)")


def build(dashboard: Dashboard) -> models.Dashboard:
    """The dashboard in the SDK's model. The same input always gives the same output."""
    builder = builders.Dashboard(dashboard.title).uid(dashboard.uid).description(dashboard.description)
    builder = builder.tags(["tcpmon"]).time("now-1h", "now").refresh("30s").timezone("browser").readonly()
    builder = builder.tooltip(models.DashboardCursorSync.CROSSHAIR).link(_link(dashboard))
    builder = builder.with_variable(_datasource())
    for variable in dashboard.variables:
        builder = builder.with_variable(_variable(variable))
    number = 0
    for row in dashboard.rows:
        number += 1
        heading = builders.Row(row.title).id(number)
        panels = []
        for panel in row.panels:
            number += 1
            panels.append(_panel(panel, dashboard.matchers).id(number))
        if row.collapsed:
            for panel in panels:
                heading = heading.with_panel(panel)
            builder = builder.with_row(heading.collapsed(True))
        else:
            builder = builder.with_row(heading)
            for panel in panels:
                builder = builder.with_panel(panel)
    built = builder.build()
    built.annotations = models.AnnotationContainer(list_val=[_alerts()])
    _place(built.panels)
    return built


def _place(panels: list[models.Panel | models.RowPanel]) -> None:
    """Puts panels side by side. The SDK would leave the room that folded rows take when they are opened."""
    top = left = height = 0
    for panel in panels:
        if left + panel.grid_pos.w > GRID:
            top, left, height = top + height, 0, 0
        panel.grid_pos.x, panel.grid_pos.y = left, top
        left, height = left + panel.grid_pos.w, max(height, panel.grid_pos.h)
        if isinstance(panel, models.RowPanel):
            _place(panel.panels)
            for nested in panel.panels:
                nested.grid_pos.y += top + 1


def _link(dashboard: Dashboard) -> builders.DashboardLink:
    link = builders.DashboardLink("tcpmon").type(models.DashboardLinkType.DASHBOARDS).tags(["tcpmon"])
    # "All" is no choice of hosts on the other dashboards.
    every = any(variable.all_values for variable in dashboard.variables if variable.name == "instance")
    return link.include_vars(not every).keep_time(True)


def _alerts() -> Annotation:
    """Marks on all graphs while an alert fires."""
    firing = 'ALERTS{alertname=~"Tcpmon.+",alertstate="firing",instance=~"$instance"}'
    return Annotation(name="Alerts", datasource=DATASOURCE, icon_color="red", expr=firing)


def _datasource() -> builders.DatasourceVariable:
    """The import replaces the input with the chosen data source. Without an import, no data source is called like the
    input, and Grafana takes the first one.
    """
    chosen = models.VariableOption(text=f"${{{INPUT}}}", value=f"${{{INPUT}}}")
    return builders.DatasourceVariable("datasource").label("Data source").type("prometheus").current(chosen)


def _variable(variable: Variable) -> builders.QueryVariable:
    builder = builders.QueryVariable(variable.name).label(variable.name.capitalize()).datasource(DATASOURCE)
    builder = builder.query(variable.values).multi(True).include_all(variable.all_values)
    if variable.all_values:
        # One pattern instead of every value: it is cheaper, and also matches values that appear later.
        builder = builder.all_value(".*").current(models.VariableOption(text="All", value="$__all"))
    builder = builder.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    return builder.sort(models.VariableSort.ALPHABETICAL_ASC)


def _panel(panel: AnyPanel, matchers: str) -> stat.Panel | table.Panel | timeseries.Panel:
    if isinstance(panel, Table):
        return _table(panel, matchers)
    builder = _stat(panel) if isinstance(panel, Stat) else _graph(panel)
    builder = builder.title(panel.title).description(panel.description).unit(panel.unit).datasource(DATASOURCE)
    if panel.steps is not None:
        builder = builder.thresholds(_thresholds(panel.steps))
    top = panel.top if isinstance(panel, Panel) else None
    for ref_id, query in zip(string.ascii_uppercase, panel.queries):
        expr = f"({query.expr}) and topk({top}, ({at_end(query.expr)}) > 0)" if top else query.expr
        target = prometheus.Dataquery().ref_id(ref_id).datasource(DATASOURCE).expr(_filled(expr, matchers))
        target = target.legend_format(query.legend)
        builder = builder.with_target(target.instant() if isinstance(panel, Stat) else target.range())
    return builder


def at_end(expr: str) -> str:
    """The expression as it is at the end of the graph's time range, at each of its points: so the same series are the
    highest all over the graph.
    """
    return re.sub(r"\{@[^}]*\}(\[@\])?", lambda selector: f"{selector[0]} @ end()", expr)


def _filled(expr: str, matchers: str) -> str:
    return expr.replace("{@", "{" + matchers).replace("[@]", "[$__rate_interval]")


def _graph(panel: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().display_mode(options.LegendDisplayMode.TABLE).show_legend(True)
    legend = legend.placement(options.LegendPlacement.BOTTOM).calcs(["lastNotNull", "max"])
    legend = legend.sort_by("Last *").sort_desc(True)
    tooltip = common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI).sort(options.SortOrder.DESCENDING)
    builder = timeseries.Panel().legend(legend).tooltip(tooltip).line_width(1).fill_opacity(5)
    builder = builder.show_points(options.VisibilityMode.AUTO).min(0).span(panel.width).height(PANEL_HEIGHT)
    if panel.maximum is not None:
        builder = builder.max(panel.maximum)
    if panel.steps is not None:
        style = common.GraphThresholdsStyleConfig().mode(options.GraphTresholdsStyleMode.DASHED)
        builder = builder.thresholds_style(style)
    if panel.optional:
        builder = builder.no_value(NOT_HERE)
    elif panel.top:
        builder = builder.no_value("none now")
    return builder


def _stat(panel: Stat) -> stat.Panel:
    reduce = common.ReduceDataOptions().calcs(["lastNotNull"])
    builder = stat.Panel().reduce_options(reduce).graph_mode(options.BigValueGraphMode.NONE)
    builder = builder.no_value(panel.empty).span(panel.width).height(STAT_HEIGHT)
    if panel.steps is None:
        return builder.text_mode(options.BigValueTextMode.NAME).color_mode(options.BigValueColorMode.NONE)
    # Grafana then names the numbers where there is more than one.
    return builder.text_mode(options.BigValueTextMode.AUTO).color_mode(options.BigValueColorMode.BACKGROUND)


def _thresholds(steps: Steps, below: str = "green") -> builders.ThresholdsConfig:
    levels = [models.Threshold(value=None, color=below), models.Threshold(value=steps.orange, color="orange")]
    if steps.red is not None:
        levels.append(models.Threshold(value=steps.red, color="red"))
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(levels)


def _table(panel: Table, matchers: str) -> table.Panel:
    builder = table.Panel().title(panel.title).description(panel.description).datasource(DATASOURCE)
    builder = builder.span(panel.width).height(panel.height).no_value("").unit("short")
    names = {key: key.capitalize() for key in panel.keys}
    hidden = {"Time": True}
    order = dict(zip(panel.keys, range(len(panel.keys))))
    for ref_id, column in zip(string.ascii_uppercase, panel.columns):
        target = prometheus.Dataquery().ref_id(ref_id).datasource(DATASOURCE).expr(_filled(column.expr, matchers))
        target = target.legend_format(column.title).instant().format(PromQueryFormat.TABLE)
        builder = builder.with_target(target)
        field = column.label or f"Value #{ref_id}"
        if column.label is not None:
            hidden[f"Value #{ref_id}"] = True
        order[field] = len(order)
        names[field] = column.title
        builder = builder.override_by_name(column.title, _properties(column))
    # The last column is for sorting only.
    rank = panel.columns[-1].title
    builder = builder.override_by_name(rank, [models.DynamicConfigValue("custom.hidden", True)])
    links = models.DynamicConfigValue("links", [{"title": title, "url": url} for title, url in panel.links])
    width = models.DynamicConfigValue("custom.width", panel.key_width)
    for key in panel.keys:
        builder = builder.override_by_name(names[key], [links, width])
    arranged = {"excludeByName": hidden, "indexByName": order, "renameByName": names}
    builder = builder.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    builder = builder.with_transformation(models.DataTransformerConfig(id_val="organize", options=arranged))
    by = common.TableSortByFieldState().display_name(rank).desc(True)
    return builder.sort_by([by])


def _properties(column: Column) -> list[models.DynamicConfigValue]:
    found = [models.DynamicConfigValue("unit", column.unit)]
    if column.width is not None:
        found.append(models.DynamicConfigValue("custom.width", column.width))
    if column.steps is not None:
        found.append(models.DynamicConfigValue("thresholds", _thresholds(column.steps, "text").build()))
    if column.texts:
        texts = {value: models.ValueMappingResult(text=text, color=color) for value, text, color in column.texts}
        found.append(models.DynamicConfigValue("mappings", [models.ValueMap(options=texts)]))
    if column.steps is not None or column.texts:
        found.append(models.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
    return found
