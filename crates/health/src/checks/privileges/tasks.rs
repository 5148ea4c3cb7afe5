//! The account can watch the tasks it starts.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "privileges/tasks",
    gives: &[codes::PRIVILEGE_TASKS],
    run: CheckScope::Cluster(&[], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    if view.facts.wanted.storage.is_none() {
        return;
    }
    for vcenter in view.facts.vcenters.values() {
        let question = format!(
            "whether {} has the privilege to watch tasks in {}",
            vcenter.account(),
            vcenter.address
        );
        if let Some(false) = sink.need_from_vcenter(&vcenter.tasks, vcenter, &question) {
            sink.raise(
                Hit::new(codes::PRIVILEGE_TASKS, vcenter_subject(vcenter))
                    .with("address", &vcenter.address)
                    .with("user", vcenter.account())
                    .vcenter(&vcenter.name),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_that_cannot_watch_tasks_is_reported() {
        shows(
            &CHECK,
            &["VDO-1406"],
            |facts| facts.vcenter().tasks = false.into(),
            |facts| facts.vcenter().tasks = Known::unknown("it was not asked"),
        );
    }
}
