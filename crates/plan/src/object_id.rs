//! The identity of a Kubernetes object.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectId {
    /// For example `apps/v1`.
    pub api_version: String,
    /// For example `DaemonSet`.
    pub kind: String,
    /// Empty for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
}

impl ObjectId {
    /// The identity of a rendered object.
    pub fn from_object(object: &catalog::manifest::Object) -> Self {
        Self {
            api_version: object.api_version().into(),
            kind: object.kind().into(),
            namespace: object.namespace().into(),
            name: object.name().into(),
        }
    }

    /// `namespace/name`, or only the name.
    pub fn qualified_name(&self) -> String {
        match self.namespace.as_str() {
            "" => self.name.clone(),
            namespace => format!("{namespace}/{}", self.name),
        }
    }
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind, self.qualified_name())
    }
}
