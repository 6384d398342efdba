//! Draws a QR code with half blocks on a terminal.

use qrcode::{EcLevel, QrCode};

/// Margins in modules: the standard's, and a smaller one for narrow terminals that scanners still read.
const QUIET_ZONES: [usize; 2] = [4, 2];
/// White on black whatever the terminal's theme: a lit half block is light.
const COLOURS: &str = "\x1b[38;5;231;48;5;16m";
const RESET: &str = "\x1b[0m";

/// The QR code as lines of at most this many columns, with colours; none if it does not fit.
pub fn lines(text: &str, columns: usize) -> Option<Vec<String>> {
    let code = QrCode::with_error_correction_level(text, EcLevel::L).ok()?;
    let modules = code.width();
    let quiet = QUIET_ZONES.into_iter().find(|quiet| modules + 2 * quiet <= columns)?;
    let dark = code.to_colors();
    let side = modules + 2 * quiet;
    let is_light = |row: usize, column: usize| {
        let inside = (quiet..quiet + modules).contains(&row) && (quiet..quiet + modules).contains(&column);
        !inside || dark[(row - quiet) * modules + column - quiet] == qrcode::Color::Light
    };
    let line = |upper: usize| {
        let halves = (0..side).map(|column| {
            // Below the last row, the terminal's own background would not be a margin.
            match (is_light(upper, column), upper + 1 >= side || is_light(upper + 1, column)) {
                (true, true) => '█',
                (true, false) => '▀',
                (false, true) => '▄',
                (false, false) => ' ',
            }
        });
        format!("{COLOURS}{}{RESET}", halves.collect::<String>())
    };
    Some((0..side).step_by(2).map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOOR: &str = "http://192.168.100.200:8080/#abcdefghijkmnpqrstuvwxyz23456789";

    fn plain(lines: &[String]) -> Vec<Vec<char>> {
        lines.iter().map(|line| line.replace(COLOURS, "").replace(RESET, "").chars().collect()).collect()
    }

    #[test]
    fn a_margin_of_light_modules_surrounds_it() {
        let lines = plain(&lines(DOOR, 80).unwrap());
        let side = lines[0].len();
        assert!(side <= 41 && lines.iter().all(|line| line.len() == side), "{side}");
        assert!(
            lines[..2]
                .iter()
                .chain(&lines[lines.len() - 2..])
                .all(|line| line.iter().all(|&half| half == '█'))
        );
        assert!(lines.iter().all(|line| line[..4].iter().chain(&line[side - 4..]).all(|&half| half == '█')));
        // The corner of the finder pattern: dark above, and dark below it.
        assert_eq!(lines[2][4], ' ');
    }

    #[test]
    fn it_fits_forty_columns_and_is_left_out_where_it_cannot_fit() {
        assert!(plain(&lines(DOOR, 40).unwrap())[0].len() <= 40);
        assert_eq!(lines(DOOR, 30), None);
        assert_eq!(lines(&"x".repeat(5000), 4000), None);
    }
}
