//! Draws bars as SVG: segments of time, one bar per lane. Stacks begin at zero and have no gaps; the lanes of a token
//! have both. [`crate::plot`] draws curves.

use std::fmt::Write as _;

use crate::plot::number;

/// Lanes under a common axis of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// Printed above the lanes.
    pub title: String,
    /// The names of the pieces' kinds, by number; at most [`MAX_KINDS`].
    pub kinds: Vec<&'static str>,
    /// From top to bottom.
    pub lanes: Vec<Lane>,
}

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    /// Printed to its left.
    pub label: String,
    /// Overlapping pieces are drawn in order.
    pub pieces: Vec<Piece>,
}

/// A piece of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece {
    /// The number of its kind.
    pub kind: usize,
    /// Milliseconds, ascending.
    pub from_ms: f64,
    /// See `from_ms`.
    pub to_ms: f64,
}

/// The most kinds that can be told apart.
pub const MAX_KINDS: usize = COLOURS.len();

/// Okabe and Ito's palette and two greys, which the colour-blind can tell apart.
const COLOURS: [&str; 9] =
    ["#0072b2", "#56b4e9", "#e69f00", "#bbbbbb", "#cc79a7", "#009e73", "#d55e00", "#444444", "#f0e442"];
const WIDTH: f64 = 860.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 74.0;
const BOTTOM: f64 = 44.0;
const LANE_STEP: f64 = 26.0;
const LANE_HEIGHT: f64 = 18.0;
/// The approximate number of ticks of the axis.
const TICKS: f64 = 8.0;
/// The approximate width of a letter of the legend: there are no fonts to measure.
const LETTER: f64 = 6.6;
/// Pieces narrower than this are invisible and not drawn.
const HAIR: f64 = 0.02;

impl Bars {
    /// The bars as an SVG document on a white background: the same bytes for the same pieces.
    pub fn to_svg(&self) -> String {
        let height = TOP + LANE_STEP * self.lanes.len() as f64 + BOTTOM;
        let most =
            self.lanes.iter().flat_map(|lane| &lane.pieces).map(|piece| piece.to_ms).fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let x = |ms: f64| LEFT + (WIDTH - LEFT - RIGHT) * ms / most;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} \
             {height}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#000000\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
        );
        text(&mut svg, WIDTH / 2.0, 24.0, "middle", 16, &self.title);
        self.legend(&mut svg);
        let foot = TOP + LANE_STEP * self.lanes.len() as f64;
        let step = step_of(most / TICKS);
        for tick in 0..=(most / step) as u32 {
            let ms = step * f64::from(tick);
            let _ = writeln!(
                svg,
                "<path d=\"M{0:.2} {TOP:.2}V{foot:.2}\" stroke=\"#dddddd\" fill=\"none\"/>",
                x(ms)
            );
            text(&mut svg, x(ms), foot + 16.0, "middle", 12, &number(ms));
        }
        text(&mut svg, f64::midpoint(LEFT, WIDTH - RIGHT), foot + 36.0, "middle", 13, "milliseconds");
        for (at, lane) in self.lanes.iter().enumerate() {
            let y = TOP + LANE_STEP * at as f64 + (LANE_STEP - LANE_HEIGHT) / 2.0;
            text(&mut svg, LEFT - 8.0, y + 13.0, "end", 12, &lane.label);
            for piece in &lane.pieces {
                let (from, width) = (x(piece.from_ms), x(piece.to_ms) - x(piece.from_ms));
                if width >= HAIR {
                    let colour = COLOURS[piece.kind % COLOURS.len()];
                    let _ = writeln!(
                        svg,
                        "<rect x=\"{from:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{LANE_HEIGHT}\" \
                         fill=\"{colour}\"/>"
                    );
                }
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn legend(&self, svg: &mut String) {
        let width = |name: &str| 30.0 + LETTER * name.len() as f64;
        let mut at = (WIDTH - self.kinds.iter().map(|name| width(name)).sum::<f64>()) / 2.0;
        for (kind, name) in self.kinds.iter().enumerate() {
            let colour = COLOURS[kind % COLOURS.len()];
            let _ =
                writeln!(svg, "<rect x=\"{at:.2}\" y=\"42\" width=\"12\" height=\"12\" fill=\"{colour}\"/>");
            text(svg, at + 17.0, 52.0, "start", 12, name);
            at += width(name);
        }
    }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, size: u32, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.2}\" y=\"{y:.2}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{text}</text>"
    );
}

/// The smallest of 1, 2 or 5 times a power of ten that is at least `least`.
fn step_of(least: f64) -> f64 {
    let power = libm::pow(10.0, libm::floor(libm::log10(least)));
    [1.0, 2.0, 5.0].map(|times| times * power).into_iter().find(|step| *step >= least).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        assert_eq!([0.9, 1.0, 1.1, 3.0, 6.0, 140.0].map(step_of), [1.0, 1.0, 2.0, 5.0, 10.0, 200.0]);
    }

    #[test]
    fn a_piece_stands_where_its_time_is_and_no_label_breaks_the_document() {
        let piece = Piece { kind: 1, from_ms: 5.0, to_ms: 10.0 };
        let lanes = vec![Lane { label: "a<b & c".to_owned(), pieces: vec![piece] }];
        let svg = Bars { title: "t".to_owned(), kinds: vec!["x", "y"], lanes }.to_svg();
        assert!(svg.contains("a&lt;b &amp; c"));
        // Of 690 wide, the second half.
        assert!(svg.contains("<rect x=\"495.00\" y=\"78.00\" width=\"345.00\""), "{svg}");
    }
}
