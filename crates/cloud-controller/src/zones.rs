//! Zone and region of a VM, from the tags on the objects above it.
//!
//! There are three paths upwards, in the order of the Go controller: from the host, from the resource
//! pool, and from the VM through its folders. The first path with tags of every configured category
//! decides alone. A VM's own tags therefore count only if neither host nor resource pool leads to all
//! categories. If no path has all of them, each category comes from the first path that has it. On a
//! path, the nearest object wins.

use std::fmt;

/// The tag categories for zone and region; empty if not configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Categories {
    pub zone: String,
    pub region: String,
}

impl Categories {
    pub fn is_empty(&self) -> bool {
        self.zone.is_empty() && self.region.is_empty()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaggedObject {
    /// For messages.
    pub title: String,
    /// Category and name.
    pub tags: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneTag {
    pub value: String,
    pub at: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zones {
    pub zone: Option<ZoneTag>,
    pub region: Option<ZoneTag>,
    /// Configured categories without a usable tag.
    pub missing: Vec<MissingTag>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingTag {
    pub category: String,
    /// A tag that exists but is not a valid label value.
    pub unusable: Option<ZoneTag>,
}

impl fmt::Display for MissingTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.unusable {
            None => write!(
                f,
                "no tag of the category \"{}\" on the host, the cluster, the datacenter, the resource pool \
                 or the VM and its folders: attach one",
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

fn nearest(path: &[TaggedObject], category: &str) -> Option<ZoneTag> {
    path.iter().find_map(|object| {
        let tag = object.tags.iter().filter(|(of, _)| of == category).map(|(_, tag)| tag).min()?;
        Some(ZoneTag { value: tag.clone(), at: object.title.clone() })
    })
}

fn is_complete(path: &[TaggedObject], wanted: &Categories) -> bool {
    let mut all = [&wanted.zone, &wanted.region].into_iter();
    all.all(|category| category.is_empty() || nearest(path, category).is_some())
}

/// Whether a path other than the last, which starts at the VM, decides. Then the VM's own tags are not
/// needed.
pub fn is_decided_without_vm_tags(paths: &[Vec<TaggedObject>], wanted: &Categories) -> bool {
    let above = paths.split_last().map_or(&[][..], |(_, above)| above);
    above.iter().any(|path| is_complete(path, wanted))
}

/// Each path starts with the nearest object.
pub fn choose(paths: &[Vec<TaggedObject>], wanted: &Categories) -> Zones {
    let complete = paths.iter().find(|path| is_complete(path, wanted));
    let mut missing = Vec::new();
    let [zone, region] = [&wanted.zone, &wanted.region].map(|category| {
        if category.is_empty() {
            return None;
        }
        let found = match complete {
            Some(path) => nearest(path, category),
            None => paths.iter().find_map(|path| nearest(path, category)),
        };
        match found {
            Some(found) if is_label_value(&found.value) => Some(found),
            unusable => {
                missing.push(MissingTag { category: category.clone(), unusable });
                None
            }
        }
    });
    Zones { zone, region, missing }
}

pub fn is_label_value(text: &str) -> bool {
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

    fn object(title: &str, tags: &[(&str, &str)]) -> TaggedObject {
        let tags = tags.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        TaggedObject { title: title.into(), tags }
    }

    /// `zone@object region@object`, `-` where there is none.
    fn shown(zones: &Zones) -> String {
        let one = |f: &Option<ZoneTag>| {
            f.as_ref().map_or("-".to_owned(), |f| format!("{}@{}", f.value, f.at))
        };
        format!("{} {}", one(&zones.zone), one(&zones.region))
    }

    #[test]
    fn the_nearest_tag_wins_on_the_first_path_that_has_both() {
        let (z, r) = ("k8s-zone", "k8s-region");
        let host = |tags: &[(&str, &str)]| {
            vec![object("host", tags), object("cluster", &[]), object("dc", &[])]
        };
        for (what, paths, expected) in [
            ("no tags", vec![host(&[])], "- -"),
            ("an unrelated tag", vec![host(&[("team", "a")])], "- -"),
            ("region alone", vec![host(&[(r, "eu")])], "- eu@host"),
            ("both on the host", vec![host(&[(r, "eu"), (z, "a")])], "a@host eu@host"),
            (
                "region on the datacenter, zone on the cluster",
                vec![vec![
                    object("host", &[]),
                    object("cluster", &[(z, "a")]),
                    object("dc", &[(r, "eu")]),
                ]],
                "a@cluster eu@dc",
            ),
            (
                "a farther tag does not override a nearer one",
                vec![vec![
                    object("host", &[(z, "near")]),
                    object("cluster", &[(z, "far")]),
                    object("dc", &[(r, "eu")]),
                ]],
                "near@host eu@dc",
            ),
            (
                "a complete path beats an earlier incomplete one",
                vec![host(&[(z, "host-zone")]), vec![object("vm", &[(z, "vm-zone"), (r, "eu")])]],
                "vm-zone@vm eu@vm",
            ),
            (
                "a complete path beats the VM's own tags",
                vec![host(&[(z, "a"), (r, "eu")]), vec![object("vm", &[(z, "own"), (r, "own")])]],
                "a@host eu@host",
            ),
            (
                "the VM's own tag beats its folder's if its host leads to no zone",
                vec![
                    host(&[(r, "eu")]),
                    vec![object("vm", &[(z, "own")]), object("folder", &[(z, "far"), (r, "near")])],
                ],
                "own@vm near@folder",
            ),
            (
                "no complete path: each category from the first path that has it",
                vec![host(&[(z, "a")]), vec![object("vm", &[(r, "eu")])]],
                "a@host eu@vm",
            ),
        ] {
            assert_eq!(shown(&choose(&paths, &wanted())), expected, "{what}");
        }
    }

    #[test]
    fn the_vms_own_tags_are_needed_unless_host_or_pool_lead_to_all_categories() {
        let (z, r) = ("k8s-zone", "k8s-region");
        let both = vec![object("host", &[(z, "a")]), object("dc", &[(r, "eu")])];
        let half = vec![object("host", &[(z, "a")]), object("dc", &[])];
        let own = vec![object("vm", &[]), object("folder", &[(z, "b"), (r, "us")])];
        for (what, paths, decided) in [
            ("the host leads to both", vec![both.clone(), half.clone(), own.clone()], true),
            ("the pool leads to both", vec![half.clone(), both, own.clone()], true),
            // The VM's own zone would beat the folder's.
            ("the folders lead to both", vec![half.clone(), half.clone(), own.clone()], false),
            // Together with a folder's region, the VM's own zone would beat the host's.
            ("together they lead to both", vec![half, vec![object("folder", &[(r, "us")])]], false),
            ("host and pool are unknown", vec![own], false),
            ("the VM is unknown", Vec::new(), false),
        ] {
            assert_eq!(is_decided_without_vm_tags(&paths, &wanted()), decided, "{what}");
        }
    }

    #[test]
    fn a_zone_alone_is_enough_if_no_region_is_configured() {
        let categories = Categories { zone: "rack".into(), region: String::new() };
        let zones = choose(&[vec![object("host", &[("rack", "r1")])]], &categories);
        assert_eq!(shown(&zones), "r1@host -");
        assert!(zones.missing.is_empty());
    }

    #[test]
    fn missing_and_invalid_tags_are_reported_with_the_fix() {
        let tags = [("k8s-zone", "Zone A")];
        let zones = choose(&[vec![object("/DC0/host/c", &tags)]], &wanted());
        let texts: Vec<String> = zones.missing.iter().map(ToString::to_string).collect();
        assert!(texts[0].contains("\"Zone A\" of the category \"k8s-zone\" on /DC0/host/c cannot"));
        assert!(texts[1].starts_with("no tag of the category \"k8s-region\""));
        assert_eq!(shown(&zones), "- -");
    }

    #[test]
    fn label_values_are_validated() {
        for good in ["a", "eu-west_1.b", &"x".repeat(63)] {
            assert!(is_label_value(good), "{good}");
        }
        for bad in ["", "-a", "a.", "a b", "ä", &"x".repeat(64)] {
            assert!(!is_label_value(bad), "{bad}");
        }
    }
}
