//! The network section.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Mode;
use crate::text::ReleaseVersion;

/// The network plugin.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("!has(self.mode) || self.mode != 'Removed'")
    .message("mode Removed is not offered for the network plugin: pods would lose their network; use Observe"))]
#[x_kube(validation = Rule::new("!has(self.version) || (has(self.mode) && self.mode == 'Managed')")
    .message("version is only followed with mode: Managed"))]
#[serde(rename_all = "camelCase")]
pub struct NetworkProvider {
    /// The plugin VDO may manage.
    ///
    /// Example: `Antrea`
    pub plugin: NetworkPlugin,

    /// Whether VDO runs it. A plugin that is not there already is only installed on a cluster that
    /// has none.
    ///
    /// Default: `Observe`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,

    /// Release to run.
    ///
    /// Example: `2.7.0`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<ReleaseVersion>,
}

/// A network plugin VDO can manage.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkPlugin {
    /// Antrea.
    #[default]
    Antrea,
}
