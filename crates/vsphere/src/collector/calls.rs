//! The calls to the property collector.

use std::time::Duration;

use tokio::time::Instant;

use super::managed::Managed;
use super::spec::{FilterSpec, ObjectSpec, PropertySpec, RetrieveOptions, Traversal, WaitOptions};
use super::update::{Change, RetrievedObject};
use crate::client::{Client, Effort};
use crate::error::Error;
use crate::moref::MoRef;
use crate::session::{Side, Ticket};
use crate::soap::{Fault, FaultKind};
use crate::wire::{Method, Nature, ReplyStream};
use crate::xml::XmlError;
use crate::xml::codec::{Decode, Encode};
use crate::xml::stream::child;

/// Reads properties of `T` from all the objects the spec leads to, once. Nothing of the reply is
/// kept but the values. A failure in the middle starts the whole retrieval again. `page` is the
/// number of objects per reply; vCenter may choose a smaller one.
pub(crate) async fn retrieve<T: Managed>(
    client: &Client,
    spec: &FilterSpec,
    page: Option<i32>,
) -> Result<Vec<RetrievedObject<T>>, Error> {
    let effort = client.effort(Side::Soap, Nature::Read);
    retrieve_with(effort, client, spec, page).await
}

/// The same, tried as often as `effort` allows.
pub(crate) async fn retrieve_with<T: Managed>(
    mut effort: Effort<'_>,
    client: &Client,
    spec: &FilterSpec,
    page: Option<i32>,
) -> Result<Vec<RetrievedObject<T>>, Error> {
    loop {
        let ticket = effort.ticket().await?;
        let mut all = Vec::new();
        match retrieve_once(client, spec, page, &ticket, &mut all).await {
            Ok(()) => return Ok(all),
            Err(error) => effort.again(&ticket, error).await?,
        }
    }
}

async fn retrieve_once<T: Managed>(
    client: &Client,
    spec: &FilterSpec,
    page_size: Option<i32>,
    ticket: &Ticket,
    all: &mut Vec<RetrievedObject<T>>,
) -> Result<(), Error> {
    let collector = client.content()?.property_collector;
    let options = RetrieveOptions { max_objects: page_size };
    let args: &[(&str, &dyn Encode)] = &[("specSet", spec), ("options", &options)];
    let method = Method::read("RetrievePropertiesEx");
    let mut reply = client.wire().stream(method, &collector, args, Some(&ticket.secret)).await?;
    while let Some(token) = page(&mut reply, all).await? {
        reply.finish().await?;
        let args: &[(&str, &dyn Encode)] = &[("token", &token)];
        let method = Method::read("ContinueRetrievePropertiesEx");
        reply = client.wire().stream(method, &collector, args, Some(&ticket.secret)).await?;
    }
    reply.finish().await?;
    match session_lost(all) {
        Some(fault) => Err(client.wire().fault(method.name, fault.clone())),
        None => Ok(()),
    }
}

/// A part of a `RetrieveResult`.
enum Part<T> {
    Token(String),
    Object(T),
    Nothing,
}

/// Reads one page; returns the token of the next.
async fn page<T: Managed>(
    reply: &mut ReplyStream,
    all: &mut Vec<RetrievedObject<T>>,
) -> Result<Option<String>, Error> {
    let mut token = None;
    if !reply.next(|r| Ok(r.next_child()?.is_some())).await? {
        return Ok(None);
    }
    loop {
        let part = reply.next(|reader| {
            child(reader, |start, reader| {
                Ok(match start.name() {
                    "token" => Part::Token(reader.text()?.into_owned()),
                    "objects" => Part::Object(RetrievedObject::decode(start, reader)?),
                    _ => {
                        reader.skip()?;
                        Part::Nothing
                    }
                })
            })
        });
        match part.await? {
            None => return Ok(token),
            Some(Part::Token(found)) => token = Some(found),
            Some(Part::Object(found)) => all.push(found),
            Some(Part::Nothing) => {}
        }
    }
}

/// A session that ended may show in the properties instead of in the call: nothing was read then.
fn session_lost<T>(found: &[RetrievedObject<T>]) -> Option<&Fault> {
    let missing = found.iter().flat_map(|found| &found.missing);
    missing.map(|missing| &missing.fault).find(|fault| fault.kind == FaultKind::NotAuthenticated)
}

/// An answer that brings nothing and comes sooner than this is not what was asked for.
const SOONEST: Duration = Duration::from_millis(500);

/// How long to wait after so many such answers, so that a vCenter that does not wait is not called
/// without pause.
fn breath(hasty: u32) -> Duration {
    Duration::from_millis(25).saturating_mul(1 << hasty.min(12)).min(Duration::from_secs(10))
}

/// A property collector of our own, with one filter. It lives in one session and ends with it.
#[derive(Debug)]
pub(crate) struct Collector {
    reference: MoRef,
    ticket: Ticket,
    /// Up to where changes were seen.
    version: String,
    /// Empty answers in a row that came sooner than they should.
    hasty: u32,
    /// What else must be cleared away: views.
    views: Vec<MoRef>,
}

/// What one wait brought.
#[derive(Debug)]
pub(crate) struct Waited<T> {
    pub(crate) changes: Vec<Change<T>>,
    /// Whether more is waiting already.
    pub(crate) truncated: bool,
}

impl Collector {
    /// Makes a collector without a filter. [`Collector::create_filter`] comes next.
    pub(crate) async fn new(client: &Client, ticket: Ticket) -> Result<Self, Error> {
        let create = Method::change("CreatePropertyCollector");
        let root = client.content()?.property_collector;
        let reference: MoRef = client.wire().once(create, &root, &[], Some(&ticket.secret)).await?;
        Ok(Self { reference, ticket, version: String::new(), hasty: 0, views: Vec::new() })
    }

    /// Makes the filter: the objects themselves and what is in the views. `views` are made first.
    ///
    /// # Errors
    /// After an error the collector is of no more use, but is still there to be cleared away.
    pub(crate) async fn create_filter(
        &mut self,
        client: &Client,
        properties: Vec<PropertySpec>,
        objects: Vec<MoRef>,
        views: Vec<View>,
    ) -> Result<(), Error> {
        let wire = client.wire();
        let content = client.content()?;
        let cookie = self.ticket.secret.clone();
        let mut specs: Vec<ObjectSpec> = objects.into_iter().map(ObjectSpec::just).collect();
        for view in views {
            let (method, kind) = (Method::change(view.method()), view.kind());
            let made: MoRef = match &view {
                View::Container { root, types } => {
                    let args: &[(&str, &dyn Encode)] =
                        &[("container", root), ("type", types), ("recursive", &true)];
                    wire.once(method, &content.view_manager, args, Some(&cookie)).await?
                }
                View::List { objects } => {
                    wire.once(method, &content.view_manager, &[("obj", objects)], Some(&cookie))
                        .await?
                }
            };
            self.views.push(made.clone());
            specs.push(ObjectSpec::view(made, kind));
        }
        let spec = FilterSpec { properties, objects: specs, missing_is_fine: true };
        let args: &[(&str, &dyn Encode)] = &[("spec", &spec), ("partialUpdates", &false)];
        let _: MoRef =
            wire.once(Method::change("CreateFilter"), &self.reference, args, Some(&cookie)).await?;
        Ok(())
    }

    pub(crate) fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// Waits until something changes, at most as long as the client's limits say. The first wait
    /// returns at once, with everything there is.
    ///
    /// # Errors
    /// After an error it is not known which changes vCenter considers as told: the collector is of
    /// no more use.
    pub(crate) async fn wait<T: Managed>(&mut self, client: &Client) -> Result<Waited<T>, Error> {
        if self.hasty > 0 {
            tokio::time::sleep(breath(self.hasty)).await;
        }
        let asked = Instant::now();
        let seconds = i32::try_from(client.limits().wait.as_secs().max(1)).unwrap_or(i32::MAX);
        let options = WaitOptions { max_wait_seconds: Some(seconds), max_object_updates: None };
        let args: &[(&str, &dyn Encode)] = &[("version", &self.version), ("options", &options)];
        let method = Method::wait("WaitForUpdatesEx");
        let mut reply =
            client.wire().stream(method, &self.reference, args, Some(&self.ticket.secret)).await?;
        let mut waited = Waited { changes: Vec::new(), truncated: false };
        let mut version = None;
        // No returnval: nothing happened.
        let is_set = reply.next(|r| Ok(r.next_child()?.is_some())).await?;
        if is_set {
            self.read_set(&mut reply, &mut waited, &mut version).await?;
        }
        reply.finish().await?;
        client.touch();
        match version {
            Some(version) => self.version = version,
            // Without it, the same changes would come again and again.
            None if is_set => {
                let source = XmlError::Missing { of: "a set of changes", field: "its version" };
                let (address, method) = (client.address().to_owned(), method.name.to_owned());
                return Err(Error::Unreadable { address, method, source });
            }
            None => {}
        }
        let is_hasty = waited.changes.is_empty() && asked.elapsed() < SOONEST;
        self.hasty = if is_hasty { self.hasty.saturating_add(1) } else { 0 };
        Ok(waited)
    }

    async fn read_set<T: Managed>(
        &self,
        reply: &mut ReplyStream,
        waited: &mut Waited<T>,
        version: &mut Option<String>,
    ) -> Result<(), Error> {
        enum Set {
            Version(String),
            Truncated(bool),
            Filter,
            Nothing,
        }
        loop {
            let part = reply.next(|reader| {
                let Some(start) = reader.next_child()? else { return Ok(None) };
                Ok(Some(match start.name() {
                    "version" => Set::Version(reader.text()?.into_owned()),
                    "truncated" => Set::Truncated(bool::decode(&start, reader)?),
                    // Its children are read one by one.
                    "filterSet" => Set::Filter,
                    _ => {
                        reader.skip()?;
                        Set::Nothing
                    }
                }))
            });
            match part.await? {
                None => return Ok(()),
                Some(Set::Version(text)) => *version = Some(text),
                Some(Set::Truncated(truncated)) => waited.truncated = truncated,
                Some(Set::Nothing) => {}
                Some(Set::Filter) => read_filter(reply, waited).await?,
            }
        }
    }

    /// The first view made, to be changed while a wait is under way.
    pub(crate) fn list(&self) -> Option<ListView> {
        let view = self.views.first()?.clone();
        Some(ListView { view, ticket: self.ticket.clone() })
    }

    /// Clears everything away in vCenter. What fails is cleared away by vCenter with the session.
    pub(crate) async fn destroy(self, client: &Client) {
        let secret = Some(&*self.ticket.secret);
        let method = Method::change("DestroyPropertyCollector");
        let mut outcome = client.wire().once::<()>(method, &self.reference, &[], secret).await;
        for view in &self.views {
            let destroyed =
                client.wire().once::<()>(Method::change("DestroyView"), view, &[], secret).await;
            outcome = outcome.and(destroyed);
        }
        if let Err(error) = outcome {
            tracing::debug!(vcenter = client.address(), error = %error.error_chain(), "cannot clear a watch away");
        }
    }
}

async fn read_filter<T: Managed>(
    reply: &mut ReplyStream,
    waited: &mut Waited<T>,
) -> Result<(), Error> {
    loop {
        let change = reply.next(|reader| {
            child(reader, |start, reader| {
                if start.name() == "objectSet" {
                    return Change::decode(start, reader).map(Some);
                }
                reader.skip()?;
                Ok(None)
            })
        });
        match change.await? {
            None => return Ok(()),
            Some(None | Some(Change::Foreign)) => {}
            Some(Some(change)) => waited.changes.push(change),
        }
    }
}

/// A list view that exists.
#[derive(Debug, Clone)]
pub(crate) struct ListView {
    view: MoRef,
    ticket: Ticket,
}

impl ListView {
    /// Adds and removes objects; returns those to add that vCenter does not know. Wakes the wait.
    pub(crate) async fn modify(
        &self,
        client: &Client,
        add: &[MoRef],
        remove: &[MoRef],
    ) -> Result<Vec<MoRef>, Error> {
        let args: &[(&str, &dyn Encode)] = &[("add", &add), ("remove", &remove)];
        client
            .wire()
            .once(Method::change("ModifyListView"), &self.view, args, Some(&self.ticket.secret))
            .await
    }
}

/// A set of objects that vCenter keeps.
#[derive(Debug, Clone)]
pub(crate) enum View {
    /// All objects of some types below an object; vCenter keeps it up to date.
    Container { root: MoRef, types: Vec<&'static str> },
    /// The objects named.
    List { objects: Vec<MoRef> },
}

impl View {
    fn method(&self) -> &'static str {
        match self {
            Self::Container { .. } => "CreateContainerView",
            Self::List { .. } => "CreateListView",
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Container { .. } => "ContainerView",
            Self::List { .. } => "ListView",
        }
    }
}

/// The spec for properties of objects found by walking from `root`.
pub(crate) fn walk(root: MoRef, steps: &[Traversal], properties: Vec<PropertySpec>) -> FilterSpec {
    FilterSpec { properties, objects: vec![ObjectSpec::below(root, steps)], missing_is_fine: true }
}
