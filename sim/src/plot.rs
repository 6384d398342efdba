//! Draws curves as SVG, in one style, without the machine's fonts, and with the same bytes for the same curves.
//! [`crate::tables`] provides the data.

use plotters::{
    coord::ranged1d::{AsRangedCoord, ValueFormatter},
    prelude::*,
};

use crate::error::ModelError;

/// Curves over one pair of axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Printed above the curves.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Up to [`MAX_CURVES`] have a colour of their own; more reuse colours.
    pub curves: Vec<Curve>,
    /// The corner of the legend, chosen so that it hides no curve.
    pub legend: Legend,
}

/// One direction of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The label, with its unit.
    pub label: &'static str,
    /// First and last value, ascending.
    pub from: f64,
    /// See `from`.
    pub to: f64,
    /// How values are spread.
    pub scale: Scale,
}

/// How an axis distributes its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// Evenly by their logarithm; the range must be above 0.
    Log,
}

/// A line through points.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The name in the legend.
    pub label: String,
    /// The points, ascending in x.
    pub points: Vec<(f64, f64)>,
    /// Points drawn as dots.
    pub dots: Vec<(f64, f64)>,
    /// Whether a thin line connects each dot with the x axis.
    pub drops: bool,
}

/// The corner of a chart that is free of curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Legend {
    /// Top left.
    UpperLeft,
    /// Top right.
    UpperRight,
    /// Bottom right.
    LowerRight,
}

/// The most curves that can be told apart.
pub const MAX_CURVES: usize = COLOURS.len();

/// Okabe and Ito's palette, which the colour-blind can tell apart, without its yellow.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
const SIZE: (u32, u32) = (860, 520);
/// The drawing library rounds positions to whole pixels. So it draws this many times larger than the chart, which keeps
/// curves smooth.
const FINE: u32 = 4;
const TICK_GREY: RGBColor = RGBColor(222, 222, 222);

impl Chart {
    /// The chart as an SVG document.
    pub fn to_svg(&self) -> Result<String, ModelError> {
        use Scale::{Linear, Log};
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, (SIZE.0 * FINE, SIZE.1 * FINE)).into_drawing_area();
            let (x, y) = (self.x.range(), self.y.range());
            match (self.x.scale, self.y.scale) {
                (Linear, Linear) => self.draw(&area, x, y),
                (Log, Linear) => self.draw(&area, x.log_scale(), y),
                (Linear, Log) => self.draw(&area, x, y.log_scale()),
                (Log, Log) => self.draw(&area, x.log_scale(), y.log_scale()),
            }
            .and_then(|()| area.present())
            .map_err(|error| ModelError::Plot(error.to_string()))?;
        }
        let drawn = format!("width=\"{}\" height=\"{}\"", SIZE.0 * FINE, SIZE.1 * FINE);
        Ok(svg.replacen(&drawn, &format!("width=\"{}\" height=\"{}\"", SIZE.0, SIZE.1), 1))
    }

    fn draw<'a, X, Y>(&self, area: &Area<'a>, x: X, y: Y) -> Result<(), DrawError<'a>>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let font = |size: u32| ("sans-serif", size * FINE);
        area.fill(&WHITE)?;
        let below_title = area.margin(8 * FINE, 0, 0, 0).titled(&self.title, font(19))?;
        let mut chart = ChartBuilder::on(&below_title)
            .margin(14 * FINE)
            .x_label_area_size(48 * FINE)
            .y_label_area_size(68 * FINE)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .max_light_lines(0)
            .bold_line_style(TICK_GREY.stroke_width(FINE))
            .axis_style(BLACK.stroke_width(FINE))
            .set_all_tick_mark_size(5 * FINE)
            .x_desc(self.x.label)
            .y_desc(self.y.label)
            .x_label_formatter(&|value| number(*value))
            .y_label_formatter(&|value| number(*value))
            .label_style(font(14))
            .axis_desc_style(font(16))
            .draw()?;
        for (index, curve) in self.curves.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let stroke = colour.stroke_width(2 * FINE);
            chart
                .draw_series(LineSeries::new(curve.points.iter().copied(), stroke))?
                .label(&curve.label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 22 * FINE as i32, y)], stroke));
            if curve.drops {
                let thin = colour.mix(0.5).stroke_width(FINE);
                let drop = |&(x, y): &(f64, f64)| PathElement::new([(x, self.y.from), (x, y)], thin);
                chart.draw_series(curve.dots.iter().map(drop))?;
            }
            chart.draw_series(curve.dots.iter().map(|&dot| Circle::new(dot, 5 * FINE, colour.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(match self.legend {
                Legend::UpperLeft => SeriesLabelPosition::UpperLeft,
                Legend::UpperRight => SeriesLabelPosition::UpperRight,
                Legend::LowerRight => SeriesLabelPosition::LowerRight,
            })
            .margin(14 * FINE)
            .legend_area_size(28 * FINE)
            .background_style(WHITE)
            .label_font(font(15))
            .draw()
    }
}

impl Axis {
    fn range(&self) -> std::ops::Range<f64> {
        match self.scale {
            Scale::Linear => self.from..self.to,
            // Slightly wider, since rounding would remove the tick at the very end.
            Scale::Log => self.from * (1.0 - 1e-9)..self.to * (1.0 + 1e-9),
        }
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type DrawError<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// Formats a tick's value without digits that it does not have.
pub(crate) fn number(value: f64) -> String {
    // Ticks are sums of steps: without rounding, 0.3 would read 0.30000000000000004.
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_read_as_numbers() {
        let ticks = [0.0, 0.1 + 0.2, 10.0, 100.0, 2.5, 1e6].map(number);
        assert_eq!(ticks, ["0", "0.3", "10", "100", "2.5", "1000000"]);
    }
}
