//! Tests which catalogs VDO accepts, and which catalog it uses after a restart.

use catalog::{
    Catalog, Release,
    trust::{Bundle, SigningKey},
};
use serde_json::json;

use super::*;

fn config(key: Option<&SigningKey>) -> CompatibilityConfig {
    let key = key.map(|key| key.public().to_string());
    serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {"publicKey": key}})).unwrap()
}

fn catalogs() -> Catalogs {
    Catalogs::new(Arc::new(watch::Sender::new(())))
}

/// The embedded catalog with a higher serial.
fn newer() -> String {
    let text = catalog::EMBEDDED.replace("serial: 1\n", "serial: 7\n");
    assert_ne!(text, catalog::EMBEDDED, "the embedded catalog has another serial");
    text
}

#[test]
fn a_catalog_from_the_network_needs_a_signature_that_holds() {
    let (key, _) = SigningKey::generate().unwrap();
    let (other, _) = SigningKey::generate().unwrap();
    let signed = Bundle::sign(newer().as_bytes(), std::slice::from_ref(&key)).to_json();

    let mut catalogs = catalogs();
    catalogs.offer("url", newer().as_bytes(), &keys_of(&config(Some(&key))), Delivery::Network);
    assert_eq!(catalogs.trouble().unwrap().kind, CatalogTroubleKind::Untrusted);
    catalogs.offer("url", signed.as_bytes(), &keys_of(&config(Some(&other))), Delivery::Network);
    assert_eq!(catalogs.trouble().unwrap().kind, CatalogTroubleKind::Untrusted);
    assert_eq!(catalogs.current().serial, 1, "nothing of it is used");

    catalogs.offer("url", signed.as_bytes(), &keys_of(&config(Some(&key))), Delivery::Network);
    assert_eq!(catalogs.trouble(), None);
    assert_eq!(catalogs.current().serial, 7);
}

#[test]
fn without_a_key_in_the_config_a_catalog_needs_a_key_of_the_build() {
    let [old, new] = [(); 2].map(|()| SigningKey::generate().unwrap().0);
    let keys = [old.public(), new.public()];
    let no_key = keys_of(&config(None));
    let offered = |trusted: &[PublicKey], bundle: &str| {
        let mut catalogs = Catalogs { build_keys: trusted.to_vec(), ..catalogs() };
        catalogs.offer("url", bundle.as_bytes(), &no_key, Delivery::Network)
    };
    let before = signed(7, &old);
    let after = signed(9, &new);
    let during = Bundle::sign(newer().as_bytes(), &[old, new]).to_json();
    // An operator of before the rotation, one of the release between, one of after it.
    let operators = [(&keys[..1], [true, true, false]), (&keys, [true; 3])];
    let operators = operators.into_iter().chain([(&keys[1..], [false, true, true])]);
    for (trusted, expected) in operators {
        let accepted = [&before, &during, &after].map(|bundle| offered(trusted, bundle));
        assert_eq!(accepted, expected, "{trusted:?}");
    }
    assert!(!offered(&[], &during), "a build without keys");
    assert!(!offered(&keys, &newer()), "without a signature");
}

#[test]
fn a_catalog_put_into_the_cluster_by_hand_needs_none_unless_a_key_is_named() {
    let (key, _) = SigningKey::generate().unwrap();
    let mut catalogs = catalogs();
    catalogs.offer("map", newer().as_bytes(), &keys_of(&config(Some(&key))), Delivery::ConfigMap);
    assert_eq!(catalogs.trouble().unwrap().kind, CatalogTroubleKind::Untrusted);
    catalogs.offer("map", newer().as_bytes(), &keys_of(&config(None)), Delivery::ConfigMap);
    assert_eq!(catalogs.current().serial, 7);
    catalogs.offer("map", b"schema: 99", &keys_of(&config(None)), Delivery::ConfigMap);
    let too_new = CatalogTroubleKind::TooNew { schema: "99".into(), known: "1.x".into() };
    assert_eq!(catalogs.trouble().unwrap().kind, too_new);
    catalogs.offer("map", b"neither", &keys_of(&config(None)), Delivery::ConfigMap);
    assert_eq!(catalogs.trouble().unwrap().kind, CatalogTroubleKind::Unreadable);
    assert_eq!(catalogs.current().serial, 7, "the one before stays in use");
}

/// The embedded catalog with this serial, signed.
fn signed(serial: u64, key: &SigningKey) -> String {
    let text = catalog::EMBEDDED.replace("serial: 1\n", &format!("serial: {serial}\n"));
    Bundle::sign(text.as_bytes(), std::slice::from_ref(key)).to_json()
}

#[test]
fn the_serial_never_goes_back_not_even_over_a_restart() {
    let (key, _) = SigningKey::generate().unwrap();
    let keys = keys_of(&config(Some(&key)));
    let mut before = catalogs();
    assert!(before.offer("url", signed(7, &key).as_bytes(), &keys, Delivery::Network));
    let floors = before.store.floors();
    let stored = StoredCatalog { floors, source: "url".into(), ..StoredCatalog::default() };

    let mut after = catalogs();
    after.resume(&stored, None);
    assert!(!after.offer("url", signed(6, &key).as_bytes(), &keys, Delivery::Network));
    assert_eq!(after.trouble().unwrap().kind, CatalogTroubleKind::RolledBack);
    assert_eq!(after.current().serial, 1, "what VDO carries goes on");
    assert!(after.offer("url", signed(7, &key).as_bytes(), &keys, Delivery::Network));

    // No object names the catalog any more: VDO uses the embedded one, and still accepts no older one later.
    after.last = Some(("url".into(), Instant::now()));
    after.go_back();
    assert_eq!(after.current().serial, 1);
    assert!(!after.offer("url", signed(6, &key).as_bytes(), &keys, Delivery::Network));
}

#[test]
fn a_fetched_catalog_is_in_use_at_once_after_a_restart_if_its_signature_still_holds() {
    let (key, _) = SigningKey::generate().unwrap();
    let url = "https://example.com/catalog.json";
    let floors = [(key.public().id(), 7)].into();
    let bundle = signed(7, &key);
    let stored = StoredCatalog { floors, source: url.into(), bundle };
    let mut config = config(Some(&key));
    let mut catalogs = catalogs();
    catalogs.resume(&stored, Some(&config));
    assert_eq!(catalogs.current().serial, 1, "nobody asks for it");
    config.spec.matrix_url = Some(url.into());
    catalogs.resume(&stored, Some(&config));
    assert_eq!(catalogs.current().serial, 7);

    let mut tampered = self::catalogs();
    let stored = StoredCatalog { bundle: stored.bundle.replace("signature", "scribble"), ..stored };
    tampered.resume(&stored, Some(&config));
    assert_eq!(tampered.current().serial, 1);
}

/// The embedded catalog with this serial, expired long ago, signed.
fn expired(serial: u64, key: &SigningKey) -> String {
    let text = catalog::EMBEDDED
        .replace("serial: 1\n", &format!("serial: {serial}\n"))
        .replace("issued: 2026-11-15", "issued: 2020-01-01")
        .replace("expires: 2027-11-15", "expires: 2020-01-02");
    Bundle::sign(text.as_bytes(), std::slice::from_ref(key)).to_json()
}

#[test]
fn a_catalog_that_expired_while_it_was_in_use_is_in_use_after_a_restart_too() {
    let (key, _) = SigningKey::generate().unwrap();
    let url = "https://example.com/catalog.json";
    for source in [json!({"matrixURL": url}), json!({"bundle": {"configMap": "vdo-catalog"}})] {
        let mut config = config(Some(&key));
        config.metadata.namespace = Some("vdo".into());
        let spec = serde_json::from_value(source.clone()).unwrap();
        config.spec = api::CompatibilityConfigSpec { public_key: config.spec.public_key, ..spec };
        let floors = [(key.public().id(), 7)].into();
        let source = source_of(&config).unwrap();
        let stored = StoredCatalog { floors, source: source.clone(), bundle: expired(7, &key) };
        let mut after = catalogs();
        after.resume(&stored, Some(&config));
        assert_eq!((after.current().serial, after.trouble()), (7, None), "{source}");
        assert_eq!(after.status().source, Some(source));
        // The source can offer the same catalog again. VDO accepts no older one, and no other expired one.
        let keys = keys_of(&config);
        assert!(after.offer("url", expired(7, &key).as_bytes(), &keys, Delivery::Network));
        assert!(!after.offer("url", signed(6, &key).as_bytes(), &keys, Delivery::Network));
        assert!(!after.offer("url", expired(8, &key).as_bytes(), &keys, Delivery::Network));
        assert_eq!(after.current().serial, 7);
    }
    // VDO does not accept an expired catalog that was never in use.
    let mut catalogs = catalogs();
    let keys = keys_of(&config(Some(&key)));
    assert!(!catalogs.offer("url", expired(7, &key).as_bytes(), &keys, Delivery::Network));
}

#[test]
fn a_key_that_replaces_another_starts_with_a_serial_of_its_own() {
    let ((old, _), (new, _)) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
    let mut before = catalogs();
    let keys = keys_of(&config(Some(&old)));
    assert!(before.offer("url", signed(u64::MAX, &old).as_bytes(), &keys, Delivery::Network));
    let keys = keys_of(&config(Some(&new)));
    assert!(before.offer("url", signed(2, &new).as_bytes(), &keys, Delivery::Network));

    let mut after = catalogs();
    let floors = before.store.floors();
    after.resume(&StoredCatalog { floors, ..StoredCatalog::default() }, Some(&config(Some(&new))));
    assert!(!after.offer("url", signed(1, &new).as_bytes(), &keys, Delivery::Network));
    assert!(after.offer("url", signed(3, &new).as_bytes(), &keys, Delivery::Network));
    let keys = keys_of(&config(Some(&old)));
    assert!(!after.offer("url", signed(9, &old).as_bytes(), &keys, Delivery::Network));
}

#[test]
fn a_matrix_of_the_go_vdo_is_used_for_releases_vdo_carries() {
    let entry = |range: serde_json::Value| {
        json!({
            "vSphere": {"min": "7.0", "max": "8.0.3"}, "k8s": range,
            "deploymentPath": ["https://example.com/gone.yaml"],
        })
    };
    let content = json!({
        "CSI": {
            "3.6.2": entry(json!({"min": "1.30", "max": "1.36"})),
            "9.9.9": entry(json!({"min": "1.30", "max": "1.36"})),
        },
        "CPI": {"1.36.0": entry(json!({"skewVersion": "1.36"}))},
    });
    let mut catalogs = catalogs();
    let data = BTreeMap::from([(matrix::CONTENT.to_owned(), content.to_string())]);
    catalogs.take_legacy("ConfigMap x/compat-matrix-config", &data);
    assert_eq!(catalogs.trouble(), None);
    let current = catalogs.current();
    assert_eq!(current.releases.len(), 2);
    assert!(current.releases.iter().all(|release| !release.images.is_empty()));
    let csi = current.releases.iter().find(|r| r.driver == catalog::Driver::Csi).unwrap();
    assert_eq!(csi.kubernetes.max.to_string(), "1.36", "its ranges are the admin's");
    assert_eq!(catalogs.left_out(), ["CSI 9.9.9"]);

    let url = "https://example.com/compatibility.yaml";
    let data = BTreeMap::from([(matrix::URL.to_owned(), url.to_owned())]);
    catalogs.last = Some((String::new(), Instant::now()));
    catalogs.take_legacy("ConfigMap x/compat-matrix-config", &data);
    assert_eq!(catalogs.current().serial, 1, "what VDO carries");
    assert!(catalogs.trouble().unwrap().reason.contains("versionConfigContent"));
}

#[test]
fn a_matrix_whose_images_cannot_be_pulled_does_not_narrow_the_catalog() {
    let entry = || {
        json!({
            "vSphere": {"min": "6.7.1", "max": "8.0.1"}, "k8s": {"min": "1.24", "max": "1.27"},
            "deploymentPath": ["https://example.com/gone.yaml"],
        })
    };
    let offered = |content: serde_json::Value| {
        let mut catalogs = catalogs();
        let data = BTreeMap::from([(matrix::CONTENT.to_owned(), content.to_string())]);
        catalogs.take_legacy("ConfigMap x/compat-matrix-config", &data);
        assert_eq!(catalogs.trouble(), None);
        catalogs
    };
    let of = |catalog: &Catalog, driver| {
        catalog.releases.iter().filter(|release| release.driver == driver).cloned().collect()
    };
    let (cpi, csi) = (catalog::Driver::Cpi, catalog::Driver::Csi);
    let embedded = catalog::embedded();
    // The releases of the matrices that came with the Go VDO.
    let catalogs = offered(json!({
        "CSI": {"2.5.1": entry(), "2.7.0": entry(), "3.0.0": entry()},
        "CPI": {"1.23.0": entry(), "1.26.0": entry()},
    }));
    for driver in [cpi, csi] {
        let current: Vec<Release> = of(&catalogs.current(), driver);
        assert_eq!(current, of(embedded, driver), "{driver}");
    }
    assert_eq!(
        catalogs.left_out(),
        ["CPI 1.23.0", "CPI 1.26.0", "CSI 2.5.1", "CSI 2.7.0", "CSI 3.0.0"]
    );
    // An admin added one that can be pulled: the matrix is in use.
    let catalogs = offered(json!({
        "CSI": {"2.7.0": entry(), "3.6.2": entry()}, "CPI": {"1.26.0": entry()},
    }));
    let current: Vec<Release> = of(&catalogs.current(), csi);
    assert_eq!(current.len(), 2, "{current:?}");
    // A release that is newer than this VDO can exist. The matrix then asks for nothing else.
    let catalogs = offered(json!({"CSI": {"9.9.9": entry()}, "CPI": {"1.26.0": entry()}}));
    let current: Vec<Release> = of(&catalogs.current(), csi);
    assert_eq!(current, []);
}

/// A mirror can have the deleted images. VDO then keeps the admin's matrix, so that no driver leaves it.
#[test]
fn a_matrix_whose_images_a_mirror_has_stays_in_use() {
    let entry = || {
        json!({
            "vSphere": {"min": "6.7.1", "max": "8.0.1"}, "k8s": {"min": "1.24", "max": "1.27"},
            "deploymentPath": ["https://example.com/gone.yaml"],
        })
    };
    let content = json!({"CSI": {"2.7.0": entry(), "3.0.0": entry()}, "CPI": {"1.23.0": entry()}});
    let data = BTreeMap::from([(matrix::CONTENT.to_owned(), content.to_string())]);
    let mut catalogs = catalogs();
    catalogs.take_legacy("ConfigMap x/compat-matrix-config", &data);
    let mut versions = |images: serde_json::Value| {
        let config = json!({"metadata": {"name": "vdo"}, "spec": {"images": images}});
        let (catalog, trouble) = catalogs.in_use_for(&serde_json::from_value(config).unwrap());
        assert_eq!(trouble, None);
        let versions = catalog.releases.iter().map(|r| format!("{} {}", r.driver, r.version));
        versions.collect::<Vec<_>>()
    };
    let embedded = catalog::embedded().releases.len();
    assert_eq!(versions(json!(null)).len(), embedded);
    let mirror = |from: &str| json!({"mirrors": [{"from": from, "to": "harbor.corp/vdo"}]});
    let listed = ["CSI 2.7.0", "CSI 3.0.0"];
    assert_eq!(versions(json!({"registry": "harbor.corp/vdo"})), listed);
    assert_eq!(versions(mirror("gcr.io/cloud-provider-vsphere")), listed);
    // It has only images that were not deleted.
    assert_eq!(versions(mirror("registry.k8s.io")).len(), embedded);
}

#[test]
fn a_matrix_with_releases_that_the_catalog_cannot_judge_stays_in_use() {
    let embedded = catalog::embedded();
    let mut release = embedded.releases[0].clone();
    release.version = "0.0.1".parse().unwrap();
    let matrix = Catalog { releases: vec![release.clone()], ..embedded.clone() };
    let mut known = embedded.clone();
    known.releases.retain(|listed| {
        listed.driver != release.driver || listed.implementation != release.implementation
    });
    let (filled, left_out) = matrix::filled(&matrix, &known, &Rewrite::default());
    assert_eq!(filled.releases, []);
    assert_eq!(left_out.len(), 1);
}

fn request(url: &str) -> Request {
    Request { url: url.to_owned(), etag: None, credentials: oci::Credentials::default() }
}

#[tokio::test]
async fn an_address_of_a_kind_that_is_not_read_is_refused_with_the_way_out() {
    let (_, refused) = fetch::fetch(request("file:///etc/catalog.yaml")).await.unwrap_err();
    assert!(refused.contains("https://") && refused.contains("spec.bundle"), "{refused}");
    let (_, refused) = fetch::fetch(request("oci://vdo/catalog")).await.unwrap_err();
    assert!(refused.contains("oci://HOST/REPOSITORY:TAG"), "{refused}");
}

#[test]
fn a_catalog_for_a_newer_vdo_and_a_catalog_that_is_too_large_have_findings_of_their_own() {
    let mut catalogs = Catalogs::new(Arc::new(watch::Sender::new(())));
    let newer = catalog::EMBEDDED.replacen("schema: \"1", "schema: \"2", 1);
    assert_ne!(newer, catalog::EMBEDDED);
    let huge = "#".repeat(MAX_BYTES + 1);
    for (text, code) in [(newer, "VDO-1106"), (huge, "VDO-1107")] {
        assert!(!catalogs.offer("map", text.as_bytes(), &Ok(Vec::new()), Delivery::ConfigMap));
        let (definition, values) = catalogs.trouble().unwrap().finding();
        assert_eq!(definition.code, code);
        let named = |name: &str| values.iter().any(|(value, _)| *value == name);
        assert!(named("schema") && named("known") || named("limit"), "{values:?}");
    }
    assert_eq!(catalogs.current().serial, catalog::embedded().serial, "nothing of it is used");
}

#[test]
fn a_catalog_that_a_restart_would_forget_is_refused() {
    let (key, _) = SigningKey::generate().unwrap();
    // Random text, which does not become smaller.
    let mut random = 1_u64;
    let noise = (0..150_000).fold(String::new(), |text, _| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text + &format!("# {random:x}\n")
    });
    let text = format!("{}{noise}", newer());
    assert!(text.len() < MAX_BYTES, "the limit of a catalog is another one");
    let bundle = Bundle::sign(text.as_bytes(), std::slice::from_ref(&key)).to_json();
    let mut catalogs = catalogs();
    let keys = keys_of(&config(Some(&key)));
    assert!(!catalogs.offer("url", bundle.as_bytes(), &keys, Delivery::Network));
    assert_eq!(catalogs.trouble().unwrap().finding().0.code, "VDO-1107");
    assert_eq!(catalogs.current().serial, 1, "nothing of it is used");
}

/// The bundles that an API server received for [`stored`], which refuses the first one; and its client. The ConfigMap
/// `vdo-catalog` contains `bundle`.
async fn refusing_once(
    bundle: &str,
) -> (Client, Arc<std::sync::Mutex<Vec<String>>>, runtime::tasks::Tasks) {
    let written = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (seen, bundle) = (written.clone(), bundle.to_owned());
    let (client, tasks) = crate::fake_api::serving(move |request: String| {
        let failure = |code: u16, reason: &str| {
            (code, json!(kube::core::Status::failure("no", reason).with_code(code)))
        };
        let answer = match request.split(['?', ' ']).take(2).collect::<Vec<_>>()[..] {
            ["GET", path] if path.ends_with("/vdo-catalog") => {
                let metadata = json!({"name": "vdo-catalog", "resourceVersion": "1"});
                (200, json!({"metadata": metadata, "data": {"catalog.yaml": bundle}}))
            }
            ["PATCH", path] if path.ends_with("/vdo-kept-catalog") => {
                let (_, body) = request.split_once("\r\n\r\n").unwrap();
                let map: serde_json::Value = serde_json::from_str(body).unwrap();
                let mut seen = seen.lock().unwrap();
                seen.push(map["data"]["bundle"].as_str().unwrap().to_owned());
                if seen.len() == 1 { failure(500, "InternalError") } else { (200, map) }
            }
            _ => failure(404, "NotFound"),
        };
        std::future::ready(answer)
    })
    .await;
    (client, written, tasks)
}

#[tokio::test]
async fn a_catalog_from_a_config_map_that_could_not_be_stored_is_stored_later() {
    let (key, _) = SigningKey::generate().unwrap();
    let bundle = signed(7, &key);
    let (client, written, _api_server) = refusing_once(&bundle).await;
    let mut config = config(Some(&key));
    config.metadata.namespace = Some("vdo".into());
    config.spec.bundle = serde_json::from_value(json!({"configMap": "vdo-catalog"})).unwrap();
    let mut catalogs = catalogs();
    // The round goes on, so that the drivers get their passwords.
    catalogs.follow(&client, "vdo", Some(&config), None).await.unwrap();
    assert_eq!(catalogs.current().serial, 7);
    assert_eq!(written.lock().unwrap().len(), 1);
    assert!(catalogs.next_fetch().is_some(), "the next round does not wait for a change");
    catalogs.follow(&client, "vdo", Some(&config), None).await.unwrap();
    assert_eq!(*written.lock().unwrap(), [bundle.clone(), bundle]);
    catalogs.follow(&client, "vdo", Some(&config), None).await.unwrap();
    assert_eq!(written.lock().unwrap().len(), 2, "it is stored");
}

#[tokio::test]
async fn a_fetched_catalog_that_could_not_be_stored_is_stored_later() {
    let (key, _) = SigningKey::generate().unwrap();
    let bundle = signed(7, &key);
    let (client, written, _api_server) = refusing_once("").await;
    let url = "https://catalog.invalid/catalog.json";
    let mut config = config(Some(&key));
    config.metadata.namespace = Some("vdo".into());
    config.spec.matrix_url = Some(url.into());
    let mut catalogs = catalogs();
    // The first fetch has ended, and the next one is not due.
    let seen = format!("{url} {:?} ", config.metadata.generation);
    catalogs.last = Some((seen.clone(), Instant::now()));
    let (end, outcome) = oneshot::channel();
    let etag = Some("tag".to_owned());
    let answer = Ok(Fetched::Catalog { bytes: bundle.clone().into_bytes(), etag });
    end.send(Outcome { url: url.into(), seen, answer }).unwrap();
    catalogs.fetching = Some(Fetch { outcome, _task: JoinSet::new() });
    catalogs.follow(&client, "vdo", Some(&config), None).await.unwrap();
    assert_eq!(catalogs.current().serial, 7);
    assert_eq!(written.lock().unwrap().len(), 1);
    assert!(catalogs.fetching.is_none());
    assert!(catalogs.etag.is_none(), "the web server sends it again until it is stored");
    catalogs.follow(&client, "vdo", Some(&config), None).await.unwrap();
    assert_eq!(*written.lock().unwrap(), [bundle.clone(), bundle]);
    assert!(catalogs.etag.is_some());
    catalogs.follow(&client, "vdo", Some(&config), None).await.unwrap();
    assert_eq!(written.lock().unwrap().len(), 2, "it is stored");
}
