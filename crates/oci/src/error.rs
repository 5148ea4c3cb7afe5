//! Errors of transfers. The text names the image, the file or the registry; [`Error::help`] names the fix.

use std::{io, path::PathBuf};

use reqwest::StatusCode;
use snafu::Snafu;

#[derive(Debug, Snafu)]
#[snafu(visibility(pub(crate)))]
pub enum Error {
    #[snafu(display("{text:?} is not a digest: sha256: and 64 hexadecimal digits"))]
    Digest { text: String },

    #[snafu(display("{text:?} does not name an image"))]
    Reference { text: String },

    #[snafu(display("{text:?} does not name a registry"))]
    Registry { text: String },

    #[snafu(display("{text:?} is not a platform"))]
    Platform { text: String },

    #[snafu(display("the manifest of {name} cannot be read"))]
    Manifest { name: String, source: serde_json::Error },

    #[snafu(display(
        "the manifest of {name} has the format {media_type:?}, which VDO does not know"
    ))]
    UnknownFormat { name: String, media_type: String },

    #[snafu(display("the registry {host} cannot be reached"))]
    Unreachable {
        host: String,
        #[snafu(source(from(reqwest::Error, reqwest::Error::without_url)))]
        source: reqwest::Error,
    },

    #[snafu(display("the transfer of {name} stopped"))]
    Interrupted {
        name: String,
        #[snafu(source(from(reqwest::Error, reqwest::Error::without_url)))]
        source: reqwest::Error,
    },

    #[snafu(display("the transfer of {name} ended after {got} of {size} bytes"))]
    Short { name: String, got: u64, size: u64 },

    #[snafu(display("the registry {host} requires credentials for {path}"))]
    Unauthorized { host: String, path: String, anonymous: bool },

    #[snafu(display("the token service of {host} is {realm:?}, which VDO does not use"))]
    Realm { host: String, realm: String },

    #[snafu(display(
        "the registry {host} wants its uploads at {place}, where everybody on the way can read them"
    ))]
    UploadPlace { host: String, place: String },

    #[snafu(display("the token service of {host} gave no token"))]
    NoToken { host: String },

    #[snafu(display("{name} is not in the registry"))]
    NotFound { name: String, message: String },

    #[snafu(display("the registry refused {name}: {status}{}", detail(message)))]
    Refused { name: String, status: StatusCode, message: String },

    #[snafu(display("{name} has the digest {found}, not {expected}"))]
    OtherDigest { name: String, expected: String, found: String },

    #[snafu(display("{name} contains no file of the type {media_type}"))]
    NoContent { name: String, media_type: String },

    #[snafu(display("{name} is larger than {limit} bytes"))]
    TooLarge { name: String, limit: u64 },

    #[snafu(display("{name} exists for {}, not for {wanted}", has.join(", ")))]
    NoPlatform { name: String, has: Vec<String>, wanted: String },

    #[snafu(display(
        "the registry refuses {name} because the archive has only some of its platforms"
    ))]
    Sparse {
        name: String,
        #[snafu(source(from(Error, Box::new)))]
        source: Box<Error>,
    },

    #[snafu(display("{first} and {second} would both become {name}"))]
    Collision { first: String, second: String, name: String },

    #[snafu(display("{} cannot be {deed}", path.display()))]
    File { path: PathBuf, deed: &'static str, source: io::Error },

    #[snafu(display("{} is in use by another export", path.display()))]
    Busy { path: PathBuf },

    #[snafu(display("{} is not an archive of images: {why}", path.display()))]
    NotAnArchive { path: PathBuf, why: String },

    #[snafu(display("{} is damaged: {why}", path.display()))]
    Damaged { path: PathBuf, why: String },

    #[snafu(display("the credentials in {} cannot be used: {why}", path.display()))]
    Credentials { path: PathBuf, why: String },

    #[snafu(display("{what} cannot be used"))]
    Setup {
        what: String,
        #[snafu(source(from(reqwest::Error, reqwest::Error::without_url)))]
        source: reqwest::Error,
    },
}

fn detail(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(", {message}") }
}

impl Error {
    /// The step for the user.
    pub fn help(&self) -> Option<String> {
        let text = match self {
            Self::Unreachable { .. } => {
                "check the name and the network; --proxy, --ca-file and --plain-http change how vdoctl connects"
            }
            Self::Interrupted { .. } | Self::Short { .. } => {
                "run the command again: it continues where it stopped"
            }
            Self::Unauthorized { anonymous: true, host, .. } => {
                return Some(format!(
                    "log in with skopeo login {host} or docker login {host}, or name the file with --auth-file"
                ));
            }
            Self::Unauthorized { anonymous: false, .. } => {
                "the registry rejects the credentials, or they do not allow this: check the user's permissions"
            }
            Self::Realm { .. } => "the token service must use https://",
            Self::UploadPlace { .. } => {
                "the registry must name a place with https://: behind a proxy with TLS, set the registry's external address"
            }
            Self::OtherDigest { .. } => {
                "the registry or a proxy before it serves other content than the publisher's: do not use it"
            }
            Self::NoPlatform { .. } => "omit --platform to copy every platform",
            Self::Sparse { .. } => "export the images again, without --platform",
            Self::Collision { .. } => "import them into different registries or path prefixes",
            Self::Busy { .. } => "wait for the other export, or write to another file",
            Self::NotAnArchive { .. } => "vdoctl images export writes such an archive",
            Self::Damaged { .. } => "copy or export the archive again",
            Self::Platform { .. } => "use a name like linux/amd64 or linux/arm64",
            Self::Registry { .. } => "use a name like registry.example.com/path, without https://",
            Self::Reference { .. } => "use a name like registry.example.com/path/image:tag",
            _ => return None,
        };
        Some(text.to_owned())
    }

    /// Whether the same request can succeed a moment later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            // A refused connection or certificate is not going to change within seconds.
            Self::Unreachable { source, .. } => source.is_timeout() || !source.is_connect(),
            Self::Interrupted { .. } | Self::Short { .. } => true,
            Self::Refused { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            _ => false,
        }
    }
}
