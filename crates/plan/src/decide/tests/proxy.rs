//! The proxy of the whole cluster, as OpenShift publishes it.

use super::{
    overrides::{CLOUD, CONTROLLER, NODE, container, set, variable, workloads},
    *,
};
use crate::facts::ClusterProxy;

const URL: &str = "http://proxy.example.com:3128";
const EXCEPT: &str = ".cluster.local,.svc,10.128.0.0/14,172.30.0.0/16,localhost";

fn proxy(https: &str) -> ClusterProxy {
    ClusterProxy {
        http: URL.into(),
        https: https.into(),
        except: EXCEPT.into(),
        version: "1".into(),
    }
}

fn behind(proxy: ClusterProxy) -> World {
    let mut world = World::installed();
    world.facts.cluster.proxy = Ok(Some(proxy));
    world
}

/// The proxy variables of a container, by name.
fn variables(
    all: &BTreeMap<String, Value>,
    workload: &str,
    name: &str,
) -> BTreeMap<String, String> {
    let container = container(&all[workload], name);
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "https_proxy"];
    let found = names.into_iter().filter_map(|name| Some((name, variable(container, name)?)));
    found.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn the_clusters_proxy_appears_changes_and_disappears_with_one_rollout_each() {
    let mut world = behind(proxy(URL));
    let all = workloads(&mut world);
    let direct = "$(KUBERNETES_SERVICE_HOST),localhost,127.0.0.1,.svc,.cluster.local";
    let expected = BTreeMap::from([
        ("HTTP_PROXY".to_owned(), URL.to_owned()),
        ("HTTPS_PROXY".to_owned(), URL.to_owned()),
        ("NO_PROXY".to_owned(), format!("{direct},10.128.0.0/14,172.30.0.0/16")),
    ]);
    for (workload, name) in
        [(CLOUD, CLOUD), (CONTROLLER, CONTROLLER), (CONTROLLER, "vsphere-syncer")]
    {
        assert_eq!(variables(&all, workload, name), expected, "{name}");
    }
    assert!(variables(&all, CONTROLLER, "csi-attacher").is_empty());
    assert!(!all.contains_key(NODE), "the node pods do not restart");
    assert!(world.record(Driver::Csi).healthy && world.record(Driver::Cpi).healthy);
    assert!(workloads(&mut world).is_empty(), "one rollout is enough");

    world.facts.cluster.proxy = Ok(Some(proxy("http://other.example.com:3128")));
    let all = workloads(&mut world);
    let url = &variables(&all, CONTROLLER, CONTROLLER)["HTTPS_PROXY"];
    assert_eq!(url, "http://other.example.com:3128");

    world.facts.cluster.proxy = Ok(None);
    let all = workloads(&mut world);
    for (workload, name) in [(CLOUD, CLOUD), (CONTROLLER, CONTROLLER)] {
        assert_eq!(variables(&all, workload, name), BTreeMap::new(), "{name}");
    }
}

#[test]
fn the_overrides_win_over_the_clusters_proxy() {
    let own = json!({"url": "http://own.example.com:8080"});
    let with_env = |name: &str, value: &str| json!([{"name": name, "value": value}]);
    let text = |value: &str| Some(value.to_owned());
    let (direct, cluster) = (text(""), text(URL));
    let cases = [
        // `overrides.proxy` replaces all of the cluster's.
        (json!({"proxy": own}), None, text("http://own.example.com:8080")),
        (
            json!({"storageController": {"env": with_env("HTTPS_PROXY", "")}}),
            cluster.clone(),
            direct,
        ),
        // With another proxy, the driver must not reach hosts directly only because they are in the cluster's list.
        (
            json!({"storageController": {"env": with_env("HTTPS_PROXY", "http://own.example.com")}}),
            None,
            text("http://own.example.com"),
        ),
        // A driver prefers the name in capital letters, so VDO must not add it.
        (json!({"storageController": {"env": with_env("https_proxy", "")}}), cluster.clone(), None),
        (json!({"storageController": {"env": with_env("GOGC", "50")}}), cluster.clone(), cluster),
    ];
    for (overrides, http, https) in cases {
        let mut world = behind(proxy(URL));
        set(&mut world, &overrides);
        let all = workloads(&mut world);
        let found = variables(&all, CONTROLLER, CONTROLLER);
        assert_eq!(found.get("HTTP_PROXY"), http.as_ref(), "{overrides}: {found:?}");
        assert_eq!(found.get("HTTPS_PROXY"), https.as_ref(), "{overrides}: {found:?}");
    }
    let mut world = behind(proxy(URL));
    set(&mut world, &json!({"proxy": own}));
    world.settle();
    world.done.clear();
    world.facts.cluster.proxy = Ok(Some(proxy("http://other.example.com:3128")));
    world.settle();
    assert_eq!(world.done, Vec::<String>::new(), "it has no effect on the drivers");
}

#[test]
fn the_clusters_values_reach_the_drivers_unchanged_and_no_log() {
    let secret = "http://user:pa$(HOME)$$@proxy.example.com:3128";
    let mut world = behind(proxy(secret));
    let all = workloads(&mut world);
    let value = &variables(&all, CLOUD, CLOUD)["HTTPS_PROXY"];
    assert_eq!(value, "http://user:pa$$(HOME)$$$$@proxy.example.com:3128", "for the kubelet");
    assert!(!format!("{:?}", world.facts).contains("pa$"), "facts are logged");
    let only_http = ClusterProxy { http: URL.into(), ..ClusterProxy::default() };
    let all = workloads(&mut behind(only_http));
    assert!(!variables(&all, CLOUD, CLOUD).contains_key("HTTPS_PROXY"), "an empty URL is none");
}

#[test]
fn no_digest_is_made_of_the_password_of_the_clusters_proxy() {
    /// The records and the digests of all objects, after a release was rolled back behind this proxy.
    fn digests(password: &str, version: &str) -> Value {
        let url = format!("http://user:{password}@proxy.example.com:3128");
        let mut world = older("3.6.3");
        let proxy = ClusterProxy { http: url.clone(), version: version.into(), ..proxy(&url) };
        world.facts.cluster.proxy = Ok(Some(proxy));
        world.broken = vec![NEWEST_CSI.into()];
        world.edit_spec(|config| config.spec.storage_provider.as_mut().unwrap().version = None);
        world.settle();
        world.pass(SignedDuration::from_mins(20));
        world.settle();
        assert!(world.record(Driver::Csi).rejected.is_some(), "{:?}", world.done);
        let objects: BTreeMap<String, Option<String>> = world
            .facts
            .objects
            .iter()
            .map(|(id, object)| (id.to_string(), object.digest.clone()))
            .collect();
        json!([world.record(Driver::Cpi), world.record(Driver::Csi), objects])
    }
    let before = digests("pa$$ one/@", "7");
    assert_eq!(digests("another", "7"), before);
    assert_ne!(digests("another", "8"), before, "the version of the object tells them apart");
}

#[test]
fn another_password_of_the_clusters_proxy_reaches_the_drivers() {
    let url = |password: &str| format!("http://user:{password}@proxy.example.com:3128");
    let with = |password: &str, version: &str| {
        Ok(Some(ClusterProxy { version: version.into(), ..proxy(&url(password)) }))
    };
    let mut world = World::installed();
    world.facts.cluster.proxy = with("old", "7");
    world.settle();
    world.facts.cluster.proxy = with("new", "8");
    let all = workloads(&mut world);
    for (workload, name) in [(CLOUD, CLOUD), (CONTROLLER, CONTROLLER)] {
        assert_eq!(variables(&all, workload, name)["HTTPS_PROXY"], url("new"), "{name}");
    }
    let (cpi, csi) = (world.record(Driver::Cpi), world.record(Driver::Csi));
    assert!(cpi.healthy && csi.healthy, "{:?}", world.done);

    // Without a password, the version is not in any digest.
    world.facts.cluster.proxy = Ok(Some(proxy(URL)));
    world.settle();
    world.done.clear();
    world.facts.cluster.proxy = Ok(Some(ClusterProxy { version: "9".into(), ..proxy(URL) }));
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
}

#[test]
fn while_the_clusters_proxy_is_unknown_the_drivers_stay_as_they_are() {
    let mut world = behind(proxy(URL));
    world.settle();
    world.done.clear();
    world.facts.cluster.proxy = Err("proxies is forbidden".into());
    world.edit_spec(|config| {
        let storage = config.spec.storage_provider.as_mut().unwrap();
        storage.max_volumes_per_node = Some(30);
    });
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    let plan = world.driver(Driver::Csi);
    assert_eq!(plan.next, Next::Wait);
    let message = plan.steps[0].message.as_deref().unwrap();
    assert!(message.contains("proxies is forbidden"), "{message}");
    world.rotate("vc", "rotated");
    world.settle();
    assert!(
        world.has_password(Driver::Csi, "rotated"),
        "credentials do not wait: {:?}",
        world.done
    );
    set(&mut world, &json!({"proxy": {"url": URL}}));
    world.settle();
    assert_eq!(world.driver(Driver::Csi).next, Next::Nothing, "only the overrides matter now");
}

#[test]
fn an_observed_driver_keeps_its_proxy() {
    let mut world = World::installed();
    world.edit_spec(|config| {
        let mode = Some(api::vdo_config::Mode::Observe);
        config.spec.storage_provider.as_mut().unwrap().mode = mode;
        config.spec.cloud_provider.as_mut().unwrap().mode = mode;
    });
    world.facts.cluster.proxy = Ok(Some(proxy(URL)));
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
}

#[test]
fn a_rolled_back_release_is_tried_again_behind_another_proxy() {
    let mut world = older("3.6.3");
    world.broken = vec![NEWEST_CSI.into()];
    world.edit_spec(|config| config.spec.storage_provider.as_mut().unwrap().version = None);
    world.settle();
    world.pass(SignedDuration::from_mins(20));
    world.settle();
    assert_eq!(running(&world), Some("3.6.3"), "{:?}", world.done);
    world.broken.clear();
    world.settle();
    assert_eq!(running(&world), Some("3.6.3"), "nothing has changed");
    world.facts.cluster.proxy = Ok(Some(proxy(URL)));
    world.settle();
    assert_eq!(running(&world), Some(NEWEST_CSI));
}
