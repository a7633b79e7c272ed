//! The days that a cron expression names, month by month.
//!
//! Cron has two fields for days. If both are restricted (neither begins with `*` or `?`), a day that one of them names is
//! enough; otherwise both must name it. `L`, `W` and `#` are resolved for each month.

use jiff::civil::Date;

/// What both fields for days say.
#[derive(Debug, Clone, Default)]
pub(super) struct Days {
    /// Bit n: day n of the month.
    pub(super) of_month: u64,
    /// Bit n: the day n days before the last (`L`, `L-3`).
    pub(super) before_last: u64,
    /// Bit n: the weekday nearest to day n (`15W`).
    pub(super) nearest_weekday: u64,
    /// The last weekday of the month (`LW`).
    pub(super) last_weekday: bool,
    /// Bit n: day n of the week, 0 is Sunday.
    pub(super) of_week: u64,
    /// For the first to the fifth such day of the month (`FRI#2`): bit n: day n of the week.
    pub(super) nth_of_week: [u64; 5],
    /// Bit n: the last such day of the month (`5L`).
    pub(super) last_of_week: u64,
    /// Whether the day of month begins with `*` or `?`.
    pub(super) month_is_open: bool,
    /// Whether the day of week begins with `*` or `?`.
    pub(super) week_is_open: bool,
}

impl Days {
    /// The days of a month: bit n for day n.
    pub(super) fn of(&self, year: i16, month: i8) -> u64 {
        let Ok(first) = Date::new(year, month, 1) else { return 0 };
        let last = first.days_in_month();
        let week_day = |day: i8| (first.weekday().to_sunday_zero_offset() + day - 1) % 7;
        let all = (2_u64 << last) - 2;
        let by_month = self.by_month(last, &week_day) & all;
        let by_week = self.by_week(last, &week_day);
        if self.month_is_open || self.week_is_open { by_month & by_week } else { by_month | by_week }
    }

    fn by_month(&self, last: i8, week_day: &impl Fn(i8) -> i8) -> u64 {
        let mut days = self.of_month;
        for day in 1..=last {
            if self.before_last >> (last - day) & 1 == 1 {
                days |= 1 << day;
            }
            if self.nearest_weekday >> day & 1 == 1 {
                days |= 1 << nearest_weekday(day, last, week_day(day));
            }
        }
        if self.last_weekday {
            days |= 1 << nearest_weekday(last, last, week_day(last));
        }
        days
    }

    fn by_week(&self, last: i8, week_day: &impl Fn(i8) -> i8) -> u64 {
        let mut days = 0;
        for day in 1..=last {
            let which = usize::try_from((day - 1) / 7).expect("0 to 4");
            let named =
                self.of_week | self.nth_of_week[which] | if day + 7 > last { self.last_of_week } else { 0 };
            if named >> week_day(day) & 1 == 1 {
                days |= 1 << day;
            }
        }
        days
    }
}

/// The weekday (Monday to Friday) nearest to a day, within its month.
fn nearest_weekday(day: i8, last: i8, week_day: i8) -> i8 {
    match week_day {
        6 if day == 1 => 3,
        6 => day - 1,
        0 if day == last => day - 2,
        0 => day + 1,
        _ => day,
    }
}
