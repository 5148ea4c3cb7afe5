//! Every finding, by code. Each [`Theme`](super::Theme) has a hundred codes and a file.

use super::Definition;

/// Declares the definitions of one theme as constants and lists them in `OWN`. `concerns` of a single
/// definition overrides that of the theme.
macro_rules! catalogue {
    (theme: $theme:ident, concerns: $concerns:ident; $($name:ident = $code:literal {
        title: $title:literal,
        severity: $severity:ident,
        $(concerns: $own_concerns:ident,)?
        seen: $seen:literal,
        why: $why:literal,
        remedy: [$($step:literal),+ $(,)?]
        $(, fixable: $fixable:literal)? $(,)?
    })+) => {
        pub mod codes {
            use crate::finding::{Concerns, Definition, Severity, Theme};
            $(
                #[doc = concat!("`", $code, "`: ", $title)]
                pub const $name: &Definition = &Definition {
                    code: $code,
                    theme: Theme::$theme,
                    concerns: catalogue!(@concerns $concerns $($own_concerns)?),
                    title: $title,
                    severity: Severity::$severity,
                    seen: $seen,
                    why: $why,
                    remedy: &[$($step),+],
                    fixable: false $(|| $fixable)?,
                };
            )+
        }

        pub(super) const OWN: &[&crate::finding::Definition] = &[$(codes::$name),+];
    };
    (@concerns $theme:ident) => { Concerns::$theme };
    (@concerns $theme:ident $own:ident) => { Concerns::$own };
}

mod checks;
mod configuration;
mod drivers;
mod nodes;
mod operator;
mod privileges;
mod releases;
mod storage;
mod vcenter;
mod zones;

/// The definitions by name.
pub mod codes {
    pub use super::{
        checks::codes::*, configuration::codes::*, drivers::codes::*, nodes::codes::*,
        operator::codes::*, privileges::codes::*, releases::codes::*, storage::codes::*,
        vcenter::codes::*, zones::codes::*,
    };
}

const THEMES: [&[&Definition]; 10] = [
    configuration::OWN,
    releases::OWN,
    nodes::OWN,
    vcenter::OWN,
    privileges::OWN,
    storage::OWN,
    drivers::OWN,
    zones::OWN,
    checks::OWN,
    operator::OWN,
];

const COUNT: usize = {
    let (mut count, mut theme) = (0, 0);
    while theme < THEMES.len() {
        count += THEMES[theme].len();
        theme += 1;
    }
    count
};

/// All definitions, ordered by code.
pub const CATALOGUE: &[&Definition] = &sorted(joined());

const fn joined() -> [&'static Definition; COUNT] {
    let mut all = [THEMES[0][0]; COUNT];
    let (mut place, mut theme) = (0, 0);
    while theme < THEMES.len() {
        let mut at = 0;
        while at < THEMES[theme].len() {
            all[place] = THEMES[theme][at];
            place += 1;
            at += 1;
        }
        theme += 1;
    }
    all
}

/// Sorts by insertion: the themes come nearly in order.
const fn sorted(mut all: [&'static Definition; COUNT]) -> [&'static Definition; COUNT] {
    let mut end = 1;
    while end < all.len() {
        let mut at = end;
        while at > 0 && number(all[at]) < number(all[at - 1]) {
            let lower = all[at];
            all[at] = all[at - 1];
            all[at - 1] = lower;
            at -= 1;
        }
        end += 1;
    }
    all
}

/// The digits of a code, for comparison.
const fn number(definition: &Definition) -> u32 {
    let code = definition.code.as_bytes();
    let (mut value, mut at) = (0, 0);
    while at < code.len() {
        if code[at].is_ascii_digit() {
            value = value * 10 + (code[at] - b'0') as u32;
        }
        at += 1;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Concerns, Theme};
    #[test]
    fn codes_are_unique_ordered_and_well_formed() {
        let codes: Vec<&str> = CATALOGUE.iter().map(|d| d.code).collect();
        assert!(codes.windows(2).all(|pair| pair[0] < pair[1]), "{codes:?}");
        for code in codes {
            let digits = code.strip_prefix("VDO-").unwrap();
            assert!(digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit()), "{code}");
        }
    }

    #[test]
    fn the_code_of_a_finding_shows_its_theme() {
        for definition in CATALOGUE {
            let theme = match &definition.code[..6] {
                "VDO-10" => Theme::Configuration,
                "VDO-11" => Theme::Releases,
                "VDO-12" => Theme::Nodes,
                "VDO-13" => Theme::Vcenters,
                "VDO-14" => Theme::Privileges,
                "VDO-15" => Theme::Storage,
                "VDO-16" => Theme::Drivers,
                "VDO-17" => Theme::Zones,
                "VDO-18" => Theme::Checks,
                "VDO-19" => Theme::Operator,
                other => panic!("{other} has no theme"),
            };
            assert_eq!(definition.theme, theme, "{}", definition.code);
            let checked = ("VDO-12".."VDO-19").contains(&definition.code);
            assert_eq!(definition.theme.is_checked(), checked, "{}", definition.code);
        }
    }

    #[test]
    fn the_theme_of_a_finding_decides_which_driver_it_concerns() {
        for definition in CATALOGUE {
            let concerns = match definition.theme {
                Theme::Nodes => Concerns::CloudProvider,
                Theme::Privileges | Theme::Storage => Concerns::StorageDriver,
                Theme::Vcenters if definition.code == codes::VCENTER_TOO_OLD.code => {
                    Concerns::StorageDriver
                }
                Theme::Vcenters | Theme::Drivers | Theme::Zones => Concerns::BothDrivers,
                _ => Concerns::NoDriver,
            };
            assert_eq!(definition.concerns, concerns, "{}", definition.code);
        }
    }

    #[test]
    fn every_definition_has_complete_texts() {
        for definition in CATALOGUE {
            let code = definition.code;
            assert!(definition.title.len() <= 72, "{code}: the title is too long for one line");
            assert!(!definition.title.ends_with('.') && !definition.title.contains('{'), "{code}");
            assert!(definition.why.ends_with('.'), "{code}: why is a sentence");
            assert!(!definition.remedy.is_empty(), "{code}: there is always something to do");
        }
    }
}
