//! The two text formats of metrics, and which one a client asks for.
//!
//! The encoder writes OpenMetrics. The classic format differs in a few lines only: a counter is declared under its full
//! name, an info is a gauge, and there is no end marker.

use std::fmt::Write as _;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFormat {
    /// The format of Prometheus, version 0.0.4.
    Classic,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl TextFormat {
    /// The format that the `Accept` header of a request asks for: OpenMetrics only if it is named and nothing else is
    /// preferred.
    pub fn accepted<'a>(headers: impl Iterator<Item = &'a str>) -> TextFormat {
        let (mut open, mut classic) = (0.0, 0.0);
        for range in headers.flat_map(|header| header.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let quality = match parts.next().map(str::to_ascii_lowercase).as_deref() {
                Some("application/openmetrics-text") => &mut open,
                Some("text/plain") => &mut classic,
                _ => continue,
            };
            let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |q| q.parse::<f64>().ok());
            *quality = weight.unwrap_or(0.0).max(*quality);
        }
        if open > 0.0 && open >= classic { TextFormat::OpenMetrics } else { TextFormat::Classic }
    }

    /// The media type.
    pub fn content_type(self) -> &'static str {
        match self {
            TextFormat::Classic => "text/plain; version=0.0.4; charset=utf-8",
            TextFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// `open_metrics` in this format.
    pub fn convert(self, open_metrics: String) -> String {
        match self {
            TextFormat::Classic => to_classic(&open_metrics),
            TextFormat::OpenMetrics => open_metrics,
        }
    }
}

fn to_classic(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len() + (1 << 10));
    let mut help = "";
    for line in open_metrics.lines() {
        if let Some(text) = line.strip_prefix("# HELP ") {
            // Written with the type, which decides the name.
            help = text.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|text| text.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            // Writing to memory cannot fail.
            let _ = writeln!(out, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_client_that_asks_for_openmetrics_gets_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for accept in
            ["application/openmetrics-text", "text/plain, Application/OpenMetrics-Text; version=1.0.0", prometheus]
        {
            assert_eq!(TextFormat::accepted([accept].into_iter()), TextFormat::OpenMetrics, "{accept}");
        }
        let refused = "application/openmetrics-text;q=0";
        let less = "application/openmetrics-text;q=0.2, text/plain;q=0.9";
        for accept in ["", "*/*", "text/plain", "text/html", "application/openmetrics-text;q=x", refused, less] {
            assert_eq!(TextFormat::accepted([accept].into_iter()), TextFormat::Classic, "{accept}");
        }
        assert_eq!(TextFormat::accepted(std::iter::empty()), TextFormat::Classic);
    }

    #[test]
    fn the_classic_format_declares_series_under_their_full_names() {
        let open = "# HELP a Two words.\n# TYPE a counter\n# UNIT a bytes\na_total{b=\"c\"} 1\n# HELP i I.\n# TYPE i info\n\
            i_info{v=\"1\"} 1\n# HELP g G.\n# TYPE g gauge\ng 1.0\n# EOF\n";
        let classic = "# HELP a_total Two words.\n# TYPE a_total counter\na_total{b=\"c\"} 1\n# HELP i_info I.\n\
            # TYPE i_info gauge\ni_info{v=\"1\"} 1\n# HELP g G.\n# TYPE g gauge\ng 1.0\n";
        assert_eq!(TextFormat::Classic.convert(open.to_owned()), classic);
        assert_eq!(TextFormat::OpenMetrics.convert(open.to_owned()), open);
    }
}
