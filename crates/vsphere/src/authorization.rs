//! Roles, permissions, and what a user may do.

use crate::client::Client;
use crate::collector::spec::{FilterSpec, ObjectSpec, PropertySpec};
use crate::collector::{managed, retrieve};
use crate::error::Error;
use crate::moref::MoRef;
use crate::wire::Method;
use crate::xml::codec::{Encode, data};

/// Objects asked about in one call. An administrator has some 400 privileges on each, 25 KiB of
/// text: a reply stays well below what is read in one piece.
const AT_ONCE: usize = 1_000;

data! {
    /// A role: a name for a set of privileges.
    pub struct AuthorizationRole {
        /// Its number.
        id: i32 = "roleId",
        /// Whether it came with vCenter and cannot be changed.
        system: bool = "system",
        /// Its name.
        name: String = "name",
        /// Its privileges, such as `Datastore.FileManagement`.
        privileges: Vec<String> = "privilege",
    }
}

data! {
    /// A role given to somebody on an object.
    pub struct EntityPermission {
        /// The object; where it is asked for by object, vCenter may leave it out.
        entity: Option<MoRef> = "entity",
        /// The user or group, as vCenter names it: `VSPHERE.LOCAL\vdo`.
        principal: String = "principal",
        /// Whether it is a group.
        group: bool = "group",
        /// The role.
        role: i32 = "roleId",
        /// Whether it holds for everything below.
        propagate: bool = "propagate",
    }
}

data! {
    /// What a user may do on an object, all roles and groups taken together.
    pub struct EffectivePrivileges {
        /// The object.
        entity: MoRef = "entity",
        /// The privileges.
        privileges: Vec<String> = "privileges",
    }
}

data! {
    /// Which of some privileges a user has on an object.
    pub struct PrivilegeCheck {
        /// The object.
        entity: MoRef = "entity",
        /// Each privilege.
        privileges: Vec<PrivilegeAnswer> = "privAvailability",
    }
}

data! {
    /// Whether a user has a privilege.
    pub struct PrivilegeAnswer {
        /// The privilege.
        privilege: String = "privId",
        /// Whether so.
        granted: bool = "isGranted",
    }
}

impl PrivilegeCheck {
    /// The privileges that are missing.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        self.privileges
            .iter()
            .filter(|answer| !answer.granted)
            .map(|answer| answer.privilege.as_str())
    }
}

managed! {
    /// The list of roles.
    struct Roles of AuthorizationManager {
        /// The list.
        LIST {
            /// The list.
            roles: Box<[AuthorizationRole]> = "roleList",
        }
    }
}

impl Client {
    /// All roles.
    pub async fn roles(&self) -> Result<Vec<AuthorizationRole>, Error> {
        let manager = self.content()?.authorization_manager;
        let spec = FilterSpec {
            properties: vec![PropertySpec::new(
                "AuthorizationManager",
                Roles::LIST.iter().copied(),
            )],
            objects: vec![ObjectSpec::just(manager)],
            missing_is_fine: false,
        };
        let found = retrieve::<Roles>(self, &spec, None).await?;
        let lists = found.into_iter().filter_map(|found| found.value?.roles);
        Ok(lists.flat_map(<[_]>::into_vec).collect())
    }

    /// The permissions set on an object; with `inherited` also those that reach it from above.
    pub async fn permissions(
        &self,
        entity: &MoRef,
        inherited: bool,
    ) -> Result<Vec<EntityPermission>, Error> {
        let manager = self.content()?.authorization_manager;
        let args: &[(&str, &dyn Encode)] = &[("entity", entity), ("inherited", &inherited)];
        self.call(Method::read("RetrieveEntityPermissions"), &manager, args).await
    }

    /// What a user may do on many objects, in one call for every thousand. The user is named as
    /// [`Client::user`] does.
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

    /// What the user of the session may do on many objects, in one call for every thousand.
    pub async fn own_privileges(
        &self,
        entities: &[MoRef],
    ) -> Result<Vec<EffectivePrivileges>, Error> {
        let user = self.user().await?;
        self.privileges_of(&user, entities).await
    }

    /// Which of `privileges` the user of the session has on many objects, in one call for every
    /// thousand.
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

    /// Makes a role; returns its number. Needs `Authorization.ModifyRoles`.
    pub async fn create_role(&self, name: &str, privileges: &[String]) -> Result<i32, Error> {
        let manager = self.content()?.authorization_manager;
        let args: &[(&str, &dyn Encode)] = &[("name", &name), ("privIds", &privileges)];
        self.call(Method::change("AddAuthorizationRole"), &manager, args).await
    }

    /// Gives a role this name and exactly these privileges. Needs `Authorization.ModifyRoles`.
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

    /// Sets permissions on an object; those of other principals stay. Needs
    /// `Authorization.ModifyPermissions` there.
    pub async fn set_permissions(
        &self,
        entity: &MoRef,
        permissions: &[EntityPermission],
    ) -> Result<(), Error> {
        let manager = self.content()?.authorization_manager;
        let args: &[(&str, &dyn Encode)] = &[("entity", entity), ("permission", &permissions)];
        self.call(Method::change("SetEntityPermissions"), &manager, args).await
    }

    /// Takes a principal's permission on an object away.
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
