//! Reads when a password expires.

use std::collections::BTreeMap;

use health::facts::Known;
use jiff::{Timestamp, civil::Date, tz::TimeZone};
use plan::names;

/// When a password expires, from the annotation on the Secret that holds it; none without the annotation.
pub(crate) fn password_expires(annotations: &BTreeMap<String, String>) -> Known<Option<Timestamp>> {
    let Some(noted) = annotations.get(names::PASSWORD_EXPIRES) else {
        return Known::Known(None);
    };
    let day = || noted.parse::<Date>().ok()?.to_zoned(TimeZone::UTC).ok();
    let moment = noted.parse().ok().or_else(|| Some(day()?.timestamp()));
    match moment {
        Some(moment) => Known::Known(Some(moment)),
        None => Known::unknown(&format!("{} of its Secret is no date", names::PASSWORD_EXPIRES)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_password_is_a_day_or_a_moment_or_unknown() {
        let noted = |text: &str| {
            let all = BTreeMap::from([(names::PASSWORD_EXPIRES.to_owned(), text.to_owned())]);
            password_expires(&all)
        };
        let day = "2027-01-31T00:00:00Z".parse().unwrap();
        assert_eq!(noted("2027-01-31"), Known::Known(Some(day)));
        assert_eq!(noted("2027-01-31T01:00:00+01:00"), Known::Known(Some(day)));
        assert_eq!(password_expires(&BTreeMap::new()), Known::Known(None));
        assert!(noted("next year").reason().unwrap().contains("is no date"));
    }
}
