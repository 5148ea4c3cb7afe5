//! The tag categories of zones exist.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "zones/categories",
    gives: &[codes::CATEGORY_MISSING],
    run: CheckScope::Cluster(&[], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let wanted = view.facts.wanted.categories();
    if wanted.is_empty() {
        return;
    }
    for vcenter in view.facts.vcenters.values() {
        let question = format!("whether {} has the tag categories of the zones", vcenter.address);
        let Some(inventory) = sink.need_from_vcenter(&vcenter.inventory, vcenter, &question) else {
            continue;
        };
        let Some(tags) = sink.need_from_vcenter(&inventory.tags, vcenter, &question) else {
            continue;
        };
        for category in wanted.iter().filter(|category| !tags.categories.contains(**category)) {
            sink.raise(
                Hit::new(codes::CATEGORY_MISSING, vcenter_subject(vcenter))
                    .with("address", &vcenter.address)
                    .with("category", category)
                    .vcenter(&vcenter.name)
                    .at(Anchor::Category, category),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_category_that_does_not_exist_is_reported() {
        shows(
            &CHECK,
            &["VDO-1701"],
            |facts| {
                facts.inventory().tags.get_mut().unwrap().categories.remove("k8s-zone");
            },
            |facts| facts.inventory().tags = Known::unknown("the tagging service does not answer"),
        );
    }
}
