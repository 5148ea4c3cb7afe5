//! The property collector's methods.

use std::time::Duration;

use tokio::time::Instant;

use super::managed::Managed;
use super::spec::{FilterSpec, ObjectSpec, PropertySpec, RetrieveOptions, Traversal, WaitOptions};
use super::update::{Change, RetrievedObject};
use crate::client::{Client, Retries};
use crate::error::Error;
use crate::moref::MoRef;
use crate::session::{Protocol, Ticket};
use crate::soap::{Fault, FaultKind};
use crate::wire::{CallKind, Method, ReplyStream};
use crate::xml::XmlError;
use crate::xml::codec::{Decode, Encode};
use crate::xml::stream::child;

/// Reads the properties of `T` once from all objects that the spec selects. A failure restarts the
/// whole retrieval. `page` is the number of objects per reply; vCenter can choose a smaller one.
pub(crate) async fn retrieve<T: Managed>(
    client: &Client,
    spec: &FilterSpec,
    page: Option<i32>,
) -> Result<Vec<RetrievedObject<T>>, Error> {
    let retries = client.retries(Protocol::Soap, CallKind::Read);
    retrieve_with(retries, client, spec, page).await
}

/// Like [`retrieve`], with the given retries.
pub(crate) async fn retrieve_with<T: Managed>(
    mut retries: Retries<'_>,
    client: &Client,
    spec: &FilterSpec,
    page: Option<i32>,
) -> Result<Vec<RetrievedObject<T>>, Error> {
    loop {
        let ticket = retries.ticket().await?;
        let mut all = Vec::new();
        match retrieve_once(client, spec, page, &ticket, &mut all).await {
            Ok(()) => return Ok(all),
            Err(error) => retries.after_failure(&ticket, error).await?,
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

enum ResultElement<T> {
    Token(String),
    Object(T),
    Other,
}

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
                    "token" => ResultElement::Token(reader.text()?.into_owned()),
                    "objects" => ResultElement::Object(RetrievedObject::decode(start, reader)?),
                    _ => {
                        reader.skip()?;
                        ResultElement::Other
                    }
                })
            })
        });
        match part.await? {
            None => return Ok(token),
            Some(ResultElement::Token(found)) => token = Some(found),
            Some(ResultElement::Object(found)) => all.push(found),
            Some(ResultElement::Other) => {}
        }
    }
}

/// An ended session can show as a missing property instead of a failed call.
fn session_lost<T>(found: &[RetrievedObject<T>]) -> Option<&Fault> {
    let missing = found.iter().flat_map(|found| &found.missing);
    missing.map(|missing| &missing.fault).find(|fault| fault.kind == FaultKind::NotAuthenticated)
}

/// An empty reply that comes sooner than this means that vCenter did not wait.
const MIN_WAIT: Duration = Duration::from_millis(500);

/// The pause after a number of early replies. It limits the calls to a vCenter that does not wait.
fn early_reply_pause(early_replies: u32) -> Duration {
    Duration::from_millis(25)
        .saturating_mul(1 << early_replies.min(12))
        .min(Duration::from_secs(10))
}

/// A property collector with one filter. It belongs to one session and ends with it.
#[derive(Debug)]
pub(crate) struct Collector {
    reference: MoRef,
    ticket: Ticket,
    /// The version of the last update set.
    version: String,
    /// The number of consecutive empty replies that came too soon.
    early_replies: u32,
    /// The views to destroy with the collector.
    views: Vec<MoRef>,
}

/// The changes that one wait returned.
#[derive(Debug)]
pub(crate) struct UpdateSet<T> {
    pub(crate) changes: Vec<Change<T>>,
    /// Whether vCenter has more changes ready.
    pub(crate) truncated: bool,
}

impl Collector {
    /// Creates a collector without a filter. Call [`Collector::create_filter`] next.
    pub(crate) async fn new(client: &Client, ticket: Ticket) -> Result<Self, Error> {
        let create = Method::change("CreatePropertyCollector");
        let root = client.content()?.property_collector;
        let reference: MoRef =
            client.wire().call_once(create, &root, &[], Some(&ticket.secret)).await?;
        Ok(Self { reference, ticket, version: String::new(), early_replies: 0, views: Vec::new() })
    }

    /// Creates the views, then the filter on `objects` and on the content of the views.
    ///
    /// # Errors
    /// After an error the collector is useless but still exists in vCenter; destroy it.
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
                    wire.call_once(method, &content.view_manager, args, Some(&cookie)).await?
                }
                View::List { objects } => {
                    wire.call_once(
                        method,
                        &content.view_manager,
                        &[("obj", objects)],
                        Some(&cookie),
                    )
                    .await?
                }
            };
            self.views.push(made.clone());
            specs.push(ObjectSpec::view(made, kind));
        }
        let spec = FilterSpec { properties, objects: specs, skip_missing: true };
        let args: &[(&str, &dyn Encode)] = &[("spec", &spec), ("partialUpdates", &false)];
        let _: MoRef = wire
            .call_once(Method::change("CreateFilter"), &self.reference, args, Some(&cookie))
            .await?;
        Ok(())
    }

    pub(crate) fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// Waits for changes, up to the client's limit. The first wait returns all objects at once.
    ///
    /// # Errors
    /// After an error the collector is useless, because it is unknown which changes vCenter considers
    /// delivered.
    pub(crate) async fn wait<T: Managed>(
        &mut self,
        client: &Client,
    ) -> Result<UpdateSet<T>, Error> {
        if self.early_replies > 0 {
            tokio::time::sleep(early_reply_pause(self.early_replies)).await;
        }
        let asked = Instant::now();
        let seconds = i32::try_from(client.limits().wait.as_secs().max(1)).unwrap_or(i32::MAX);
        let options = WaitOptions { max_wait_seconds: Some(seconds), max_object_updates: None };
        let args: &[(&str, &dyn Encode)] = &[("version", &self.version), ("options", &options)];
        let method = Method::wait("WaitForUpdatesEx");
        let mut reply =
            client.wire().stream(method, &self.reference, args, Some(&self.ticket.secret)).await?;
        let mut updates = UpdateSet { changes: Vec::new(), truncated: false };
        let mut version = None;
        // Without a `returnval` there are no changes.
        let has_updates = reply.next(|r| Ok(r.next_child()?.is_some())).await?;
        if has_updates {
            self.read_update_set(&mut reply, &mut updates, &mut version).await?;
        }
        reply.finish().await?;
        client.touch();
        match version {
            Some(version) => self.version = version,
            // Without a version, vCenter would send the same changes again.
            None if has_updates => {
                let source = XmlError::Missing { of: "an update set", field: "version" };
                let (address, method) = (client.address().to_owned(), method.name.to_owned());
                return Err(Error::Unreadable { address, method, source });
            }
            None => {}
        }
        let is_early = updates.changes.is_empty() && asked.elapsed() < MIN_WAIT;
        self.early_replies = if is_early { self.early_replies.saturating_add(1) } else { 0 };
        Ok(updates)
    }

    async fn read_update_set<T: Managed>(
        &self,
        reply: &mut ReplyStream,
        updates: &mut UpdateSet<T>,
        version: &mut Option<String>,
    ) -> Result<(), Error> {
        enum UpdateElement {
            Version(String),
            Truncated(bool),
            Filter,
            Other,
        }
        loop {
            let part = reply.next(|reader| {
                let Some(start) = reader.next_child()? else { return Ok(None) };
                Ok(Some(match start.name() {
                    "version" => UpdateElement::Version(reader.text()?.into_owned()),
                    "truncated" => UpdateElement::Truncated(bool::decode(&start, reader)?),
                    // The caller reads its children one by one.
                    "filterSet" => UpdateElement::Filter,
                    _ => {
                        reader.skip()?;
                        UpdateElement::Other
                    }
                }))
            });
            match part.await? {
                None => return Ok(()),
                Some(UpdateElement::Version(text)) => *version = Some(text),
                Some(UpdateElement::Truncated(truncated)) => updates.truncated = truncated,
                Some(UpdateElement::Other) => {}
                Some(UpdateElement::Filter) => read_filter(reply, updates).await?,
            }
        }
    }

    /// A handle to the first view, to modify it during a wait.
    pub(crate) fn list(&self) -> Option<ListView> {
        let view = self.views.first()?.clone();
        Some(ListView { view, ticket: self.ticket.clone() })
    }

    /// Destroys the collector and its views in vCenter. vCenter destroys the rest with the session.
    pub(crate) async fn destroy(self, client: &Client) {
        let secret = Some(&*self.ticket.secret);
        let method = Method::change("DestroyPropertyCollector");
        let mut outcome = client.wire().call_once::<()>(method, &self.reference, &[], secret).await;
        for view in &self.views {
            let destroyed = client
                .wire()
                .call_once::<()>(Method::change("DestroyView"), view, &[], secret)
                .await;
            outcome = outcome.and(destroyed);
        }
        if let Err(error) = outcome {
            tracing::debug!(vcenter = client.address(), error = %error.error_chain(), "cannot destroy a watch; vCenter destroys it with the session");
        }
    }
}

async fn read_filter<T: Managed>(
    reply: &mut ReplyStream,
    updates: &mut UpdateSet<T>,
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
            Some(Some(change)) => updates.changes.push(change),
        }
    }
}

/// A list view in vCenter.
#[derive(Debug, Clone)]
pub(crate) struct ListView {
    view: MoRef,
    ticket: Ticket,
}

impl ListView {
    /// Adds and removes objects. Returns the added objects that vCenter does not know. Wakes a
    /// running wait.
    pub(crate) async fn modify(
        &self,
        client: &Client,
        add: &[MoRef],
        remove: &[MoRef],
    ) -> Result<Vec<MoRef>, Error> {
        let args: &[(&str, &dyn Encode)] = &[("add", &add), ("remove", &remove)];
        client
            .wire()
            .call_once(
                Method::change("ModifyListView"),
                &self.view,
                args,
                Some(&self.ticket.secret),
            )
            .await
    }
}

/// A view to create in vCenter.
#[derive(Debug, Clone)]
pub(crate) enum View {
    /// All objects of some types below `root`. vCenter keeps the view up to date.
    Container {
        root: MoRef,
        types: Vec<&'static str>,
    },
    List {
        objects: Vec<MoRef>,
    },
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

/// A spec that finds objects by traversal from `root`.
pub(crate) fn walk(root: MoRef, steps: &[Traversal], properties: Vec<PropertySpec>) -> FilterSpec {
    FilterSpec { properties, objects: vec![ObjectSpec::below(root, steps)], skip_missing: true }
}
