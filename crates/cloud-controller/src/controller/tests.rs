use super::*;
use crate::{
    catalogue::Scope, configuration::Configuration, model::Node, nodes::LabelFilter,
    pooled_vcenter::SharedSettings, record::Record, testing, vcenter_pool::PoolSupervisor,
    zones::Categories,
};
use runtime::lease::Mandate;
use vsphere::MoRef;

/// A controller without vCenters and without a reachable API server.
fn controller() -> (Controller, PoolSupervisor) {
    let unreachable = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = kube::Client::try_from(unreachable).unwrap();
    let metrics = Metrics::default();
    let pool = VcenterPool::default();
    let mut supervisor = PoolSupervisor::new(pool.clone());
    let shared = SharedSettings {
        categories: Categories::default(),
        tag_period: Duration::from_mins(4),
        scope: Scope::default(),
        refresh_labels: false,
        host_labels: false,
        limits: vsphere::Limits::default(),
        logins: vsphere::LoginPace::default(),
        user_agent: "test".into(),
        metrics: metrics.clone(),
        signals: mpsc::unbounded_channel().0,
        kubernetes: client.clone(),
    };
    let rules = crate::addresses::AddressRules::default();
    supervisor.apply(
        Configuration { vcenters: Vec::new(), categories: Categories::default(), rules },
        &shared,
    );
    let options = Options {
        node_controller: true,
        lifecycle_controller: true,
        policy: Policy::default(),
        concurrency: 1,
        extra_labels: std::collections::BTreeMap::default(),
        require_zones: false,
        refresh_labels: false,
        host_labels: false,
    };
    let nodes = Nodes::new(client.clone(), LabelFilter::default(), Mandate::unlimited());
    let (events, _sending) = Events::new(client, Mandate::unlimited());
    (Controller::new(nodes, pool, events, metrics, options), supervisor)
}

#[tokio::test(start_paused = true)]
async fn an_uncertain_vm_is_queried_at_least_every_five_minutes() {
    let (controller, _supervisor) = controller();
    let record = Record::for_vm(&testing::vm("node-1")).to_text();
    let node = Node {
        provider_id: "vsphere://422e4956-ad22-1139-6d72-59cc8f26bc90".into(),
        record: Some(record.into()),
        ready: false,
        ..testing::node("node-1")
    };
    let shared = controller.shared.clone();
    let name = shared.nodes.cache(node);
    shared.queue.add(&name);
    let (mut last, mut pauses) = (Instant::now(), Vec::new());
    for _ in 0..20 {
        let name = shared.queue.next().await;
        pauses.push(last.elapsed());
        last = Instant::now();
        shared.clone().sync(name, None).await;
    }
    let longest = pauses.iter().max().copied().unwrap_or_default();
    assert!(longest <= MAX_UNCERTAIN_RETRY + Duration::from_millis(10), "{pauses:?}");
    // The backoff is between half of each step and the whole step.
    for pause in &pauses[14..] {
        assert!(*pause >= MAX_UNCERTAIN_RETRY / 2, "{pauses:?}");
    }
    assert!(pauses[1] <= FIRST_RETRY + Duration::from_millis(10), "{pauses:?}");
    // A change resets the backoff.
    shared.reset_backoff(&name);
    shared.queue.next().await;
    shared.clone().sync(name, None).await;
    let before = Instant::now();
    shared.queue.next().await;
    assert!(before.elapsed() <= FIRST_RETRY + Duration::from_millis(10), "{:?}", before.elapsed());
}

#[test]
fn two_nodes_with_one_vm_are_reported_and_the_remaining_one_keeps_it() {
    let vm_ref = VmRef { vcenter: "vc".into(), vm: MoRef::new("VirtualMachine", "vm-1") };
    let (old, new): (Arc<str>, Arc<str>) = ("old".into(), "new".into());
    let mut state = SyncState::default();
    assert_eq!(state.assign(&old, &vm_ref), None);
    assert_eq!(state.assign(&new, &vm_ref), Some(old.clone()), "the other node is returned");
    assert_eq!(state.assign(&old, &vm_ref), Some(new.clone()), "for both nodes");
    state.unassign(&new);
    assert_eq!(state.node_of.get(&vm_ref), Some(&old));
    assert_eq!(state.assign(&old, &vm_ref), None);
    state.unassign(&old);
    assert!(state.node_of.is_empty() && state.vm_of.is_empty());
}

#[tokio::test]
async fn only_nodes_that_had_a_vm_count_in_a_mass_disappearance() {
    let (controller, _supervisor) = controller();
    let shared = &controller.shared;
    let record = Some(Record::for_vm(&testing::vm("n")).to_text().into());
    let id = "vsphere://422e4956-ad22-1139-6d72-59cc8f26bc90";
    shared.nodes.cache(Node { provider_id: id.into(), ..testing::node("ours") });
    shared.nodes.cache(Node { record: record.clone(), ..testing::node("noted") });
    shared.nodes.cache(Node { provider_id: id.into(), deleting: true, ..testing::node("going") });
    for n in 0..20 {
        shared.nodes.cache(testing::node(&format!("bare-{n}")));
        let provider_id = format!("other://{n}").into();
        let record = record.clone();
        shared.nodes.cache(Node { provider_id, record, ..testing::node(&format!("foreign-{n}")) });
    }
    assert_eq!(shared.summary().counts, (3, 2));
}

#[tokio::test]
async fn a_change_of_another_vm_does_not_end_a_backoff() {
    let (controller, _supervisor) = controller();
    let shared = &controller.shared;
    let own = testing::vm("own");
    for name in ["lost", "noted"] {
        let id = "vsphere://422e4956-ad22-1139-6d72-59cc8f26bc90";
        let record = (name == "noted").then(|| Record::for_vm(&own).to_text().into());
        let node = Node { provider_id: id.into(), record, ..testing::node(name) };
        let name = shared.nodes.cache(node);
        shared.state().without_vm.insert(name);
    }
    shared.requeue_without_vm(&HashSet::from([testing::vm("another").vm_ref]));
    assert_eq!(shared.queue.depth(), 0, "that VM belongs to none of them");
    shared.requeue_without_vm(&HashSet::from([own.vm_ref]));
    assert_eq!(&*shared.queue.next().await, "noted", "the recorded VM changed");
    assert_eq!(shared.queue.depth(), 0);
}
