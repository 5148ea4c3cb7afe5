package main

import (
	"encoding/json"
	"testing"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

func TestAPrivilegeIsReportedAndEnforced(t *testing.T) {
	p := launch(t, world())
	c, ctx := p.client(op), deadline(t)
	vm := object.NewVirtualMachine(c.Client, p.moref("node-1"))

	_, err := vm.PowerOff(ctx)
	wantFault(t, err, "NoPermission")
	_, err = vm.Reconfigure(ctx, types.VirtualMachineConfigSpec{ExtraConfig: []types.BaseOptionValue{&types.OptionValue{Key: "a", Value: "b"}}})
	wantFault(t, err, "NoPermission")
	_, err = vm.Destroy(ctx)
	wantFault(t, err, "NoPermission")

	has := func(privilege string) bool {
		t.Helper()
		session, err := c.SessionManager.UserSession(ctx)
		must(t, err)
		res, err := methods.HasPrivilegeOnEntities(ctx, c, &types.HasPrivilegeOnEntities{This: *c.ServiceContent.AuthorizationManager,
			Entity: []ref{vm.Reference()}, SessionId: session.Key, PrivId: []string{privilege}})
		must(t, err)
		return res.Returnval[0].PrivAvailability[0].IsGranted
	}
	if has("VirtualMachine.Interact.PowerOff") || !has("VirtualMachine.Interact.PowerOn") {
		t.Fatal("the answer is not what the role says")
	}
	p.lever("POST", "/roles", record{"name": "k8s", "privileges": list{"VirtualMachine.Interact.PowerOff", "VirtualMachine.Config.AdvancedConfig"}})
	if !has("VirtualMachine.Interact.PowerOff") || has("VirtualMachine.Interact.PowerOn") {
		t.Fatal("the answer is not what the role says now")
	}
	task, err := vm.PowerOff(ctx)
	must(t, err)
	must(t, task.Wait(ctx))
	task, err = vm.Reconfigure(ctx, types.VirtualMachineConfigSpec{ExtraConfig: []types.BaseOptionValue{&types.OptionValue{Key: "a", Value: "b"}}})
	must(t, err)
	must(t, task.Wait(ctx))
}

func TestTheNearestPermissionDecidesAndAUserBeatsAGroup(t *testing.T) {
	p := launch(t, world())
	c, ctx := p.client(op), deadline(t)
	node := object.NewVirtualMachine(c.Client, p.moref("node-1"))
	off := func() error { _, err := node.PowerOff(ctx); return err }

	p.lever("POST", "/permissions", record{"principal": "operators", "group": true, "role": "Admin", "entity": "/DC0/vm"})
	wantFault(t, off(), "NoPermission") // the user's own role on the folder is nearer
	p.lever("POST", "/permissions", record{"principal": "operators", "group": true, "role": "Admin", "entity": "/DC0/vm/k8s"})
	wantFault(t, off(), "NoPermission") // and on the same folder it beats the group
	p.lever("POST", "/permissions", record{"principal": "operators", "group": true, "role": "Admin", "entity": "/DC0/vm/k8s/node-1"})
	must(t, off())
	p.lever("POST", "/permissions", record{"principal": op, "role": "NoAccess", "entity": "/DC0/vm/k8s/node-1"})
	wantFault(t, off(), "NoPermission")
	other := object.NewVirtualMachine(c.Client, p.moref("other"))
	_, err := other.PowerOn(ctx) // from the group, further up
	must(t, err)
	p.lever("POST", "/permissions", record{"principal": "operators", "group": true, "role": "Admin", "entity": "/DC0/vm", "propagate": false})
	_, err = other.PowerOff(ctx)
	wantFault(t, err, "NoPermission")
	p.lever("POST", "/permissions", record{"principal": "operators", "group": true, "role": "Admin", "entity": "/DC0/host"})
	_, err = other.PowerOff(ctx) // a VM inherits from its folder and its resource pool
	must(t, err)
}

func TestAnUnseenVMIsNoPermissionAndADestroyedOneIsNotFound(t *testing.T) {
	p := launch(t, world())
	c, ctx := p.client(op), deadline(t)
	res, err := methods.RetrieveProperties(ctx, c, &types.RetrieveProperties{This: c.ServiceContent.PropertyCollector, SpecSet: []types.PropertyFilterSpec{{
		ObjectSet: []types.ObjectSpec{{Obj: p.moref("other")}, {Obj: p.moref("node-1")}}, PropSet: []types.PropertySpec{{Type: "VirtualMachine", PathSet: []string{"name"}}}}}})
	must(t, err)
	for _, o := range res.Returnval {
		switch {
		case o.Obj == p.moref("node-1") && len(o.PropSet) == 1:
		case o.Obj == p.moref("other") && len(o.PropSet) == 0 && len(o.MissingSet) == 1:
			if f, ok := o.MissingSet[0].Fault.Fault.(*types.NoPermission); !ok || f.PrivilegeId != "System.View" {
				t.Fatalf("want NoPermission, got %T", o.MissingSet[0].Fault.Fault)
			}
		default:
			t.Fatalf("unexpected answer %+v", o)
		}
	}
	if len(res.Returnval) != 2 {
		t.Fatalf("two objects were asked for: %+v", res.Returnval)
	}
	var all []mo.VirtualMachine
	w := p.watch(c, c.ServiceContent.RootFolder, "VirtualMachine", "name")
	if len(w.objects) != 2 || w.named("other") != nil {
		t.Fatalf("the view shows what must not be seen: %v, %v", w.objects, all)
	}
	found, err := methods.FindByUuid(ctx, c, &types.FindByUuid{This: *c.ServiceContent.SearchIndex, Uuid: p.describe("other").UUID, VmSearch: true})
	must(t, err)
	if found.Returnval != nil {
		t.Fatal("the search shows what must not be seen")
	}
	gone := p.moref("node-2")
	p.lever("DELETE", patchOf("/DC0/vm/k8s/node-2"), nil)
	var read mo.VirtualMachine
	wantFault(t, object.NewVirtualMachine(c.Client, gone).Properties(ctx, gone, []string{"name"}, &read), "ManagedObjectNotFound")
}

func TestALostPermissionLeavesAWaitingFilterAndComesBack(t *testing.T) {
	p := launch(t, world())
	c := p.client(op)
	w := p.watch(c, c.ServiceContent.RootFolder, "VirtualMachine", "name", "runtime.powerState")
	p.lever("POST", "/permissions", record{"principal": op, "role": "NoAccess", "entity": "/DC0/vm/k8s/node-1"})
	w.until("the leave of one", func() bool { return len(w.objects) == 1 && w.named("node-2") != nil })
	p.lever("DELETE", "/permissions?entity=/DC0/vm/k8s/node-1&principal="+op, nil)
	w.until("its return", func() bool { return len(w.objects) == 2 && w.named("node-1")["runtime.powerState"] != nil })
	p.lever("DELETE", "/permissions?entity=/DC0/vm/k8s&principal="+op, nil)
	w.until("the leave of all", func() bool { return len(w.objects) == 0 })
	p.lever("POST", "/permissions", record{"principal": op, "role": "ReadOnly", "entity": "/DC0/host/C0"})
	w.until("what the cluster's pools give", func() bool { return len(w.objects) == 3 })
	p.lever("POST", "/permissions", record{"principal": op, "role": "View", "entity": "/DC0/host/C0"})
	before := len(w.updates)
	w.until("properties that may no longer be read", func() bool {
		for _, u := range w.updates[before:] {
			if len(u.MissingSet) == 1 && u.MissingSet[0].Path == "runtime.powerState" {
				return true
			}
		}
		return false
	})
}

func TestWithoutUsersEveryoneHasAllPrivileges(t *testing.T) {
	p := launch(t, world(func(w record) { delete(w, "users"); delete(w, "permissions") }))
	c, err := p.login("anyone", "at all")
	must(t, err)
	ctx := deadline(t)
	task, err := p.vm(c, "/DC0/vm/k8s/node-1").PowerOff(ctx)
	must(t, err)
	must(t, task.Wait(ctx))
}

func TestUsersWithoutPermissionsAreAdministrators(t *testing.T) {
	p := launch(t, world(func(w record) { delete(w, "permissions") }))
	c := p.client(op)
	_, err := p.vm(c, "/DC0/vm/k8s/node-1").PowerOff(deadline(t))
	must(t, err)
}

func TestAnAccountLocksAfterWrongPasswords(t *testing.T) {
	p := launch(t, world(func(w record) { w["users"].(list)[1].(record)["lockAfter"] = 2 }))
	for range 2 {
		_, err := p.login(op, "wrong")
		wantFault(t, err, "InvalidLogin")
	}
	_, err := p.login(op, op+"-password")
	wantFault(t, err, "InvalidLogin")
	var users []struct {
		Name   string
		Failed int
		Locked bool
	}
	must(t, json.Unmarshal(p.lever("GET", "/users", nil), &users))
	for _, u := range users {
		if u.Name == op && (u.Failed != 2 || !u.Locked) {
			t.Fatalf("want 2 failed and locked: %+v", u)
		}
	}
	p.lever("POST", "/users", record{"name": op, "password": "new"})
	_, err = p.login(op, "new")
	must(t, err)
	p.client()
}

func TestRolesAndPermissionsAreManagedOverSOAP(t *testing.T) {
	p := launch(t, world())
	c, ctx := p.client(), deadline(t)
	m := object.NewAuthorizationManager(c.Client)
	id, err := m.AddRole(ctx, "made", []string{"Cns.Searchable"})
	must(t, err)
	if id < 1 {
		t.Fatalf("role id %d", id)
	}
	_, err = m.AddRole(ctx, "made", nil)
	wantFault(t, err, "AlreadyExists")
	_, err = m.AddRole(ctx, "bad", []string{"No.Such"})
	wantFault(t, err, "InvalidArgument")
	vm := p.moref("other")
	must(t, m.SetEntityPermissions(ctx, vm, []types.Permission{{Principal: op, RoleId: id, Propagate: true}}))
	must(t, m.SetEntityPermissions(ctx, vm, []types.Permission{{Principal: "operators", Group: true, RoleId: id, Propagate: true}}))
	set, err := m.RetrieveEntityPermissions(ctx, vm, false)
	must(t, err)
	if len(set) != 2 {
		t.Fatalf("permissions of different principals are merged: %+v", set)
	}
	must(t, m.RemoveEntityPermission(ctx, vm, op, false))
	oc := p.client(op)
	_, err = object.NewAuthorizationManager(oc.Client).AddRole(ctx, "mine", nil)
	wantFault(t, err, "NoPermission")
	err = object.NewAuthorizationManager(oc.Client).SetEntityPermissions(ctx, p.moref("node-1"), []types.Permission{{Principal: op, RoleId: -1}})
	wantFault(t, err, "NoPermission")
}

func TestOnlyPrivilegedUsersListAndEndSessions(t *testing.T) {
	p := launch(t, world())
	c, boss, ctx := p.client(op), p.client(), deadline(t)
	read := func(c *govmomi.Client) types.ObjectContent {
		t.Helper()
		res, err := methods.RetrieveProperties(ctx, c, &types.RetrieveProperties{This: c.ServiceContent.PropertyCollector, SpecSet: []types.PropertyFilterSpec{{
			ObjectSet: []types.ObjectSpec{{Obj: *c.ServiceContent.SessionManager}}, PropSet: []types.PropertySpec{{Type: "SessionManager", PathSet: []string{"sessionList", "currentSession"}}}}}})
		must(t, err)
		return res.Returnval[0]
	}
	if mine := read(c); len(mine.PropSet) != 1 || len(mine.MissingSet) != 1 || mine.MissingSet[0].Path != "sessionList" {
		t.Fatalf("%+v", mine)
	}
	all := read(boss)
	if len(all.MissingSet) != 0 {
		t.Fatalf("%+v", all)
	}
	session, err := boss.SessionManager.UserSession(ctx)
	must(t, err)
	if session.UserName != `VSPHERE.LOCAL\administrator` {
		t.Fatalf("a session spells its user %q", session.UserName)
	}
	_, err = methods.TerminateSession(ctx, c, &types.TerminateSession{This: *c.ServiceContent.SessionManager, SessionId: []string{session.Key}})
	wantFault(t, err, "NoPermission")
	theirs, err := c.SessionManager.UserSession(ctx)
	must(t, err)
	_, err = methods.TerminateSession(ctx, boss, &types.TerminateSession{This: *c.ServiceContent.SessionManager, SessionId: []string{theirs.Key}})
	must(t, err)
	_, err = methods.GetCurrentTime(ctx, c)
	wantFault(t, err, "NotAuthenticated")
}

func TestAReconfigurationNeedsThePrivilegesForItsChanges(t *testing.T) {
	p := launch(t, world())
	c, ctx := p.client(op), deadline(t)
	vm := object.NewVirtualMachine(c.Client, p.moref("node-1"))
	for _, step := range []struct {
		privilege string
		spec      types.VirtualMachineConfigSpec
	}{
		{"VirtualMachine.Config.AdvancedConfig", types.VirtualMachineConfigSpec{ExtraConfig: []types.BaseOptionValue{&types.OptionValue{Key: "disk.EnableUUID", Value: "TRUE"}}}},
		{"VirtualMachine.Config.Settings", types.VirtualMachineConfigSpec{Flags: &types.VirtualMachineFlagInfo{DiskUuidEnabled: types.NewBool(true)}}},
		{"VirtualMachine.Config.CPUCount", types.VirtualMachineConfigSpec{NumCPUs: 2}},
		{"VirtualMachine.Config.Memory", types.VirtualMachineConfigSpec{MemoryMB: 2048}},
		{"VirtualMachine.Config.Annotation", types.VirtualMachineConfigSpec{Annotation: "x"}},
		{"VirtualMachine.Config.AddRemoveDevice", types.VirtualMachineConfigSpec{DeviceChange: []types.BaseVirtualDeviceConfigSpec{
			&types.VirtualDeviceConfigSpec{Operation: types.VirtualDeviceConfigSpecOperationAdd, Device: newController("pvscsi", 1)}}}},
	} {
		p.lever("POST", "/roles", record{"name": "k8s", "privileges": list{}})
		_, err := vm.Reconfigure(ctx, step.spec)
		wantFault(t, err, "NoPermission")
		p.lever("POST", "/roles", record{"name": "k8s", "privileges": list{step.privilege}})
		task, err := vm.Reconfigure(ctx, step.spec)
		must(t, err)
		if err := task.Wait(ctx); err != nil {
			t.Fatalf("%s: %s", step.privilege, err)
		}
	}
	_, err := vm.CreateSnapshot(ctx, "a", "", false, false)
	wantFault(t, err, "NoPermission")
	_, err = vm.Clone(ctx, object.NewFolder(c.Client, ref{Type: "Folder", Value: "x"}), "b", types.VirtualMachineCloneSpec{})
	wantFault(t, err, "NoPermission")
	_, err = vm.PromoteDisks(ctx, true, nil)
	wantFault(t, err, "NoPermission")
}
