//! A client for vCenter: the SOAP and REST calls this product needs, from vSphere 6.7 Update 3 to
//! 9.x, typed.
//!
//! It polls nothing. One session and one inventory watch per vCenter serve everybody; a quiet
//! vCenter costs a call every two minutes, a change costs what the change costs.
//!
//! ```text
//!             ┌───────────────────────── Client ─────────────────────────┐
//!             │  one session for all callers, retries where that is right │
//!             └──┬──────────┬─────────┬──────────┬──────────┬─────────┬──┘
//!   what it does │          │         │          │          │         │
//!          inventory      tasks   vm, tags   authorization  pbm      cns
//!          watch, tree,   one     changes,   roles, rights, storage  container
//!          absence        filter  names      sessions       policies volumes, vsan
//!                │          │         │          │          │         │
//!                └────┬─────┘         └──────────┴────┬─────┴─────────┘
//!                 collector                           │
//!                 properties of many objects,         │
//!                 read as they arrive                 │
//!                     └───────────────┬───────────────┘
//!                                  session      who we are: SOAP and REST, one login for all
//!                                     │
//!                                   wire        one SOAP call; rest: one REST call
//!                              ┌──────┴──────┐
//!                            soap         transport
//!                            XML, faults  TLS, HTTP, limits, observers
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
//! An object that is not in view may be gone, hidden from this user, or out of reach with the whole
//! vCenter. These are told apart by type: see [`inventory::Absence`]. Only [`inventory::Gone`] is
//! proof that an object does not exist.
//!
//! # Adding to it
//! - A property of an object: one line in `inventory/model.rs`.
//! - A method: a few lines beside those of its kind; its arguments in WSDL order, its nature
//!   (`read`, `change`) said.
//! - A data object: its fields in WSDL order, with `data!` of `soap/codec.rs`.
//!
//! # Seeing what it does
//! A [`CallObserver`] is told of every call. With the tracing target `vsphere::soap` at level
//! trace, the first 16 KiB of every body, SOAP and REST, are logged with all secrets replaced; of a
//! reply that is read as it arrives, once it has been read.

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
