//! A typed client for the vCenter SOAP and REST APIs that VDO needs, for vSphere 6.7 Update 3 to
//! 9.x. It does not poll: one session and one inventory watch per vCenter serve all callers. A
//! quiet vCenter costs one call every two minutes.
//!
//! Modules in order of dependency. Each row uses only rows below it:
//!
//! ```text
//!   fuzzing                                    entry points for the fuzz targets
//!   vm · cns                                   changes to VMs, container volumes
//!   inventory · tasks · authorization ·        operations; watches and retrievals
//!     sessions · groups                          go through the collector
//!   collector · tags · pbm · vsan              properties of many objects, tags, policies
//!   client                                     one session for all callers, retries
//!   session · task_registry                    one login for all; tasks that callers wait for
//!   rest                                       one REST call
//!   wire                                       one SOAP call
//!   login_pace                                 when refused logins are repeated
//!   transport · credentials                    HTTP, limits, observers; user and password
//!   error                                      errors with a fix
//!   soap · about · tls                         messages, server description, certificates
//!   moref · ids · version                      references, uuids, API versions
//!   xml                                        reader, writer, `data!`
//! ```
//!
//! ```no_run
//! # async fn doc() -> Result<(), vsphere::Error> {
//! use vsphere::inventory::{Selection, Vm};
//! use vsphere::{Client, Credentials};
//!
//! let client = Client::builder("vc.example.com")
//!     .credentials(Credentials::new("vdo@vsphere.local", "secret"))
//!     .user_agent("my-program/1.0")
//!     .connect()
//!     .await?;
//! let watch = client.watch(Selection::new().vms(&[Vm::IDENTITY, Vm::GUEST]));
//! let mut events = watch.inventory().events();
//! while let Some(event) = events.next().await {
//!     println!("{event:?}");
//! }
//! # Ok(()) }
//! ```
//!
//! # Absence
//! An object that is not in view may be deleted, hidden from this user, or unreachable with the whole
//! vCenter. [`inventory::Absence`] distinguishes these cases. Only [`inventory::Gone`] proves that an
//! object does not exist.
//!
//! # Extending it
//! - A property of an object: add one line in `inventory/model.rs`.
//! - A method: call it with `Method::read` or `Method::change` and its arguments in WSDL order.
//! - A data object: declare its fields in WSDL order with `data!` of `xml/codec.rs`.
//!
//! # Observing it
//! A [`CallObserver`] sees every call. The tracing target `vsphere::soap` at level trace logs the first
//! 16 KiB of every body, SOAP and REST, with all secrets redacted. It logs a streamed reply when the
//! client has read it.

mod about;
pub mod authorization;
mod client;
pub mod cns;
mod collector;
mod credentials;
mod error;
#[doc(hidden)]
pub mod fuzzing;
pub mod groups;
mod ids;
pub mod inventory;
pub mod login_pace;
mod moref;
pub mod pbm;
mod rest;
mod session;
pub mod sessions;
mod soap;
pub mod tags;
mod task_registry;
mod tasks;
mod tls;
mod transport;
mod version;
pub mod vm;
pub mod vsan;
mod wire;
mod xml;

pub use self::about::AboutInfo;
pub use self::client::{Client, ClientBuilder};
pub use self::credentials::Credentials;
pub use self::error::{Error, LoginRefusal, ProxyRefusal};
pub use self::ids::{BiosUuid, InstanceUuid};
pub use self::login_pace::LoginPace;
pub use self::moref::{Kind, MoRef};
pub use self::soap::{Fault, FaultKind, Value};
pub use self::task_registry::{TaskInfo, TaskState};
pub use self::tasks::Task;
pub use self::tls::{CertificateRefused, Refusal, Shown, Thumbprint, Trust};
pub use self::transport::address::Address;
pub use self::transport::http::Limits;
pub use self::transport::observe::{Call, CallCounter, CallObserver, Outcome};
pub use self::version::ApiVersion;
pub use self::xml::XmlError;
