use super::*;
use crate::{
    catalogue::Scope, configuration::Configuration, model::Node, nodes::Kept,
    pooled_vcenter::Common, record::Record, testing, vcenter_pool::PoolSupervisor,
    zones::Categories,
};
use runtime::lease::Mandate;
use vsphere::MoRef;

/// A controller over no vCenter at all, and a cluster that nobody answers for.
fn controller() -> (Controller, PoolSupervisor) {
    let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = kube::Client::try_from(nowhere).unwrap();
    let metrics = Metrics::default();
    let pool = VcenterPool::default();
    let mut supervisor = PoolSupervisor::new(pool.clone());
    let common = Common {
        categories: Categories::default(),
        tag_period: Duration::from_mins(4),
        scope: Scope::default(),
        refresh_labels: false,
        limits: vsphere::Limits::default(),
        user_agent: "test".into(),
        metrics: metrics.clone(),
        signals: mpsc::unbounded_channel().0,
        kubernetes: client.clone(),
    };
    let rules = crate::addresses::Rules::default();
    supervisor.apply(
        Configuration { vcenters: Vec::new(), categories: Categories::default(), rules },
        &common,
    );
    let options = Options {
        node_controller: true,
        lifecycle_controller: true,
        policy: Policy::default(),
        concurrency: 1,
        extra_labels: std::collections::BTreeMap::default(),
        require_zones: false,
        refresh_labels: false,
    };
    let nodes = Nodes::new(client.clone(), Kept::default(), Mandate::unlimited());
    let (events, _sending) = Events::new(client, Mandate::unlimited());
    (Controller::new(nodes, pool, events, metrics, options), supervisor)
}

#[tokio::test(start_paused = true)]
async fn while_nobody_can_say_whether_a_machine_is_gone_it_is_asked_for_at_least_every_five_minutes()
 {
    let (controller, _supervisor) = controller();
    let record = Record::of(&testing::vm("node-1")).to_text();
    let node = Node {
        provider_id: "vsphere://422e4956-ad22-1139-6d72-59cc8f26bc90".into(),
        record: Some(record.into()),
        ready: false,
        ..testing::node("node-1")
    };
    let shared = controller.shared.clone();
    let name = shared.nodes.mirror(node);
    shared.queue.add(&name);
    let (mut last, mut pauses) = (Instant::now(), Vec::new());
    for _ in 0..20 {
        let name = shared.queue.next().await;
        pauses.push(last.elapsed());
        last = Instant::now();
        shared.clone().look(name, None).await;
    }
    let most = pauses.iter().max().copied().unwrap_or_default();
    assert!(most <= LONGEST_IN_DOUBT + Duration::from_millis(10), "{pauses:?}");
    // A random share between half and the whole of each step.
    for pause in &pauses[14..] {
        assert!(*pause >= LONGEST_IN_DOUBT / 2, "{pauses:?}");
    }
    assert!(pauses[1] <= FIRST + Duration::from_millis(10), "{pauses:?}");
    // A change ends the doubt: pauses begin short again.
    shared.calm(&name);
    shared.queue.next().await;
    shared.clone().look(name, None).await;
    let before = Instant::now();
    shared.queue.next().await;
    assert!(before.elapsed() <= FIRST + Duration::from_millis(10), "{:?}", before.elapsed());
}

#[test]
fn of_two_nodes_that_are_one_machine_the_one_that_stays_is_told_of_it() {
    let place = Place { vcenter: "vc".into(), vm: MoRef::new("VirtualMachine", "vm-1") };
    let (old, new): (Arc<str>, Arc<str>) = ("old".into(), "new".into());
    let mut memory = Memory::default();
    assert_eq!(memory.place(&old, &place), None);
    assert_eq!(memory.place(&new, &place), Some(old.clone()), "the twin is named");
    assert_eq!(memory.place(&old, &place), Some(new.clone()), "to both of them");
    memory.unplace(&new);
    assert_eq!(memory.node_of.get(&place), Some(&old));
    assert_eq!(memory.place(&old, &place), None);
    memory.unplace(&old);
    assert!(memory.node_of.is_empty() && memory.place_of.is_empty());
}

#[tokio::test]
async fn only_nodes_that_were_ours_count_in_a_mass_disappearance() {
    let (controller, _supervisor) = controller();
    let shared = &controller.shared;
    let record = Some(Record::of(&testing::vm("n")).to_text().into());
    let id = "vsphere://422e4956-ad22-1139-6d72-59cc8f26bc90";
    shared.nodes.mirror(Node { provider_id: id.into(), ..testing::node("ours") });
    shared.nodes.mirror(Node { record: record.clone(), ..testing::node("noted") });
    shared.nodes.mirror(Node { provider_id: id.into(), deleting: true, ..testing::node("going") });
    for n in 0..20 {
        shared.nodes.mirror(testing::node(&format!("bare-{n}")));
        let provider_id = format!("other://{n}").into();
        let record = record.clone();
        shared.nodes.mirror(Node { provider_id, record, ..testing::node(&format!("foreign-{n}")) });
    }
    assert_eq!(shared.census().counts, (3, 2));
}

#[tokio::test]
async fn a_change_of_some_machine_ends_nobody_elses_pause() {
    let (controller, _supervisor) = controller();
    let shared = &controller.shared;
    let own = testing::vm("own");
    for name in ["lost", "noted"] {
        let id = "vsphere://422e4956-ad22-1139-6d72-59cc8f26bc90";
        let record = (name == "noted").then(|| Record::of(&own).to_text().into());
        let node = Node { provider_id: id.into(), record, ..testing::node(name) };
        let name = shared.nodes.mirror(node);
        shared.memory().lost.insert(name);
    }
    shared.sweep(&HashSet::from([testing::vm("another").place]));
    assert_eq!(shared.queue.depth(), 0, "none of them is found by that");
    shared.sweep(&HashSet::from([own.place]));
    assert_eq!(&*shared.queue.next().await, "noted", "the machine on record changed");
    assert_eq!(shared.queue.depth(), 0);
}
