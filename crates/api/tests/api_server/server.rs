//! Sends requests as `kubectl` does, and returns the warnings.

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use testkit::ControlPlane;

pub(crate) struct Server {
    client: Client,
    _control_plane: ControlPlane,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
    warnings: Vec<String>,
}

impl Answer {
    /// Asserts that the server accepted the object without a warning.
    #[track_caller]
    pub(crate) fn accepted(&self, what: &str) {
        assert!(self.status < 300, "{what} is rejected: {}", self.body["message"]);
        assert!(self.warnings.is_empty(), "{what} has warnings: {:?}", self.warnings);
    }

    /// Asserts that the server accepted the object with this warning.
    #[track_caller]
    pub(crate) fn accepted_with_warning(&self, what: &str, says: &str) {
        assert!(self.status < 300, "{what} is rejected: {}", self.body["message"]);
        assert!(self.warnings.iter().any(|w| w.contains(says)), "{what}: {:?}", self.warnings);
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        let control_plane = ControlPlane::start().await;
        Self { client: control_plane.client(), _control_plane: control_plane }
    }

    pub(crate) async fn create(&self, object: &Value) -> Answer {
        self.send(Method::POST, &collection(object), "application/json", Some(object)).await
    }

    /// With strict field validation, as `kubectl` does.
    pub(crate) async fn dry_run(&self, object: &Value) -> Answer {
        let path = format!("{}?dryRun=All&fieldValidation=Strict", collection(object));
        self.send(Method::POST, &path, "application/json", Some(object)).await
    }

    pub(crate) async fn apply(&self, object: &Value) -> Answer {
        let path = format!("{}?fieldManager=vdo&force=true", path(object));
        self.send(Method::PATCH, &path, "application/apply-patch+yaml", Some(object)).await
    }

    pub(crate) async fn get(&self, object: &Value) -> Answer {
        self.send(Method::GET, &path(object), "application/json", None).await
    }

    pub(crate) async fn replace(&self, object: &Value) -> Answer {
        self.send(Method::PUT, &path(object), "application/json", Some(object)).await
    }

    pub(crate) async fn replace_status(&self, object: &Value) -> Answer {
        let path = format!("{}/status", path(object));
        self.send(Method::PUT, &path, "application/json", Some(object)).await
    }

    /// The object as `kubectl get` shows it.
    pub(crate) async fn table(&self, object: &Value) -> Value {
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let request =
            Request::get(path(object)).header("Accept", accept).body(Body::empty()).unwrap();
        let response = self.client.send(request).await.unwrap();
        serde_json::from_slice(&response.into_body().collect_bytes().await.unwrap()).unwrap()
    }

    /// Waits until every kind of ours is served.
    pub(crate) async fn established(&self) {
        for plural in ["vdoconfigs", "vspherecloudconfigs", "compatibilityconfigs"] {
            testkit::eventually("the kind is served", 30, async || {
                let path = format!("/apis/vdo.vmware.com/v1alpha1/{plural}");
                let answer = self.send(Method::GET, &path, "application/json", None).await;
                if answer.status == 200 { Ok(()) } else { Err(answer.body.to_string()) }
            })
            .await;
        }
    }

    /// Waits until the published schema of a kind's spec satisfies `wanted`.
    pub(crate) async fn until_served(&self, plural: &str, wanted: impl Fn(&Value) -> bool) {
        testkit::eventually("the new schema is published", 30, async || {
            let path = "/openapi/v3/apis/vdo.vmware.com/v1alpha1";
            let answer = self.send(Method::GET, path, "application/json", None).await;
            let schemas =
                answer.body["components"]["schemas"].as_object().cloned().unwrap_or_default();
            let spec = schemas
                .iter()
                .find(|(name, _)| {
                    plural.starts_with(&name.rsplit('.').next().unwrap().to_lowercase())
                })
                .map(|(_, schema)| schema["properties"]["spec"].clone());
            match spec {
                Some(spec) if wanted(&spec) => Ok(()),
                other => Err(json!(other).to_string()),
            }
        })
        .await;
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content: &str,
        object: Option<&Value>,
    ) -> Answer {
        let body = object.map_or_else(Vec::new, |object| serde_json::to_vec(object).unwrap());
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", content)
            .body(Body::from(body))
            .unwrap();
        let response = self.client.send(request).await.unwrap();
        let warnings = response.headers().get_all("warning").iter();
        let warnings = warnings.map(|w| w.to_str().unwrap().to_owned()).collect();
        let status = response.status().as_u16();
        let bytes = response.into_body().collect_bytes().await.unwrap();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| json!({ "message": String::from_utf8_lossy(&bytes) }));
        Answer { status, body, warnings }
    }
}

fn collection(object: &Value) -> String {
    let version = object["apiVersion"].as_str().unwrap();
    let root = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
    let kind = object["kind"].as_str().unwrap();
    let plural = format!("{}s", kind.to_lowercase());
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
        None => format!("{root}/{plural}"),
    }
}

fn path(object: &Value) -> String {
    format!("{}/{}", collection(object), object["metadata"]["name"].as_str().unwrap())
}
