//! Graphs as SVG.

use std::path::Path;

use plotters::prelude::*;
use tcpmon_tests::mean::Mean;

/// Colors that can be told apart on white.
const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(80, 80, 80),
];

/// One line of a graph.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    /// x, and the mean of y.
    pub points: Vec<(f64, Mean)>,
}

/// What a graph shows.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    /// Whether the x axis is logarithmic.
    pub logarithmic: bool,
    /// Whether x is a number of bytes.
    pub bytes: bool,
}

/// Draws series with their intervals.
pub fn draw(file: &Path, axes: Axes<'_>, series: &[Series]) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(file, (760, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let xs = || series.iter().flat_map(|series| series.points.iter().map(|(x, _)| *x));
    let (least, most) = xs().fold((f64::MAX, f64::MIN), |(least, most), x| (least.min(x), most.max(x)));
    let top = series.iter().flat_map(|series| series.points.iter().map(|(_, y)| y.value + y.half)).fold(0.0, f64::max);
    let place = |x: f64| if axes.logarithmic { x.max(1.0).log2() } else { x };
    let (least, most) = (place(least), place(most));
    let margin = f64::max((most - least) * 0.03, 0.1);
    let mut chart = ChartBuilder::on(&area)
        .caption(axes.title, ("sans-serif", 17))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(least - margin..most + margin, 0.0..f64::max(top * 1.08, 1e-9))?;
    let label = |x: &f64| {
        let x = if axes.logarithmic { x.exp2() } else { *x };
        if axes.bytes { bytes(x) } else { format!("{x:.0}") }
    };
    chart
        .configure_mesh()
        .x_desc(axes.x)
        .y_desc(axes.y)
        .x_label_formatter(&label)
        .y_label_formatter(&|y| if top < 10.0 { format!("{y:.1}") } else { format!("{y:.0}") })
        .light_line_style(WHITE)
        .draw()?;
    for (number, series) in series.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let at = |(x, y): &(f64, Mean)| (place(*x), y.value);
        chart
            .draw_series(LineSeries::new(series.points.iter().map(at), colour.stroke_width(2)))?
            .label(series.name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(series.points.iter().map(|(x, y)| {
            ErrorBar::new_vertical(
                place(*x),
                (y.value - y.half).max(0.0),
                y.value,
                y.value + y.half,
                colour.filled(),
                6,
            )
        }))?;
    }
    chart
        .configure_series_labels()
        .position(match axes.logarithmic {
            true => SeriesLabelPosition::UpperLeft,
            false => SeriesLabelPosition::MiddleRight,
        })
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}

/// A number of bytes in few characters.
fn bytes(number: f64) -> String {
    match number {
        mega if mega >= 1e6 => format!("{:.1} MB", mega / 1e6),
        kilo if kilo >= 1e3 => format!("{:.0} kB", kilo / 1e3),
        few => format!("{few:.0} B"),
    }
}
