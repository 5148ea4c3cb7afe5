//! Roles, permissions and effective privileges.

use crate::client::Client;
use crate::collector::spec::{FilterSpec, ObjectSpec, PropertySpec};
use crate::collector::{managed, retrieve};
use crate::error::Error;
use crate::moref::MoRef;
use crate::wire::Method;
use crate::xml::codec::{Encode, data};

/// The number of objects per call. An administrator has about 400 privileges on each, or 25 KiB of
/// text, so a reply stays well below [`Limits::text`](crate::Limits::text).
const AT_ONCE: usize = 1_000;

data! {
    /// A named set of privileges.
    pub struct AuthorizationRole {
        id: i32 = "roleId",
        /// Whether the role is built into vCenter and cannot be changed.
        system: bool = "system",
        name: String = "name",
        /// Such as `Datastore.FileManagement`.
        privileges: Vec<String> = "privilege",
    }
}

data! {
    /// A role assigned to a user or group on an object.
    pub struct EntityPermission {
        /// The object. vCenter may omit it in replies to queries by object.
        entity: Option<MoRef> = "entity",
        /// The user or group in vCenter's spelling: `VSPHERE.LOCAL\vdo`.
        principal: String = "principal",
        group: bool = "group",
        role: i32 = "roleId",
        /// Whether the permission propagates to child objects.
        propagate: bool = "propagate",
    }
}

data! {
    /// The privileges of a user on an object, from all roles and groups.
    pub struct EffectivePrivileges {
        entity: MoRef = "entity",
        privileges: Vec<String> = "privileges",
    }
}

data! {
    /// The answer to a privilege check on one object.
    pub struct PrivilegeCheck {
        entity: MoRef = "entity",
        privileges: Vec<PrivilegeAnswer> = "privAvailability",
    }
}

data! {
    /// Whether the user has one privilege.
    pub struct PrivilegeAnswer {
        privilege: String = "privId",
        granted: bool = "isGranted",
    }
}

impl PrivilegeCheck {
    /// The privileges that the user lacks.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        self.privileges
            .iter()
            .filter(|answer| !answer.granted)
            .map(|answer| answer.privilege.as_str())
    }
}

managed! {
    struct Roles of AuthorizationManager {
        LIST {
            roles: Box<[AuthorizationRole]> = "roleList",
        }
    }
}

impl Client {
    pub async fn roles(&self) -> Result<Vec<AuthorizationRole>, Error> {
        let manager = self.content()?.authorization_manager;
        let spec = FilterSpec {
            properties: vec![PropertySpec::new(
                "AuthorizationManager",
                Roles::LIST.iter().copied(),
            )],
            objects: vec![ObjectSpec::just(manager)],
            skip_missing: false,
        };
        let found = retrieve::<Roles>(self, &spec, None).await?;
        let lists = found.into_iter().filter_map(|found| found.value?.roles);
        Ok(lists.flat_map(<[_]>::into_vec).collect())
    }

    /// The permissions set on an object. With `inherited`, includes permissions that propagate to
    /// it.
    pub async fn permissions(
        &self,
        entity: &MoRef,
        inherited: bool,
    ) -> Result<Vec<EntityPermission>, Error> {
        let manager = self.content()?.authorization_manager;
        let args: &[(&str, &dyn Encode)] = &[("entity", entity), ("inherited", &inherited)];
        self.call(Method::read("RetrieveEntityPermissions"), &manager, args).await
    }

    /// The privileges of a user on many objects. Makes one call per 1,000 objects. `user` is in the
    /// spelling of [`Client::user`].
    pub async fn privileges_of(
        &self,
        user: &str,
        entities: &[MoRef],
    ) -> Result<Vec<EffectivePrivileges>, Error> {
        let manager = self.content()?.authorization_manager;
        let mut all = Vec::with_capacity(entities.len());
        for some in entities.chunks(AT_ONCE) {
            let args: &[(&str, &dyn Encode)] = &[("entities", &some), ("userName", &user)];
            let method = Method::read("FetchUserPrivilegeOnEntities");
            all.extend(self.call::<Vec<EffectivePrivileges>>(method, &manager, args).await?);
        }
        Ok(all)
    }

    /// The privileges of the session's user on many objects. Makes one call per 1,000 objects.
    pub async fn own_privileges(
        &self,
        entities: &[MoRef],
    ) -> Result<Vec<EffectivePrivileges>, Error> {
        let user = self.user().await?;
        self.privileges_of(&user, entities).await
    }

    /// Checks which of `privileges` the session's user has on many objects. Makes one call per
    /// 1,000 objects.
    pub async fn check_privileges(
        &self,
        entities: &[MoRef],
        privileges: &[String],
    ) -> Result<Vec<PrivilegeCheck>, Error> {
        let manager = self.content()?.authorization_manager;
        let user = self.user().await?;
        let mut all = Vec::with_capacity(entities.len());
        for some in entities.chunks(AT_ONCE) {
            let args: &[(&str, &dyn Encode)] =
                &[("entities", &some), ("userName", &user), ("privId", &privileges)];
            let method = Method::read("HasUserPrivilegeOnEntities");
            all.extend(self.call::<Vec<PrivilegeCheck>>(method, &manager, args).await?);
        }
        Ok(all)
    }

    /// Creates a role and returns its id. Needs `Authorization.ModifyRoles`.
    pub async fn create_role(&self, name: &str, privileges: &[String]) -> Result<i32, Error> {
        let manager = self.content()?.authorization_manager;
        let args: &[(&str, &dyn Encode)] = &[("name", &name), ("privIds", &privileges)];
        self.call(Method::change("AddAuthorizationRole"), &manager, args).await
    }

    /// Sets the name and the exact privileges of a role. Needs `Authorization.ModifyRoles`.
    pub async fn update_role(
        &self,
        role: i32,
        name: &str,
        privileges: &[String],
    ) -> Result<(), Error> {
        let manager = self.content()?.authorization_manager;
        let args: &[(&str, &dyn Encode)] =
            &[("roleId", &role), ("newName", &name), ("privIds", &privileges)];
        self.call(Method::change("UpdateAuthorizationRole"), &manager, args).await
    }

    /// Sets permissions on an object and keeps those of other principals. Needs
    /// `Authorization.ModifyPermissions` on the object.
    pub async fn set_permissions(
        &self,
        entity: &MoRef,
        permissions: &[EntityPermission],
    ) -> Result<(), Error> {
        let manager = self.content()?.authorization_manager;
        let args: &[(&str, &dyn Encode)] = &[("entity", entity), ("permission", &permissions)];
        self.call(Method::change("SetEntityPermissions"), &manager, args).await
    }

    /// Needs `Authorization.ModifyPermissions` on the object.
    pub async fn remove_permission(
        &self,
        entity: &MoRef,
        principal: &str,
        group: bool,
    ) -> Result<(), Error> {
        let manager = self.content()?.authorization_manager;
        let args: &[(&str, &dyn Encode)] =
            &[("entity", entity), ("user", &principal), ("isGroup", &group)];
        self.call(Method::change("RemoveEntityPermission"), &manager, args).await
    }
}
