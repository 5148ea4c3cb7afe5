//! Errors of the generators. They mean that the install manifest changed and a package does not follow yet.

use catalog::manifest::YamlError;
use snafu::Snafu;

#[derive(Debug, Snafu)]
#[snafu(visibility(pub(crate)))]
pub enum Error {
    #[snafu(display("{what} cannot be written as YAML"))]
    Yaml { what: String, source: YamlError },

    #[snafu(display("{what} cannot be written as JSON"))]
    Json { what: String, source: serde_json::Error },

    #[snafu(display("{object}: {pointer} {problem}"))]
    Place { object: String, pointer: String, problem: &'static str },

    #[snafu(display("{what} contains text that Helm would evaluate"))]
    Template { what: String },

    #[snafu(display("the install manifest contains no {what}"))]
    Missing { what: String },

    #[snafu(display("{image} is not REGISTRY/REPOSITORY:{version}"))]
    Image { image: String, version: &'static str },

    #[snafu(display(
        "{object} of the install manifest depends on the options of an installation, and the chart does not follow"
    ))]
    Option { object: String },

    #[snafu(display(
        "OLM creates no {object} of the install manifest, and the bundle does not follow"
    ))]
    Olm { object: String },

    #[snafu(display("the release has no digest for {image}"))]
    NoDigest { image: String },

    #[snafu(display("cargo's metadata cannot be used: {why}"))]
    Metadata { why: String },
}
