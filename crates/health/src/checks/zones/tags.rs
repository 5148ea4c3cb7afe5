//! Each node has exactly one tag of each category above it, and none on its VM.

use crate::{
    checks::prelude::*,
    facts::{Host, Tags},
    topology,
};

pub(super) const CHECK: Check = Check {
    name: "zones/tags",
    gives: &[codes::TAG_MISSING, codes::TAG_DOUBLE, codes::TAG_ON_VM],
    run: CheckScope::NodeVm(check),
};

fn check(view: &FactsView<'_>, node: &Node, found: &FoundVm<'_>, sink: &mut Sink) {
    let categories = view.facts.wanted.categories();
    // `categories` and `nodes/host` report unknown tags and hosts.
    let (Some(tags), Some(host)) = (found.inventory.tags.get(), found.host) else { return };
    for category in categories {
        let hit = |definition| {
            let hit = Hit::for_vm(definition, node, found).shared("category", category);
            hit.with("host", &host.name).at(Anchor::Category, category)
        };
        match topology::above(tags, &found.vm.host, host, category).as_slice() {
            [] => sink.raise(hit(codes::TAG_MISSING).with("path", &host.path)),
            [_] => {}
            [nearest, ..] => {
                // The tag nearest to the host is usually intended; suggest to detach the other one.
                let (on, tag) = further(tags, found, host, category, nearest);
                let several = with_objects(tags, &found.vm.host, host, category);
                let hit = hit(codes::TAG_DOUBLE).with("tags", several.join(" and "));
                sink.raise(hit.with("tag", tag).with("path", on));
            }
        }
        let own = tags.attached.get(found.id).into_iter().flatten();
        for tag in own.filter(|tag| tag.category == category) {
            sink.raise(hit(codes::TAG_ON_VM).with("tag", &tag.name));
        }
    }
}

/// The tags of a category above a VM, each with the object that has it, nearest first.
fn with_objects(tags: &Tags, id: &str, host: &Host, category: &str) -> Vec<String> {
    let objects = std::iter::once(id).chain(host.ancestors.iter().map(String::as_str));
    let several = objects.enumerate().flat_map(|(steps_up, object)| {
        let attached = tags.attached.get(object).into_iter().flatten();
        let those = attached.filter(|tag| tag.category == category);
        those.map(move |tag| format!("{} on {}", tag.name, path_above(host, steps_up, object)))
    });
    several.collect()
}

/// The inventory path of an object so many steps above a host, or its id if the path of the host is incomplete.
fn path_above<'a>(host: &'a Host, steps_up: usize, id: &'a str) -> &'a str {
    let path = (0..steps_up).try_fold(&*host.path, |path, _| Some(path.rsplit_once('/')?.0));
    path.filter(|path| !path.is_empty()).unwrap_or(id)
}

/// Another tag of the category than the nearest one, and its object as govc accepts it: the path of a host, otherwise
/// type and managed object id.
fn further(
    tags: &Tags,
    found: &FoundVm<'_>,
    host: &Host,
    category: &str,
    nearest: &str,
) -> (String, String) {
    let objects = std::iter::once(&found.vm.host).chain(&host.ancestors);
    for object in objects {
        let attached = tags.attached.get(object).into_iter().flatten();
        let mut other = attached.filter(|tag| tag.category == category && tag.name != nearest);
        if let Some(tag) = other.next() {
            let own = *object == found.vm.host;
            let on = if own { host.path.clone() } else { reference(object) };
            return (on, tag.name.clone());
        }
    }
    (host.path.clone(), nearest.to_owned())
}

/// The types of the ancestors of a host, by the start of their managed object ids.
const TYPES: [(&str, &str); 4] = [
    ("domain-c", "ClusterComputeResource"),
    ("domain-s", "ComputeResource"),
    ("group-", "Folder"),
    ("datacenter-", "Datacenter"),
];

/// An ancestor of a host as govc accepts it. A managed object id alone counts as an inventory path.
fn reference(id: &str) -> String {
    let known = TYPES.iter().find(|(start, _)| id.starts_with(start));
    known.map_or_else(|| id.to_owned(), |(_, kind)| format!("{kind}:{id}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Tag;

    fn tag(category: &str, name: &str) -> Tag {
        Tag { category: category.into(), name: name.into() }
    }

    #[test]
    fn a_host_without_a_zone_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1702"], |facts| {
            facts.inventory().tags.get_mut().unwrap().attached.remove("domain-c1");
        });
    }

    #[test]
    fn two_zones_above_one_host_are_reported() {
        shows_of_vms(&CHECK, &["VDO-1703"], |facts| {
            let tags = facts.inventory().tags.get_mut().unwrap();
            tags.attached.insert("host-1".into(), vec![tag("k8s-zone", "zone-b")]);
        });
    }

    /// `govc tags.detach` accepts an inventory path, or `Type:id`.
    #[test]
    fn the_command_names_the_tagged_object_as_govc_accepts_it() {
        for (object, expected) in [
            ("domain-c1", "ClusterComputeResource:domain-c1"),
            ("group-h1", "Folder:group-h1"),
            ("datacenter-1", "Datacenter:datacenter-1"),
            ("group-d1", "Folder:group-d1"),
        ] {
            let mut facts = healthy();
            let attached = &mut facts.inventory().tags.get_mut().unwrap().attached;
            for tags in attached.values_mut() {
                tags.retain(|tag| tag.category != "k8s-zone");
            }
            attached.entry(object.into()).or_default().push(tag("k8s-zone", "zone-a"));
            attached.entry("host-1".into()).or_default().push(tag("k8s-zone", "zone-b"));
            let all = crate::Examination::run(facts).report().all();
            let finding = all.iter().find(|finding| finding.code == "VDO-1703").unwrap();
            let command = format!("govc tags.detach -c k8s-zone zone-a {expected}");
            assert!(finding.remedy[0].ends_with(&command), "{:?}", finding.remedy);
        }
    }

    #[test]
    fn the_finding_names_the_object_of_each_tag() {
        let mut facts = healthy();
        let host = facts.inventory().hosts.get_mut("host-1").unwrap();
        host.path = "/dc/host/cluster-a/host-1".into();
        host.ancestors =
            ["domain-c1", "group-h1", "datacenter-1", "group-d1"].map(Into::into).into();
        let attached = &mut facts.inventory().tags.get_mut().unwrap().attached;
        for tags in attached.values_mut() {
            tags.retain(|tag| tag.category != "k8s-zone");
        }
        for (object, name) in [("domain-c1", "a"), ("domain-c1", "b"), ("group-d1", "c")] {
            attached.entry(object.into()).or_default().push(tag("k8s-zone", name));
        }
        let all = crate::Examination::run(facts).report().all();
        let finding = all.iter().find(|finding| finding.code == "VDO-1703").unwrap();
        let tags =
            "k8s-zone is a on /dc/host/cluster-a and b on /dc/host/cluster-a and c on group-d1";
        assert!(finding.seen.as_ref().unwrap().contains(tags), "{:?}", finding.seen);
    }

    #[test]
    fn a_zone_on_the_vm_itself_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1704"], |facts| {
            let tags = facts.inventory().tags.get_mut().unwrap();
            tags.attached.insert("vm-00003".into(), vec![tag("k8s-zone", "zone-a")]);
        });
    }

    #[test]
    fn tags_of_other_categories_are_ignored() {
        let mut facts = healthy();
        let tags = facts.inventory().tags.get_mut().unwrap();
        tags.attached.insert("host-1".into(), vec![tag("owner", "team-7")]);
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
