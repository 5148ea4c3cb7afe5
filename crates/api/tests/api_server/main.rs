//! Tests the CRDs with a real API server. It accepts them without a warning, accepts every sample and every
//! object of the Go VDO, and rejects mistakes with our message.
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
async fn crds_samples_and_old_objects_are_accepted_and_mistakes_are_explained() {
    let server = Server::start().await;
    for crd in api::crds() {
        let answer = server.create(&serde_json::to_value(&crd).unwrap()).await;
        answer.accepted(crd.metadata.name.as_deref().unwrap());
    }
    server.established().await;
    samples_are_accepted(&server).await;
    old_objects_are_accepted(&server).await;
    unknown_fields_are_pruned(&server).await;
    mistakes_are_explained(&server).await;
    columns_show_health_and_versions(&server).await;
}

async fn samples_are_accepted(server: &Server) {
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
            answer.accepted(sample.name);
            for part in ["spec", "stringData"].iter().filter(|part| object.get(part).is_some()) {
                let kept = if *part == "spec" { &answer.body[part] } else { &object[part] };
                assert_eq!(kept, &object[part], "{}: nothing is pruned or added", sample.name);
            }
        }
    }
}

/// `networkProvider` was once in the schema. An object that still has it stays valid.
async fn unknown_fields_are_pruned(server: &Server) {
    let object = json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
        "metadata": {"name": "pruned", "namespace": "default"},
        "spec": {
            "storageProvider": {"vsphereCloudConfig": "a"},
            "networkProvider": {"plugin": "Antrea"},
        },
    });
    let answer = server.create(&object).await;
    answer.accepted_with_warning("an unknown field", "networkProvider");
    assert_eq!(answer.body["spec"], json!({"storageProvider": {"vsphereCloudConfig": "a"}}));
}

async fn old_objects_are_accepted(server: &Server) {
    for Stored { what, object } in stored() {
        let answer = server.create(&object).await;
        answer.accepted(&what);
        assert_eq!(answer.body["spec"], object["spec"], "{what}");
        if object.get("status").is_some() {
            let mut with_status = answer.body.clone();
            with_status["status"] = object["status"].clone();
            let answer = server.replace_status(&with_status).await;
            answer.accepted(&what);
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
        let text = answer.body["message"].as_str().unwrap_or("accepted").to_owned();
        if !text.contains(&format!("{at}: ")) || !text.contains(&says) {
            wrong.push(format!("{what}\n  wanted  {at}: … {says}\n  got     {text}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The columns of `kubectl get vdo`.
async fn columns_show_health_and_versions(server: &Server) {
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
    server.replace_status(&created).await.accepted("a status");
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

/// Starts with the CRDs and objects of the Go VDO. Some objects have values that our CRDs reject. Then applies
/// our CRDs, as an upgrade does.
#[tokio::test(flavor = "multi_thread")]
async fn our_crds_replace_those_of_the_go_vdo_and_keep_its_objects() {
    let server = Server::start().await;
    let old: Vec<Value> =
        serde_saphyr::from_multiple(include_str!("../fixtures/go-vdo-crds.yaml")).unwrap();
    for crd in &old {
        server.create(crd).await.accepted("a CRD of the Go VDO");
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
        created.accepted("an object of the Go VDO");
        if object.get("status").is_some() {
            created.body["status"] = object["status"].clone();
            server.replace_status(&created.body).await.accepted("a status of the Go VDO");
        }
    }

    for crd in api::crds() {
        server
            .apply(&serde_json::to_value(&crd).unwrap())
            .await
            .accepted("our CRD over that of the Go VDO");
    }
    // The server keeps a new field only once it serves the new CRD.
    server.until_served("vdoconfigs", |spec| spec["properties"].get("upgrades").is_some()).await;

    for object in &objects {
        let name = object["metadata"]["name"].as_str().unwrap();
        let mut read = server.get(object).await.body;
        assert_eq!(read["spec"], object["spec"], "{name}: the stored spec is unchanged");
        assert_eq!(read["status"], object["status"], "{name}: the stored status is unchanged");
        typed(&read);
        read["metadata"]["labels"] = json!({"touched": "yes"});
        // The server rejects the value in a new object, and only warns about it in a stored one.
        let check = |answer: &server::Answer| match name {
            "odd" => answer.accepted_with_warning(name, "must be the"),
            _ => answer.accepted(name),
        };
        let touched = server.replace(&read).await;
        check(&touched);
        let mut read = touched.body;
        let conditions = json!([{"type": "Ready", "status": "Unknown", "reason": "Starting",
            "message": "", "lastTransitionTime": "2026-11-15T06:00:00Z"}]);
        read["status"] = json!({"conditions": conditions});
        check(&server.replace_status(&read).await);
    }
    // A changed field must be valid.
    let mut odd = server.get(&objects[objects.len() - 1]).await.body;
    odd["spec"]["vcIp"] = "ftp://vc".into();
    assert!(
        server.replace(&odd).await.body["message"]
            .as_str()
            .unwrap()
            .contains("must be the address of the vCenter alone")
    );
}

/// The Rust types can read every stored object.
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
