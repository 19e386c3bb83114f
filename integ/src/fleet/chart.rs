//! Line charts as SVG.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 28.0;
const RIGHT: f64 = 12.0;

/// Colours that are distinct for everyone, also on a dark page: the chart has a white ground of its own.
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// Longest series that is drawn: longer ones are drawn by the largest value of each part.
const POINTS: usize = 700;

/// One line of a chart: a value for each second.
pub(super) struct Line {
    pub(super) name: &'static str,
    pub(super) values: Vec<f64>,
}

/// Draws lines over the seconds of a run, with vertical marks at these seconds.
pub(super) fn svg(title: &str, lines: &[Line], marks: &[(f64, &str)]) -> String {
    let seconds = lines.iter().map(|line| line.values.len()).max().unwrap_or_default().max(2) as f64 - 1.0;
    let most = lines.iter().flat_map(|line| &line.values).copied().fold(0.0, f64::max).max(1.0);
    let x = |second: f64| LEFT + second / seconds * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <title>{title}</title>\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"14\" font-weight=\"bold\">{title}</text>\n"
    );
    for part in 0..=4 {
        let (value, second) = (most * f64::from(part) / 4.0, seconds * f64::from(part) / 4.0);
        let (across, down) = (x(second), y(value));
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {down:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text x=\"{across:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{second:.0} s</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            down + 4.0,
            number(value),
            HEIGHT - 10.0
        );
    }
    for (second, name) in marks {
        let across = x(*second);
        let _ = writeln!(
            svg,
            "<path d=\"M{across:.1} {TOP}V{:.1}\" stroke=\"#888\" stroke-dasharray=\"4 3\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#555\">{name}</text>",
            HEIGHT - BOTTOM,
            across + 4.0,
            TOP + 10.0
        );
    }
    for (at, (line, colour)) in lines.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let width = line.values.len().div_ceil(POINTS).max(1);
        let points: Vec<String> = line
            .values
            .chunks(width)
            .enumerate()
            .map(|(part, values)| {
                let value = values.iter().copied().fold(0.0, f64::max);
                format!("{:.1},{:.1}", x((part * width) as f64), y(value))
            })
            .collect();
        let (points, legend) = (points.join(" "), WIDTH - RIGHT - 120.0 * (lines.len() - at) as f64);
        let _ = writeln!(
            svg,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\
             <text x=\"{legend:.0}\" y=\"14\" fill=\"{colour}\">{}</text>",
            line.name
        );
    }
    svg + "</svg>\n"
}

fn number(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_line_keeps_its_peak() {
        let mut values = vec![0.0; 5_000];
        values[3_333] = 40.0;
        let svg = svg("requests", &[Line { name: "all", values }], &[(100.0, "outage")]);
        // The peak is at the top of the chart.
        assert!(svg.contains(&format!(",{TOP:.1} ")), "{svg}");
        assert!(svg.matches(',').count() < 2 * POINTS);
    }
}
