package main

import (
	"slices"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// The methods of AuthorizationManager that read and change roles and permissions. govmomi returns role id 0 for every new
// role, and replaces all permissions of an entity where vCenter merges.

func (a *authorization) AddAuthorizationRole(r *types.AddAuthorizationRole) soap.HasFault {
	a.rolesLock.Lock()
	defer a.rolesLock.Unlock()
	body := &methods.AddAuthorizationRoleBody{}
	if a.role(r.Name) != nil {
		body.Fault_ = simulator.Fault("", &types.AlreadyExists{Name: r.Name})
		return body
	}
	privileges, bad := a.complete(r.PrivIds)
	if bad != "" {
		body.Fault_ = simulator.Fault("", &types.InvalidArgument{InvalidProperty: "privIds"})
		return body
	}
	body.Res = &types.AddAuthorizationRoleResponse{Returnval: a.addRole(r.Name, privileges)}
	return body
}

func (a *authorization) UpdateAuthorizationRole(r *types.UpdateAuthorizationRole) soap.HasFault {
	a.rolesLock.Lock()
	defer a.rolesLock.Unlock()
	body := &methods.UpdateAuthorizationRoleBody{}
	if had := a.role(r.NewName); had != nil && had.RoleId != r.RoleId {
		body.Fault_ = simulator.Fault("", &types.AlreadyExists{Name: r.NewName})
		return body
	}
	privileges, bad := a.complete(r.PrivIds)
	if bad != "" {
		body.Fault_ = simulator.Fault("", &types.InvalidArgument{InvalidProperty: "privIds"})
		return body
	}
	at := slices.IndexFunc(a.RoleList, func(x types.AuthorizationRole) bool { return x.RoleId == r.RoleId })
	if at < 0 || a.RoleList[at].System {
		body.Fault_ = simulator.Fault("", &types.NotFound{})
		return body
	}
	list := slices.Clone(a.RoleList)
	list[at].Name, list[at].Privilege = r.NewName, privileges
	a.RoleList = list
	a.sim.journal.reauthorize()
	body.Res = &types.UpdateAuthorizationRoleResponse{}
	return body
}

func (a *authorization) RemoveAuthorizationRole(r *types.RemoveAuthorizationRole) soap.HasFault {
	a.rolesLock.Lock()
	defer a.rolesLock.Unlock()
	body := &methods.RemoveAuthorizationRoleBody{}
	at := slices.IndexFunc(a.RoleList, func(x types.AuthorizationRole) bool { return x.RoleId == r.RoleId })
	if at < 0 || a.RoleList[at].System {
		body.Fault_ = simulator.Fault("", &types.NotFound{})
		return body
	}
	for e, set := range a.permissions {
		used := slices.ContainsFunc(set, func(p types.Permission) bool { return p.RoleId == r.RoleId })
		if used && r.FailIfUsed {
			body.Fault_ = simulator.Fault("", &types.RemoveFailed{})
			return body
		}
		a.permissions[e] = slices.DeleteFunc(slices.Clone(set), func(p types.Permission) bool { return p.RoleId == r.RoleId })
	}
	a.RoleList = slices.Delete(slices.Clone(a.RoleList), at, at+1)
	a.sim.journal.reauthorize()
	body.Res = &types.RemoveAuthorizationRoleResponse{}
	return body
}

func (a *authorization) SetEntityPermissions(r *types.SetEntityPermissions) soap.HasFault {
	a.rolesLock.Lock()
	defer a.rolesLock.Unlock()
	body := &methods.SetEntityPermissionsBody{}
	if _, ok := a.sim.reg().Get(r.Entity).(mo.Entity); !ok {
		body.Fault_ = simulator.Fault("", &types.ManagedObjectNotFound{Obj: r.Entity})
		return body
	}
	for _, p := range r.Permission {
		if !slices.ContainsFunc(a.RoleList, func(x types.AuthorizationRole) bool { return x.RoleId == p.RoleId }) {
			body.Fault_ = simulator.Fault("", &types.NotFound{})
			return body
		}
	}
	for _, p := range r.Permission {
		a.merge(r.Entity, p)
	}
	body.Res = &types.SetEntityPermissionsResponse{}
	return body
}

func (a *authorization) ResetEntityPermissions(r *types.ResetEntityPermissions) soap.HasFault {
	a.rolesLock.Lock()
	defer a.rolesLock.Unlock()
	a.permissions[r.Entity] = nil
	for _, p := range r.Permission {
		a.merge(r.Entity, p)
	}
	a.sim.journal.reauthorize()
	return &methods.ResetEntityPermissionsBody{Res: &types.ResetEntityPermissionsResponse{}}
}

func (a *authorization) RemoveEntityPermission(r *types.RemoveEntityPermission) soap.HasFault {
	a.rolesLock.Lock()
	defer a.rolesLock.Unlock()
	body := &methods.RemoveEntityPermissionBody{}
	if !a.revokeLocked(r.Entity, r.User, r.IsGroup) {
		body.Fault_ = simulator.Fault("", &types.NotFound{})
		return body
	}
	body.Res = &types.RemoveEntityPermissionResponse{}
	return body
}

func (a *authorization) RetrieveEntityPermissions(_ *simulator.Context, r *types.RetrieveEntityPermissions) soap.HasFault {
	a.rolesLock.RLock()
	defer a.rolesLock.RUnlock()
	found := slices.Clone(a.permissions[r.Entity])
	for e, ok := a.sim.reg().Get(r.Entity).(mo.Entity); r.Inherited && ok && e.Entity().Parent != nil; {
		up := *e.Entity().Parent
		for _, p := range a.permissions[up] {
			if p.Propagate {
				found = append(found, p)
			}
		}
		e, ok = a.sim.reg().Get(up).(mo.Entity)
	}
	return &methods.RetrieveEntityPermissionsBody{Res: &types.RetrieveEntityPermissionsResponse{Returnval: found}}
}

func (a *authorization) RetrieveAllPermissions(*types.RetrieveAllPermissions) soap.HasFault {
	return &methods.RetrieveAllPermissionsBody{Res: &types.RetrieveAllPermissionsResponse{
		Returnval: a.permissionsWhere(func(types.Permission) bool { return true })}}
}

func (a *authorization) RetrieveRolePermissions(r *types.RetrieveRolePermissions) soap.HasFault {
	return &methods.RetrieveRolePermissionsBody{Res: &types.RetrieveRolePermissionsResponse{
		Returnval: a.permissionsWhere(func(p types.Permission) bool { return p.RoleId == r.RoleId })}}
}

func (a *authorization) permissionsWhere(want func(types.Permission) bool) (found []types.Permission) {
	a.rolesLock.RLock()
	defer a.rolesLock.RUnlock()
	for _, set := range a.permissions {
		for _, p := range set {
			if want(p) {
				found = append(found, p)
			}
		}
	}
	return found
}
