//! The chart in the README: increments per second of Tally and of Redis, as an SVG.
//!
//! One panel per load, because rates of different loads differ a hundredfold. Each has its own scale, and every bar is
//! labeled with its figure.

use std::fmt::Write as _;

use crate::report::{Row, number};

/// Loads of the panels, with their titles.
const PANELS: [(&str, &str); 3] = [
    ("one hot key, pipeline 1", "one request at a time"),
    ("one hot key, pipeline 16", "16 requests in a pipeline"),
    ("one hot key, pipeline 128", "128 requests in a pipeline"),
];

/// Servers, with what is written next to their bars, and the class of the bars.
const BARS: [(&str, &str, &str); 3] = [
    ("Tally", "Tally, on disk", "tally"),
    ("Redis in memory", "Redis, in memory", "other"),
    ("Redis with fsync", "Redis, on disk", "other"),
];

const WIDTH: f64 = 720.0;
const LABELS_WIDTH: f64 = 130.0;
const FIGURES_WIDTH: f64 = 70.0;
const BAR_HEIGHT: f64 = 18.0;
const BAR_GAP: f64 = 6.0;
const TITLE_HEIGHT: f64 = 26.0;
const PANEL_GAP: f64 = 14.0;
const PANEL_HEIGHT: f64 = TITLE_HEIGHT + BARS.len() as f64 * (BAR_HEIGHT + BAR_GAP) + PANEL_GAP;

/// In the colors of a light and of a dark page.
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}\
    .tally{fill:#0969da}.other{fill:#8c959f}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.tally{fill:#4493f8}.other{fill:#6e7681}}";

/// The chart, or nothing if a load or a server was not measured.
pub fn svg(rows: &[Row]) -> Option<String> {
    let height = PANELS.len() as f64 * PANEL_HEIGHT;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <title>Increments of one counter per second: Tally and Redis</title>\n<style>{STYLE}</style>\n"
    );
    for (panel, (load, title)) in PANELS.iter().enumerate() {
        let rates = BARS.map(|(server, ..)| {
            let name = format!("{load}: {server}");
            rows.iter().find(|row| row.name == name).map(|row| row.median)
        });
        let rates = rates.into_iter().collect::<Option<Vec<f64>>>()?;
        let most = rates.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let top = panel as f64 * PANEL_HEIGHT;
        let _ = writeln!(out, "<text class=\"title\" x=\"0\" y=\"{}\">{title}</text>", top + 16.0);
        for (bar, ((_, label, class), rate)) in BARS.iter().zip(rates).enumerate() {
            let y = top + TITLE_HEIGHT + bar as f64 * (BAR_HEIGHT + BAR_GAP);
            let width = (WIDTH - LABELS_WIDTH - FIGURES_WIDTH) * rate / most;
            let (text, end, rate) = (y + 14.0, LABELS_WIDTH + width + 6.0, number(rate));
            let _ = writeln!(
                out,
                "<text x=\"0\" y=\"{text}\">{label}</text>\
                 <rect class=\"{class}\" x=\"{LABELS_WIDTH}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\"/>\
                 <text x=\"{end:.1}\" y=\"{text}\">{rate}</text>"
            );
        }
    }
    out.push_str("</svg>\n");
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row =
            |load: &str, server: &str, rate| Row::new("redis", format!("{load}: {server}"), "requests/s", vec![rate]);
        let rates = [300_000.0, 200_000.0, 100_000.0];
        let of_load = |(load, _): (&str, _)| {
            BARS.iter().zip(rates).map(move |((server, ..), rate)| row(load, server, rate)).collect::<Vec<Row>>()
        };
        PANELS.into_iter().flat_map(of_load).collect()
    }

    #[test]
    fn bars_are_as_long_as_the_rates_are_high_and_have_their_figures() {
        let svg = svg(&rows()).unwrap();
        let most = WIDTH - LABELS_WIDTH - FIGURES_WIDTH;
        for (rate, figure) in [(1.0, "300.0 k"), (2.0 / 3.0, "200.0 k"), (1.0 / 3.0, "100.0 k")] {
            assert_eq!(svg.matches(&format!("width=\"{:.1}\"", most * rate)).count(), PANELS.len(), "{svg}");
            assert_eq!(svg.matches(&format!(">{figure}</text>")).count(), PANELS.len(), "{svg}");
        }
    }

    #[test]
    fn there_is_no_chart_without_all_loads() {
        assert_eq!(svg(&rows()[1..]), None);
    }
}
