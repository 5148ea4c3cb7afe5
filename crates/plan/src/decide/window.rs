//! The maintenance window, in which upgrades can start.

use api::vdo_config::{UpgradeWindow, Weekday};
use jiff::{SignedDuration, Timestamp, Zoned, civil::Time, tz::TimeZone};

/// The state of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowState {
    /// Upgrades can start now.
    Open,
    /// Upgrades can start at this time.
    Until(Timestamp),
    /// VDO cannot parse the window, so it never opens: no upgrade is better than one at the wrong hour.
    Unreadable,
}

/// The current state of the window.
pub(super) fn state(window: &UpgradeWindow, now: Timestamp) -> WindowState {
    let Some((start, length, zone)) = parts(window) else { return WindowState::Unreadable };
    let today = now.to_zoned(zone);
    // A window that opened up to a week ago can still be open; the next one opens within a week.
    let mut next = None;
    for offset in -7..=7 {
        let Some(opens) = opening(window, &today, offset, start) else { continue };
        if opens <= now && now.duration_since(opens) < length {
            return WindowState::Open;
        }
        if opens > now && next.is_none() {
            next = Some(opens);
        }
    }
    next.map_or(WindowState::Unreadable, WindowState::Until)
}

/// Why VDO cannot read the window.
pub(super) fn problem(window: &UpgradeWindow) -> Option<String> {
    if parts(window).is_some() {
        return None;
    }
    Some(match &window.time_zone {
        Some(zone) if TimeZone::get(&zone.0).is_err() => {
            format!("there is no time zone {}", zone.0)
        }
        _ => "its start or duration cannot be read".to_owned(),
    })
}

fn parts(window: &UpgradeWindow) -> Option<(Time, SignedDuration, TimeZone)> {
    let (hour, minute) = window.start.0.split_once(':')?;
    let start = Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok()?;
    let length = SignedDuration::try_from(window.duration.duration()?).ok()?;
    let zone = match &window.time_zone {
        None => TimeZone::UTC,
        Some(name) => TimeZone::get(&name.0).ok()?,
    };
    Some((start, length, zone))
}

fn opening(window: &UpgradeWindow, today: &Zoned, offset: i8, start: Time) -> Option<Timestamp> {
    let day = today.date().checked_add(jiff::Span::new().days(offset)).ok()?;
    let named = window.days.is_empty() || window.days.iter().any(|d| weekday(*d) == day.weekday());
    let opens = day.to_datetime(start).to_zoned(today.time_zone().clone()).ok()?;
    named.then(|| opens.timestamp())
}

fn weekday(day: Weekday) -> jiff::civil::Weekday {
    use jiff::civil::Weekday as Civil;
    match day {
        Weekday::Monday => Civil::Monday,
        Weekday::Tuesday => Civil::Tuesday,
        Weekday::Wednesday => Civil::Wednesday,
        Weekday::Thursday => Civil::Thursday,
        Weekday::Friday => Civil::Friday,
        Weekday::Saturday => Civil::Saturday,
        Weekday::Sunday => Civil::Sunday,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(value: serde_json::Value) -> UpgradeWindow {
        serde_json::from_value(value).unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_window_is_open_from_its_start_for_its_length() {
        let daily = window(serde_json::json!({"start": "02:00", "duration": "4h"}));
        assert_eq!(state(&daily, at("2026-11-14T02:00:00Z")), WindowState::Open);
        assert_eq!(state(&daily, at("2026-11-14T05:59:59Z")), WindowState::Open);
        let next = WindowState::Until(at("2026-11-15T02:00:00Z"));
        assert_eq!(state(&daily, at("2026-11-14T06:00:00Z")), next);
    }

    #[test]
    fn a_window_that_began_yesterday_is_still_open_after_midnight() {
        let late =
            window(serde_json::json!({"days": ["Saturday"], "start": "23:00", "duration": "3h"}));
        assert_eq!(
            state(&late, at("2026-11-15T01:30:00Z")),
            WindowState::Open,
            "Sunday, half past one"
        );
        assert_ne!(state(&late, at("2026-11-15T02:00:00Z")), WindowState::Open);
    }

    #[test]
    fn a_window_may_last_for_days() {
        let weekend = serde_json::json!({"days": ["Friday"], "start": "20:00", "duration": "60h"});
        let weekend = window(weekend);
        assert_eq!(
            state(&weekend, at("2026-11-15T21:30:00Z")),
            WindowState::Open,
            "Sunday evening"
        );
        assert_ne!(
            state(&weekend, at("2026-11-16T08:00:00Z")),
            WindowState::Open,
            "Monday morning"
        );
    }

    #[test]
    fn a_window_opens_by_the_clock_of_its_zone() {
        let berlin = window(serde_json::json!({
            "start": "02:00", "duration": "1h", "timeZone": "Europe/Berlin",
        }));
        assert_eq!(state(&berlin, at("2026-11-14T01:00:00Z")), WindowState::Open, "winter");
        assert_eq!(state(&berlin, at("2026-07-14T00:00:00Z")), WindowState::Open, "summer");
        assert_ne!(state(&berlin, at("2026-07-14T01:00:00Z")), WindowState::Open);
    }

    #[test]
    fn a_window_that_cannot_be_read_never_opens() {
        let odd = window(serde_json::json!({
            "start": "02:00", "duration": "1h", "timeZone": "Mars/Olympus",
        }));
        assert_eq!(state(&odd, at("2026-11-14T02:30:00Z")), WindowState::Unreadable);
    }
}
