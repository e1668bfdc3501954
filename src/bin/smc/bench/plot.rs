//! The table of the suite `verbs` as a picture.

use super::report::{Report, machine};
use super::verbs::{PATHS, cell};
use plotters::coord::Shift;
use plotters::prelude::*;
use smc_engine::base::{Error, Result, Status};
use std::path::Path;

const SIZE: (u32, u32) = (960, 460);
const COLOURS: [RGBColor; 3] = [RGBColor(150, 150, 150), RGBColor(31, 119, 180), RGBColor(214, 39, 40)];

/// What one half of the picture shows.
struct Half {
    title: &'static str,
    /// Latency (0) or bandwidth (1) of a cell.
    part: usize,
    /// From the figure's unit to the axis's.
    scale: f64,
}

const HALVES: [Half; 2] = [
    Half { title: "latency, us (lower is better)", part: 0, scale: 1e-3 },
    Half { title: "bandwidth, GB/s (higher is better)", part: 1, scale: 1e-9 },
];

/// Draws it into an SVG file.
pub fn draw(report: &Report, file: &Path) -> Result<()> {
    let bad = |why: String| Error::new(Status::SYSTEM, format!("draw {}", file.display()), why);
    let cells: Vec<[Option<[f64; 2]>; 3]> =
        (0..2).map(|load| PATHS.map(|(_, path)| cell(report, load, path))).collect();
    if cells.iter().flatten().all(Option::is_none) {
        return Err(
            bad("there is nothing to draw: these suites have no such table".into()).remedy("run the suite verbs")
        );
    }
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    picture(report, &root, &cells).map_err(|e| bad(e.to_string()))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = std::result::Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn picture(report: &Report, root: &Area, cells: &[[Option<[f64; 2]>; 3]]) -> Drawn {
    root.fill(&WHITE)?;
    let worth = match report.figures.iter().find(|f| f.name.starts_with("verbs.")) {
        Some(f) if f.modelled => "modelled",
        Some(f) if f.emulated => "emulated",
        _ => "measured",
    };
    let root = root.titled(&format!("smc bench verbs ({worth}; logarithmic)"), ("sans-serif", 20))?;
    let (upper, lower) = root.split_vertically(root.dim_in_pixel().1 as i32 - 24);
    lower.draw(&Text::new(machine(), (8, 4), ("sans-serif", 12)))?;
    for (half, area) in HALVES.iter().zip(upper.split_evenly((1, 2))) {
        panel(half, &area, cells)?;
    }
    root.present()
}

/// Bars of both loads on a logarithmic axis: position 0 to 2 is bulk, 4 to 6 random.
fn panel(half: &Half, area: &Area, cells: &[[Option<[f64; 2]>; 3]]) -> Drawn {
    let value = |c: &Option<[f64; 2]>| c.and_then(|c| c.get(half.part).map(|v| v * half.scale)).filter(|v| *v > 0.0);
    let all: Vec<f64> = cells.iter().flatten().filter_map(value).collect();
    let least = all.iter().copied().fold(f64::MAX, f64::min);
    let most = all.iter().copied().fold(0.0, f64::max);
    if all.is_empty() {
        return Ok(());
    }
    let floor = 10f64.powf(least.log10().floor() - 1.0);
    let mut chart = ChartBuilder::on(area)
        .caption(half.title, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(28)
        .y_label_area_size(56)
        .build_cartesian_2d(-0.6f64..7.0, (floor..most * 8.0).log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .x_desc(format!("4 MiB bulk{}64 B random", "\u{a0}".repeat(42)))
        .y_label_formatter(&|v| if *v < 0.01 { format!("{v:.0e}") } else { format!("{v}") })
        .draw()?;
    for (i, (name, _)) in PATHS.iter().enumerate() {
        let colour = COLOURS.get(i).copied().unwrap_or(BLACK);
        let bars = cells
            .iter()
            .enumerate()
            .filter_map(|(load, c)| Some((load as f64 * 3.6 + i as f64 * 0.9, value(c.get(i)?)?)));
        let bars: Vec<(f64, f64)> = bars.collect();
        chart
            .draw_series(bars.iter().map(|(x, v)| Rectangle::new([(*x, floor), (*x + 0.8, *v)], colour.filled())))?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled()));
        chart.draw_series(bars.iter().map(|(x, v)| Text::new(short(*v), (*x, *v * 1.8), ("sans-serif", 12))))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
}

/// Three significant figures.
fn short(v: f64) -> String {
    match v {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v if v >= 0.01 => format!("{v:.3}"),
        v => format!("{v:.1e}"),
    }
}
