package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// authorization replaces govmomi's AuthorizationManager: it evaluates the configured roles and permissions, with
// propagation and groups. rolesLock guards roles and permissions. Readers hold it while they decide, and never while they
// call other objects.
type authorization struct {
	*simulator.AuthorizationManager
	sim         *Sim
	rolesLock   sync.RWMutex
	permissions map[ref][]types.Permission
	known       map[string]bool // all existing privileges
	nextRole    int32
}

func newAuthorization(s *Sim) *authorization {
	base := s.reg().Get(*s.model.ServiceContent.AuthorizationManager).(*simulator.AuthorizationManager)
	a := &authorization{AuthorizationManager: base, sim: s, permissions: map[ref][]types.Permission{}, known: map[string]bool{}, nextRole: 1000}
	for _, id := range a.role("Admin").Privilege {
		a.known[id] = true
	}
	s.reg().Put(a)
	return a
}

func (a *authorization) role(name string) *types.AuthorizationRole {
	for i := range a.RoleList {
		if a.RoleList[i].Name == name {
			return &a.RoleList[i]
		}
	}
	return nil
}

// setRole creates a role, or gives an existing one these privileges.
func (a *authorization) setRole(r Role) error {
	if r.Name == "" {
		return fmt.Errorf("role: name is empty")
	}
	a.rolesLock.Lock()
	defer a.rolesLock.Unlock()
	privileges, bad := a.complete(r.Privileges)
	if bad != "" {
		return fmt.Errorf("role %q: no privilege is named %q", r.Name, bad)
	}
	if had := a.role(r.Name); had != nil {
		had.Privilege = privileges
	} else {
		a.addRole(r.Name, privileges)
	}
	a.sim.journal.reauthorize()
	return nil
}

func (a *authorization) addRole(name string, privileges []string) int32 {
	a.nextRole++
	a.RoleList = append(slices.Clone(a.RoleList), types.AuthorizationRole{RoleId: a.nextRole, Name: name, Privilege: privileges,
		Info: &types.Description{Label: name, Summary: name}})
	return a.nextRole
}

// complete adds the privileges of every role, and returns the first one that does not exist.
func (a *authorization) complete(ids []string) (all []string, bad string) {
	all = []string{"System.Anonymous", "System.Read", "System.View"}
	for _, id := range ids {
		if !a.known[id] {
			return nil, id
		}
		if !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all, ""
}

// grant sets a permission, and replaces the one of its principal on that entity.
func (a *authorization) grant(p Permission) error {
	e, err := a.sim.find(p.Entity)
	if err != nil {
		return fmt.Errorf("entity: %w", err)
	}
	a.rolesLock.Lock()
	defer a.rolesLock.Unlock()
	role := a.role(p.Role)
	if role == nil {
		return fmt.Errorf("role: none is named %q", p.Role)
	}
	if p.Principal == "" {
		return fmt.Errorf("principal is empty")
	}
	a.merge(e.Reference(), types.Permission{Principal: p.Principal, Group: p.Group, RoleId: role.RoleId,
		Propagate: p.Propagate == nil || *p.Propagate})
	return nil
}

func (a *authorization) merge(e ref, p types.Permission) {
	p.Entity = &e
	a.revokeLocked(e, p.Principal, p.Group)
	a.permissions[e] = append(a.permissions[e], p)
	a.sim.journal.reauthorize()
}

func (a *authorization) revokeLocked(e ref, principal string, group bool) bool {
	kept := slices.DeleteFunc(slices.Clone(a.permissions[e]), func(p types.Permission) bool {
		return p.Group == group && sameAccount(p.Principal) == sameAccount(principal)
	})
	had := len(kept) != len(a.permissions[e])
	a.permissions[e] = kept
	a.sim.journal.reauthorize()
	return had
}

// revoke removes the permission of a principal, user or group, on an entity.
func (a *authorization) revoke(path, principal string) error {
	e, err := a.sim.find(path)
	if err != nil {
		return err
	}
	a.rolesLock.Lock()
	defer a.rolesLock.Unlock()
	user, group := a.revokeLocked(e.Reference(), principal, false), a.revokeLocked(e.Reference(), principal, true)
	if !user && !group {
		return fmt.Errorf("%q has no permission on %s", principal, path)
	}
	return nil
}

// list returns all permissions in the format of the inventory.
func (a *authorization) list() (roles []Role, permissions []Permission) {
	a.rolesLock.RLock()
	defer a.rolesLock.RUnlock()
	names := map[int32]string{}
	for _, r := range a.RoleList {
		names[r.RoleId] = r.Name
		if !r.System {
			roles = append(roles, Role{Name: r.Name, Privileges: r.Privilege})
		}
	}
	for e, set := range a.permissions {
		for _, p := range set {
			permissions = append(permissions, Permission{Principal: p.Principal, Group: p.Group, Role: names[p.RoleId],
				Entity: a.sim.path(e), Propagate: types.NewBool(p.Propagate)})
		}
	}
	slices.SortFunc(permissions, func(x, y Permission) int {
		return compare(x.Entity+"\x00"+x.Principal, y.Entity+"\x00"+y.Principal)
	})
	return roles, permissions
}

// privileges are those of a principal on an entity; nil is none.
type privileges map[string]bool

// access evaluates the privileges of one user and caches the results. It lives for one request or evaluation, because
// permissions can change between two.
type access struct {
	auth   *authorization
	user   string
	groups map[string]bool
	above  map[ref]privileges
}

// accessOf is nil if there are no users, or for an internal call: everything is allowed.
func (a *authorization) accessOf(user string) *access {
	if user == "" || user == internalUser || !a.sim.accounts.restricted() {
		return nil
	}
	return &access{auth: a, user: sameAccount(user), groups: a.sim.accounts.groups(user), above: map[ref]privileges{}}
}

// on returns the privileges of the user on an entity: the nearest object upwards that names the user, or else one of its
// groups, decides. A VM inherits from its folder and its resource pool.
func (c *access) on(e ref) privileges {
	if c == nil {
		return nil
	}
	c.auth.rolesLock.RLock()
	defer c.auth.rolesLock.RUnlock()
	obj, ok := c.auth.sim.reg().Get(e).(mo.Entity)
	if !ok {
		obj = c.auth.sim.reg().Get(c.auth.sim.root()).(mo.Entity) // managers: checked on the root folder
		e = obj.Reference()
	}
	if own, named := c.named(e, false); named {
		return own
	}
	return c.fromAbove(obj)
}

func (c *access) fromAbove(obj mo.Entity) privileges {
	var got privileges
	if p := obj.Entity().Parent; p != nil {
		got = c.inherited(*p)
	}
	if vm, ok := obj.(*simulator.VirtualMachine); ok && vm.ResourcePool != nil {
		more := c.inherited(*vm.ResourcePool)
		if len(got) == 0 {
			return more
		}
		if len(more) > 0 {
			sum := privileges{}
			for _, set := range []privileges{got, more} {
				for id := range set {
					sum[id] = true
				}
			}
			return sum
		}
	}
	return got
}

func (c *access) inherited(e ref) privileges {
	if known, ok := c.above[e]; ok {
		return known
	}
	got, named := c.named(e, true)
	if !named {
		if obj, ok := c.auth.sim.reg().Get(e).(mo.Entity); ok && obj.Entity().Parent != nil {
			got = c.inherited(*obj.Entity().Parent)
		}
	}
	c.above[e] = got
	return got
}

// named returns the privileges from an entity's own permissions; one for the user wins over those of groups.
func (c *access) named(e ref, propagated bool) (privileges, bool) {
	for _, group := range []bool{false, true} {
		var got privileges
		for _, p := range c.auth.permissions[e] {
			mine := sameAccount(p.Principal) == c.user
			if group {
				mine = c.groups[sameAccount(p.Principal)]
			}
			if p.Group != group || !mine || (propagated && !p.Propagate) {
				continue
			}
			if got == nil {
				got = privileges{}
			}
			for _, r := range c.auth.RoleList {
				if r.RoleId == p.RoleId {
					for _, id := range r.Privilege {
						got[id] = true
					}
				}
			}
		}
		if got != nil {
			return got, true
		}
	}
	return nil, false
}

// may says whether the user has a privilege on an entity.
func (c *access) may(e ref, privilege string) bool { return c == nil || c.on(e)[privilege] }

// sees says whether an object exists for the user. Objects that are not inventory entities are always visible.
func (c *access) sees(e ref) bool {
	if c == nil {
		return true
	}
	if _, entity := c.auth.sim.reg().Get(e).(mo.Entity); !entity {
		return true
	}
	return c.on(e)["System.View"]
}

func (a *authorization) userOf(ctx *simulator.Context, session string) string {
	return a.sim.sessionUser(session)
}

func (a *authorization) granted(user string, entity ref, id string) bool {
	return a.accessOf(user).may(entity, id)
}

func (a *authorization) answer(user string, entities []ref, ids []string) (out []types.EntityPrivilege) {
	c := a.accessOf(user)
	for _, e := range entities {
		ep := types.EntityPrivilege{Entity: e}
		for _, id := range ids {
			ep.PrivAvailability = append(ep.PrivAvailability, types.PrivilegeAvailability{PrivId: id, IsGranted: c.may(e, id)})
		}
		out = append(out, ep)
	}
	return out
}

func (a *authorization) HasPrivilegeOnEntities(ctx *simulator.Context, r *types.HasPrivilegeOnEntities) soap.HasFault {
	return &methods.HasPrivilegeOnEntitiesBody{Res: &types.HasPrivilegeOnEntitiesResponse{
		Returnval: a.answer(a.userOf(ctx, r.SessionId), r.Entity, r.PrivId)}}
}

func (a *authorization) HasPrivilegeOnEntity(ctx *simulator.Context, r *types.HasPrivilegeOnEntity) soap.HasFault {
	out := make([]bool, len(r.PrivId))
	for i, id := range r.PrivId {
		out[i] = a.granted(a.userOf(ctx, r.SessionId), r.Entity, id)
	}
	return &methods.HasPrivilegeOnEntityBody{Res: &types.HasPrivilegeOnEntityResponse{Returnval: out}}
}

func (a *authorization) HasUserPrivilegeOnEntities(_ *simulator.Context, r *types.HasUserPrivilegeOnEntities) soap.HasFault {
	return &methods.HasUserPrivilegeOnEntitiesBody{Res: &types.HasUserPrivilegeOnEntitiesResponse{
		Returnval: a.answer(r.UserName, r.Entities, r.PrivId)}}
}

func (a *authorization) FetchUserPrivilegeOnEntities(_ *simulator.Context, r *types.FetchUserPrivilegeOnEntities) soap.HasFault {
	res := &types.FetchUserPrivilegeOnEntitiesResponse{}
	c := a.accessOf(r.UserName)
	for _, e := range r.Entities {
		u := types.UserPrivilegeResult{Entity: e}
		if c == nil {
			u.Privileges = slices.Clone(a.role("Admin").Privilege)
		}
		for id := range c.on(e) {
			u.Privileges = append(u.Privileges, id)
		}
		slices.Sort(u.Privileges)
		res.Returnval = append(res.Returnval, u)
	}
	return &methods.FetchUserPrivilegeOnEntitiesBody{Res: res}
}

// displayName is the form of an account in a session of vCenter: DOMAIN\user.
func displayName(account string) string {
	if user, domain, ok := strings.Cut(account, "@"); ok {
		return strings.ToUpper(domain) + `\` + user
	}
	return account
}
