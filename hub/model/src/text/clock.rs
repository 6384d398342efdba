//! Formats a given time like Python's `strftime`, in UTC, for templates that put the date into a prompt.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// `format` with `%Y %m %d %H %M %S %y %j %B %b %A %a %e %I %p %%` filled in; other letters stay as they are.
pub(super) fn strftime(format: &str, unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day, day_of_year) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[(days + 3) as usize % 7]); // 1970 began on a Thursday
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let field = match characters.next() {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('e') => format!("{day:2}"),
            Some('j') => format!("{day_of_year:03}"),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        };
        out.push_str(&field);
    }
    out
}

/// Year, month, day and day of the year of a day since 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64, u64) {
    // Years after 9999 are not supported.
    let mut left = days.min(2_932_896);
    let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let day_of_year = left + 1;
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1, day_of_year)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_as_python_writes_them() {
        // datetime.fromtimestamp(1709210096, UTC): 2024-02-29 12:34:56, a Thursday
        let format = "%Y-%m-%d %H:%M:%S %A %a %d %B %b %j %I %p %y 100%% %Q";
        let expected = "2024-02-29 12:34:56 Thursday Thu 29 February Feb 060 12 PM 24 100% %Q";
        assert_eq!(strftime(format, 1_709_210_096), expected);
        assert_eq!(strftime("%d %b %Y", 0), "01 Jan 1970");
        assert_eq!(strftime("%d %b %Y %e", 1_767_225_599), "31 Dec 2025 31");
        assert_eq!(strftime("%Y%", u64::MAX), "9999%");
    }
}
