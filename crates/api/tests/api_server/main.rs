//! A real API server's word on the definitions: it takes them without a warning, takes every sample
//! and every object of the predecessor, and refuses mistakes with the sentence we promise.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod server;

use serde::Deserialize;
use serde_json::{Value, json};
use server::Server;

#[derive(Deserialize)]
struct Invalid {
    what: String,
    kind: String,
    spec: Option<Value>,
    at: String,
    says: String,
}

#[derive(Deserialize)]
struct Stored {
    what: String,
    object: Value,
}

fn stored() -> Vec<Stored> {
    serde_saphyr::from_str(include_str!("../fixtures/go-vdo-objects.yaml")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn definitions_samples_and_earlier_objects_are_taken_and_mistakes_are_explained() {
    let server = Server::start().await;
    for crd in api::crds() {
        let answer = server.create(&serde_json::to_value(&crd).unwrap()).await;
        answer.taken(crd.metadata.name.as_deref().unwrap());
    }
    server.established().await;
    samples_are_taken(&server).await;
    earlier_objects_are_taken(&server).await;
    mistakes_are_explained(&server).await;
    columns_tell_health_and_versions(&server).await;
}

async fn samples_are_taken(server: &Server) {
    server
        .create(
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": api::NAMESPACE}}),
        )
        .await;
    let samples = api::samples::samples();
    assert!(samples.len() >= 8);
    for sample in samples {
        for object in &sample.objects {
            let answer = server.dry_run(object).await;
            answer.taken(sample.name);
            for part in ["spec", "stringData"].iter().filter(|part| object.get(part).is_some()) {
                let kept = if *part == "spec" { &answer.body[part] } else { &object[part] };
                assert_eq!(kept, &object[part], "{}: nothing is pruned or added", sample.name);
            }
        }
    }
}

async fn earlier_objects_are_taken(server: &Server) {
    for Stored { what, object } in stored() {
        let answer = server.create(&object).await;
        answer.taken(&what);
        assert_eq!(answer.body["spec"], object["spec"], "{what}");
        if object.get("status").is_some() {
            let mut with_status = answer.body.clone();
            with_status["status"] = object["status"].clone();
            let answer = server.replace_status(&with_status).await;
            answer.taken(&what);
            assert_eq!(answer.body["status"], object["status"], "{what}");
        }
    }
}

async fn mistakes_are_explained(server: &Server) {
    let table: Vec<Invalid> =
        serde_saphyr::from_str(include_str!("../fixtures/invalid.yaml")).unwrap();
    assert!(table.len() >= 60, "{}", table.len());
    let mut wrong = Vec::new();
    for Invalid { what, kind, spec, at, says } in table {
        let mut object = json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": kind,
            "metadata": {"name": "x", "namespace": "default"},
        });
        if let Some(spec) = spec {
            object["spec"] = spec;
        }
        let answer = server.dry_run(&object).await;
        let text = answer.body["message"].as_str().unwrap_or("it was taken").to_owned();
        if !text.contains(&format!("{at}: ")) || !text.contains(&says) {
            wrong.push(format!("{what}\n  wanted  {at}: … {says}\n  got     {text}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// What `kubectl get vdo` prints.
async fn columns_tell_health_and_versions(server: &Server) {
    let time = "2026-11-15T06:00:00Z";
    let object = json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
        "metadata": {"name": "columns", "namespace": "default"},
        "spec": {"storageProvider": {"vsphereCloudConfig": "a"}},
    });
    let mut created = server.create(&object).await.body;
    created["status"] = json!({
        "conditions": [{"type": "Ready", "status": "True", "reason": "Healthy", "message": "", "lastTransitionTime": time}],
        "cpi": {"version": "1.36.0"}, "csi": {"version": "3.7.0"},
    });
    server.replace_status(&created).await.taken("a status");
    let table = server.table(&created).await;
    let titles: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    assert_eq!(titles, ["Name", "Ready", "Status", "CPI", "CSI", "Upgrade", "Message", "Age"]);
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(
        cells[..5],
        [json!("columns"), json!("True"), json!("Healthy"), json!("1.36.0"), json!("3.7.0")]
    );
}

/// A cluster that ran the predecessor: its definitions, its objects, some of them with values we
/// would refuse today. Then ours are applied over them, as an upgrade does.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_the_predecessor_is_taken_over_with_all_it_stored() {
    let server = Server::start().await;
    let old: Vec<Value> =
        serde_saphyr::from_multiple(include_str!("../fixtures/go-vdo-crds.yaml")).unwrap();
    for crd in &old {
        server.create(crd).await.taken("a definition of the predecessor");
    }
    server.established().await;
    let mut objects: Vec<Value> = stored().into_iter().map(|stored| stored.object).collect();
    objects.push(json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
        "metadata": {"name": "odd", "namespace": "default"},
        "spec": {
            "cloudProvider": {"vsphereCloudConfigs": ["Not A Name"], "topology": {"zone": "z", "region": ""}},
            "storageProvider": {
                "vsphereCloudConfig": "", "customKubeletPath": "relative",
                "fileVolumes": {"vsanDataStoreUrl": ["ds1"], "netPermissions": [{"ips": "nonsense", "permissions": "rw"}]},
            },
        },
    }));
    objects.push(json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VsphereCloudConfig",
        "metadata": {"name": "odd", "namespace": "default"},
        "spec": {"vcIp": "https://vc/sdk", "insecure": false, "credentials": "A B", "thumbprint": "nonsense", "datacenters": [""]},
    }));
    for object in &objects {
        let mut created = server.create(object).await;
        created.taken("an object of the predecessor");
        if object.get("status").is_some() {
            created.body["status"] = object["status"].clone();
            server.replace_status(&created.body).await.taken("a status of the predecessor");
        }
    }

    for crd in api::crds() {
        server
            .apply(&serde_json::to_value(&crd).unwrap())
            .await
            .taken("our definition over the predecessor's");
    }
    // Only a server that knows the new definition keeps a new field.
    server.until_served("vdoconfigs", |spec| spec["properties"].get("upgrades").is_some()).await;

    for object in &objects {
        let name = object["metadata"]["name"].as_str().unwrap();
        let mut read = server.get(object).await.body;
        assert_eq!(read["spec"], object["spec"], "{name}: what was stored is read unchanged");
        assert_eq!(read["status"], object["status"], "{name}: its status too");
        typed(&read);
        read["metadata"]["labels"] = json!({"touched": "yes"});
        // What would be refused in a new object is only warned about in one that is there.
        let check = |answer: &server::Answer| match name {
            "odd" => answer.taken_with_warning(name, "must be the"),
            _ => answer.taken(name),
        };
        let touched = server.replace(&read).await;
        check(&touched);
        let mut read = touched.body;
        let conditions = json!([{"type": "Ready", "status": "Unknown", "reason": "Starting",
            "message": "", "lastTransitionTime": "2026-11-15T06:00:00Z"}]);
        read["status"] = json!({"conditions": conditions});
        check(&server.replace_status(&read).await);
    }
    // A field that is changed must be right.
    let mut odd = server.get(&objects[objects.len() - 1]).await.body;
    odd["spec"]["vcIp"] = "ftp://vc".into();
    assert!(
        server.replace(&odd).await.body["message"]
            .as_str()
            .unwrap()
            .contains("must be the address of the vCenter alone")
    );
}

/// The Rust types read whatever the API server stores.
fn typed(object: &Value) {
    let object = object.clone();
    match object["kind"].as_str().unwrap() {
        "VDOConfig" => drop(serde_json::from_value::<api::VDOConfig>(object).unwrap()),
        "VsphereCloudConfig" => {
            drop(serde_json::from_value::<api::VsphereCloudConfig>(object).unwrap());
        }
        _ => drop(serde_json::from_value::<api::CompatibilityConfig>(object).unwrap()),
    }
}
