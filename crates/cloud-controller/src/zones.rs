//! Zone and region of a machine, from the tags on what it stands below.
//!
//! A machine is followed up three ways, in the order of the Go controller: from its host, from its resource
//! pool, from itself through its folders. The first way on which every wanted category is found decides
//! alone, so a machine's own tags count where neither host nor pool leads to all of them; if there is no
//! such way, each category is taken from the first that has it. On one way, the nearest object wins.

use std::fmt;

/// The tag categories that mean zone and region; empty is not wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Categories {
    /// Of zones.
    pub zone: String,
    /// Of regions.
    pub region: String,
}

impl Categories {
    /// Whether neither is wanted.
    pub fn is_empty(&self) -> bool {
        self.zone.is_empty() && self.region.is_empty()
    }
}

/// An object on the way up, with its tags: category and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// What a person calls it.
    pub title: String,
    /// Category and tag.
    pub tags: Vec<(String, String)>,
}

/// A tag that decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The zone or region.
    pub value: String,
    /// The object that carries the tag.
    pub at: String,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zones {
    /// The zone.
    pub zone: Option<Found>,
    /// The region.
    pub region: Option<Found>,
    /// What is wanted and not there, or not usable.
    pub missing: Vec<Missing>,
}

/// A category no usable tag was found of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The category.
    pub category: String,
    /// A tag that is there but cannot be a label.
    pub unusable: Option<Found>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.unusable {
            None => write!(
                f,
                "no tag of the category \"{}\" on the host, the cluster, the datacenter, the resource pool \
                 or the machine and its folders: attach one",
                self.category
            ),
            Some(tag) => write!(
                f,
                "the tag \"{}\" of the category \"{}\" on {} cannot be a label: use letters, digits, \
                 '-', '_' and '.' only, at most 63",
                tag.value, self.category, tag.at
            ),
        }
    }
}

/// The tag of a category that is nearest on a way.
fn nearest(way: &[Step], category: &str) -> Option<Found> {
    way.iter().find_map(|step| {
        let tag = step.tags.iter().filter(|(of, _)| of == category).map(|(_, tag)| tag).min()?;
        Some(Found { value: tag.clone(), at: step.title.clone() })
    })
}

/// Whether a way leads to all that is wanted.
fn is_complete(way: &[Step], wanted: &Categories) -> bool {
    let mut all = [&wanted.zone, &wanted.region].into_iter();
    all.all(|category| category.is_empty() || nearest(way, category).is_some())
}

/// Whether a way before the last, which is the machine's own, decides: then the machine's own tags change
/// nothing, and need not be known.
pub fn is_decided_above(ways: &[Vec<Step>], wanted: &Categories) -> bool {
    let above = ways.split_last().map_or(&[][..], |(_, above)| above);
    above.iter().any(|way| is_complete(way, wanted))
}

/// Zone and region, from the ways up (each nearest first).
pub fn choose(ways: &[Vec<Step>], wanted: &Categories) -> Zones {
    let complete = ways.iter().find(|way| is_complete(way, wanted));
    let mut missing = Vec::new();
    let [zone, region] = [&wanted.zone, &wanted.region].map(|category| {
        if category.is_empty() {
            return None;
        }
        let found = match complete {
            Some(way) => nearest(way, category),
            None => ways.iter().find_map(|way| nearest(way, category)),
        };
        match found {
            Some(found) if is_label(&found.value) => Some(found),
            unusable => {
                missing.push(Missing { category: category.clone(), unusable });
                None
            }
        }
    });
    Zones { zone, region, missing }
}

/// Whether a text can be the value of a label.
pub fn is_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let ends = [text.bytes().next(), text.bytes().next_back()];
    text.len() <= 63
        && text.bytes().all(inner)
        && ends.iter().all(|end| end.is_some_and(|b| b.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Categories {
        Categories { zone: "k8s-zone".into(), region: "k8s-region".into() }
    }

    fn step(title: &str, tags: &[(&str, &str)]) -> Step {
        let tags = tags.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        Step { title: title.into(), tags }
    }

    /// `zone@object region@object`, `-` where there is none.
    fn shown(zones: &Zones) -> String {
        let one = |f: &Option<Found>| {
            f.as_ref().map_or("-".to_owned(), |f| format!("{}@{}", f.value, f.at))
        };
        format!("{} {}", one(&zones.zone), one(&zones.region))
    }

    #[test]
    fn the_nearest_tag_wins_on_the_first_way_that_has_both() {
        let (z, r) = ("k8s-zone", "k8s-region");
        let host =
            |tags: &[(&str, &str)]| vec![step("host", tags), step("cluster", &[]), step("dc", &[])];
        for (what, ways, expected) in [
            ("no tags", vec![host(&[])], "- -"),
            ("an unrelated tag", vec![host(&[("team", "a")])], "- -"),
            ("region alone", vec![host(&[(r, "eu")])], "- eu@host"),
            ("both on the host", vec![host(&[(r, "eu"), (z, "a")])], "a@host eu@host"),
            (
                "region on the datacenter, zone on the cluster",
                vec![vec![
                    step("host", &[]),
                    step("cluster", &[(z, "a")]),
                    step("dc", &[(r, "eu")]),
                ]],
                "a@cluster eu@dc",
            ),
            (
                "a farther tag does not override a nearer one",
                vec![vec![
                    step("host", &[(z, "near")]),
                    step("cluster", &[(z, "far")]),
                    step("dc", &[(r, "eu")]),
                ]],
                "near@host eu@dc",
            ),
            (
                "a complete way beats an earlier incomplete one",
                vec![host(&[(z, "host-zone")]), vec![step("vm", &[(z, "vm-zone"), (r, "eu")])]],
                "vm-zone@vm eu@vm",
            ),
            (
                "a complete way beats the machine's own tags",
                vec![host(&[(z, "a"), (r, "eu")]), vec![step("vm", &[(z, "own"), (r, "own")])]],
                "a@host eu@host",
            ),
            (
                "the machine's own tag beats its folder's where its host leads to no zone",
                vec![
                    host(&[(r, "eu")]),
                    vec![step("vm", &[(z, "own")]), step("folder", &[(z, "far"), (r, "near")])],
                ],
                "own@vm near@folder",
            ),
            (
                "no complete way: each from the first that has it",
                vec![host(&[(z, "a")]), vec![step("vm", &[(r, "eu")])]],
                "a@host eu@vm",
            ),
        ] {
            assert_eq!(shown(&choose(&ways, &wanted())), expected, "{what}");
        }
    }

    #[test]
    fn the_machines_own_tags_are_needed_unless_host_or_pool_lead_to_all_that_is_wanted() {
        let (z, r) = ("k8s-zone", "k8s-region");
        let both = vec![step("host", &[(z, "a")]), step("dc", &[(r, "eu")])];
        let half = vec![step("host", &[(z, "a")]), step("dc", &[])];
        let own = vec![step("vm", &[]), step("folder", &[(z, "b"), (r, "us")])];
        for (what, ways, decided) in [
            ("the host leads to both", vec![both.clone(), half.clone(), own.clone()], true),
            ("the pool leads to both", vec![half.clone(), both, own.clone()], true),
            // The machine's own zone would beat the folder's.
            ("the folders lead to both", vec![half.clone(), half.clone(), own.clone()], false),
            // Together with a folder's region, the machine's own zone would beat the host's.
            ("together they lead to both", vec![half, vec![step("folder", &[(r, "us")])]], false),
            ("the machine stands on nothing that is known", vec![own], false),
            ("nothing is known of the machine", Vec::new(), false),
        ] {
            assert_eq!(is_decided_above(&ways, &wanted()), decided, "{what}");
        }
    }

    #[test]
    fn a_zone_alone_is_enough_where_no_region_is_wanted() {
        let categories = Categories { zone: "rack".into(), region: String::new() };
        let zones = choose(&[vec![step("host", &[("rack", "r1")])]], &categories);
        assert_eq!(shown(&zones), "r1@host -");
        assert!(zones.missing.is_empty());
    }

    #[test]
    fn what_is_missing_or_cannot_be_a_label_is_told_with_its_remedy() {
        let tags = [("k8s-zone", "Zone A")];
        let zones = choose(&[vec![step("/DC0/host/c", &tags)]], &wanted());
        let told: Vec<String> = zones.missing.iter().map(ToString::to_string).collect();
        assert!(told[0].contains("\"Zone A\" of the category \"k8s-zone\" on /DC0/host/c cannot"));
        assert!(told[1].starts_with("no tag of the category \"k8s-region\""));
        assert_eq!(shown(&zones), "- -");
    }

    #[test]
    fn label_values_are_told_from_other_texts() {
        for good in ["a", "eu-west_1.b", &"x".repeat(63)] {
            assert!(is_label(good), "{good}");
        }
        for bad in ["", "-a", "a.", "a b", "ä", &"x".repeat(64)] {
            assert!(!is_label(bad), "{bad}");
        }
    }
}
