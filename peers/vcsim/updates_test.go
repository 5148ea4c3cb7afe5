package main

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

func patchOf(path string) string { return "/vms?path=" + url.QueryEscape(path) }

func TestEveryPatchOfAVMIsReportedAsAnUpdate(t *testing.T) {
	p := launch(t, world())
	c := p.client()
	w := p.watch(c, c.ServiceContent.RootFolder, "VirtualMachine", "name", "parent", "config.uuid", "config.instanceUuid", "config.flags.diskUuidEnabled",
		"config.extraConfig", "config.version", "runtime.powerState", "runtime.host", "summary.runtime.host", "guest.hostName", "guest.ipAddress", "guest.net",
		"guest.toolsRunningStatus", "snapshot", "config.hardware.numCPU", "summary.config.memorySizeMB", "resourcePool", "config.template", "datastore")
	if len(w.objects) != 3 {
		t.Fatalf("three VMs are to be seen, not %d", len(w.objects))
	}
	node := w.named("node-1")
	if node["guest.ipAddress"] != "10.0.0.1" || node["guest.hostName"] != "node-1" {
		t.Fatalf("the guest is not reported: %v", node)
	}
	const at = "/DC0/vm/k8s/node-1"
	for _, step := range []struct {
		patch    record
		property string
		wanted   func(any) bool
	}{
		{record{"uuid": "11111111-2222-3333-4444-555555555555"}, "config.uuid", is("11111111-2222-3333-4444-555555555555")},
		{record{"instanceUuid": "21111111-2222-3333-4444-555555555555"}, "config.instanceUuid", is("21111111-2222-3333-4444-555555555555")},
		{record{"diskUuid": false}, "config.flags.diskUuidEnabled", is(false)},
		{record{"extraConfig": record{"disk.EnableUUID": "TRUE"}}, "config.flags.diskUuidEnabled", is(true)},
		{record{"extraConfig": record{"a": "b"}}, "config.extraConfig", some},
		{record{"version": "vmx-21"}, "config.version", is("vmx-21")},
		{record{"host": "esx-2"}, "runtime.host", some},
		{record{"hostName": "renamed.example"}, "guest.hostName", is("renamed.example")},
		{record{"nics": list{record{"addresses": list{"10.9.9.9/24"}}}}, "guest.ipAddress", is("10.9.9.9")},
		{record{"tools": "notRunning"}, "guest.ipAddress", is(nil)},
		{record{"tools": "running"}, "guest.ipAddress", is("10.9.9.9")},
		{record{"power": "off"}, "runtime.powerState", is(types.VirtualMachinePowerStatePoweredOff)},
		{record{"power": "on"}, "guest.hostName", is("renamed.example")},
		{record{"snapshots": list{"a", "b"}}, "snapshot", some},
		{record{"snapshots": list{}}, "snapshot", is(nil)},
		{record{"cpus": 8}, "config.hardware.numCPU", is(int32(8))},
		{record{"memoryMiB": 4096}, "summary.config.memorySizeMB", is(int32(4096))},
		{record{"resourcePool": ""}, "resourcePool", some},
		{record{"datastore": "local-1"}, "datastore", some},
		{record{"template": true}, "config.template", is(true)},
	} {
		before := node[step.property]
		p.lever("PATCH", patchOf(at), step.patch)
		w.until(fmt.Sprintf("%s after %v", step.property, step.patch), func() bool {
			v := node[step.property]
			return step.wanted(v) && fmt.Sprint(v) != fmt.Sprint(before)
		})
	}
	p.lever("PATCH", patchOf(at), record{"folder": "apps/new"})
	w.until("a new parent", func() bool { return node["parent"] != nil })
	p.lever("PATCH", patchOf("/DC0/vm/apps/new/node-1"), record{"name": "node-9"})
	w.until("a new name", func() bool { return node["name"] == "node-9" })
}

func is(want any) func(any) bool { return func(got any) bool { return got == want } }
func some(got any) bool          { return got != nil }

func TestVMsEnterAndLeaveAWatch(t *testing.T) {
	p := launch(t, world())
	c := p.client()
	w := p.watch(c, c.ServiceContent.RootFolder, "VirtualMachine", "name")
	p.lever("POST", "/vms", record{"name": "node-3", "folder": "k8s"})
	w.until("the new VM", func() bool { return w.named("node-3") != nil })
	p.lever("POST", "/vms/reregister?path=/DC0/vm/k8s/node-3", nil)
	w.until("the VM under another reference", func() bool { return w.named("node-3") != nil && len(w.updates) >= 6 })
	old := p.vm(c, "/DC0/vm/k8s/node-3")
	p.lever("DELETE", patchOf("/DC0/vm/k8s/node-3"), nil)
	w.until("the VM's leave", func() bool { return w.named("node-3") == nil })
	var read mo.VirtualMachine
	wantFault(t, old.Properties(deadline(t), old.Reference(), []string{"name"}, &read), "ManagedObjectNotFound")
	if len(w.objects) != 3 {
		t.Fatalf("three VMs are left, not %v", w.objects)
	}
}

func TestChangesOfAClientAreReportedAsUpdates(t *testing.T) {
	p := launch(t, world())
	c := p.client()
	ctx := deadline(t)
	w := p.watch(c, c.ServiceContent.RootFolder, "VirtualMachine", "name", "config.uuid", "config.flags", "config.extraConfig", "runtime.powerState", "runtime.host", "guest.hostName")
	vm := p.vm(c, "/DC0/vm/k8s/node-1")
	node := w.objects[vm.Reference()]

	task, err := vm.Reconfigure(ctx, types.VirtualMachineConfigSpec{Uuid: "91111111-2222-3333-4444-555555555555"})
	must(t, err)
	must(t, task.Wait(ctx))
	w.until("the uuid", func() bool { return node["config.uuid"] == "91111111-2222-3333-4444-555555555555" })

	task, err = vm.Reconfigure(ctx, types.VirtualMachineConfigSpec{ExtraConfig: []types.BaseOptionValue{&types.OptionValue{Key: "disk.enableUUID", Value: "FALSE"}}})
	must(t, err)
	must(t, task.Wait(ctx))
	w.until("the flag", func() bool { f := node["config.flags"].(types.VirtualMachineFlagInfo); return !*f.DiskUuidEnabled })

	task, err = vm.PowerOff(ctx)
	must(t, err)
	must(t, task.Wait(ctx))
	w.until("power off and a silent guest", func() bool {
		return node["runtime.powerState"] == types.VirtualMachinePowerStatePoweredOff && node["guest.hostName"] == nil
	})
	task, err = vm.PowerOn(ctx)
	must(t, err)
	must(t, task.Wait(ctx))
	w.until("the guest again", func() bool { return node["guest.hostName"] == "node-1" })

	before := node["runtime.host"].(types.ManagedObjectReference)
	for _, h := range p.inventory().Datacenters[0].Clusters[0].Hosts {
		if h.Moref != before.Value {
			task, err = vm.Relocate(ctx, types.VirtualMachineRelocateSpec{Host: &types.ManagedObjectReference{Type: "HostSystem", Value: h.Moref}}, types.VirtualMachineMovePriorityDefaultPriority)
		}
	}
	must(t, err)
	must(t, task.Wait(ctx))
	w.until("another host", func() bool { return node["runtime.host"] != before })
	var host mo.HostSystem
	must(t, object.NewHostSystem(c.Client, before).Properties(ctx, before, []string{"vm"}, &host))
	for _, r := range host.Vm {
		if r == vm.Reference() {
			t.Fatal("the host it left still lists the VM")
		}
	}
}

func TestChangesOfHostsAndDatastoresAreReported(t *testing.T) {
	p := launch(t, world())
	c := p.client()
	hosts := p.watch(c, c.ServiceContent.RootFolder, "HostSystem", "name", "runtime.inMaintenanceMode", "runtime.connectionState", "config.product.version", "datastore")
	p.lever("PATCH", "/hosts?path=/DC0/host/C0/esx-1", record{"maintenance": true, "connection": "notResponding", "version": "9.0.0"})
	hosts.until("the host's state", func() bool {
		h := hosts.named("esx-1")
		return h["runtime.inMaintenanceMode"] == true && h["runtime.connectionState"] == types.HostSystemConnectionStateNotResponding && h["config.product.version"] == "9.0.0"
	})
	stores := p.watch(c, c.ServiceContent.RootFolder, "Datastore", "name", "summary", "host", "summary.maintenanceMode")
	p.lever("PATCH", "/datastores?path=/DC0/datastore/shared-1", record{"accessible": false, "freeGiB": 1, "maintenance": "inMaintenance", "hosts": list{"esx-2"}})
	stores.until("the datastore's state", func() bool {
		d := stores.named("shared-1")
		sum := d["summary"].(types.DatastoreSummary)
		mounts := d["host"].(types.ArrayOfDatastoreHostMount).DatastoreHostMount
		return !sum.Accessible && sum.FreeSpace == 1<<30 && d["summary.maintenanceMode"] == "inMaintenance" && len(mounts) == 1
	})
	hosts.until("the host without the datastore", func() bool {
		return len(hosts.named("esx-1")["datastore"].(types.ArrayOfManagedObjectReference).ManagedObjectReference) == 1
	})
	p.lever("DELETE", "/datastores?path=/DC0/datastore/local-1", nil)
	stores.until("the datastore's leave", func() bool { return stores.named("local-1") == nil })
}

func TestVersionsAreCountersAndALostResponseIsRepeated(t *testing.T) {
	p := launch(t, world())
	c := p.client()
	w := p.watch(c, c.ServiceContent.RootFolder, "VirtualMachine", "name")
	if w.version != "1" {
		t.Fatalf("the first version is 1, not %q", w.version)
	}
	p.lever("PATCH", patchOf("/DC0/vm/k8s/node-1"), record{"name": "x"})
	first, err := w.ask(5)
	must(t, err)
	again, err := w.ask(5)
	must(t, err)
	if first.Version != "2" || again.Version != "2" || len(again.FilterSet) != 1 {
		t.Fatalf("asked twice from version 1: %v and %v", first, again)
	}
	w.version = "77"
	_, err = w.ask(1)
	wantFault(t, err, "InvalidCollectorVersion")
	w.version = first.Version
	if set, err := w.ask(1); err != nil || set != nil {
		t.Fatalf("nothing changed since, but %v, %v", set, err)
	}
}

func TestAListViewOfTasksIsWatched(t *testing.T) {
	p := launch(t, world())
	c, ctx := p.client(), deadline(t)
	view, err := methods.CreateListView(ctx, c, &types.CreateListView{This: *c.ServiceContent.ViewManager})
	must(t, err)
	pc, err := methods.CreatePropertyCollector(ctx, c, &types.CreatePropertyCollector{This: c.ServiceContent.PropertyCollector})
	must(t, err)
	_, err = methods.CreateFilter(ctx, c, &types.CreateFilter{This: pc.Returnval, Spec: types.PropertyFilterSpec{
		ObjectSet: []types.ObjectSpec{{Obj: view.Returnval, Skip: types.NewBool(true), SelectSet: []types.BaseSelectionSpec{
			&types.TraversalSpec{Type: "ListView", Path: "view"}}}},
		PropSet: []types.PropertySpec{{Type: "Task", PathSet: []string{"info"}}}}})
	must(t, err)
	w := &watch{t: t, c: c, pc: pc.Returnval, objects: map[ref]map[string]any{}}
	w.once(1)
	p.lever("POST", "/faults", record{"method": "PowerOffVM_Task", "task": "slow", "taskDelayMs": 100})
	task, err := object.NewVirtualMachine(c.Client, p.moref("node-1")).PowerOff(ctx)
	must(t, err)
	_, err = methods.ModifyListView(ctx, c, &types.ModifyListView{This: view.Returnval, Add: []ref{task.Reference()}})
	must(t, err)
	w.until("the task", func() bool { return w.objects[task.Reference()] != nil })
	w.until("its end", func() bool {
		return w.objects[task.Reference()]["info"].(types.TaskInfo).State == types.TaskInfoStateSuccess
	})
	_, err = methods.ModifyListView(ctx, c, &types.ModifyListView{This: view.Returnval, Remove: []ref{task.Reference()}})
	must(t, err)
	w.until("its leave", func() bool { return len(w.objects) == 0 })
}

func TestAFilterWithoutTraversalReportsOneObject(t *testing.T) {
	p := launch(t, world())
	c, ctx := p.client(), deadline(t)
	vm := p.moref("node-1")
	_, err := methods.CreateFilter(ctx, c, &types.CreateFilter{This: c.ServiceContent.PropertyCollector, Spec: types.PropertyFilterSpec{
		ObjectSet: []types.ObjectSpec{{Obj: vm}}, PropSet: []types.PropertySpec{{Type: "ManagedEntity", PathSet: []string{"name"}}}}})
	must(t, err)
	w := &watch{t: t, c: c, pc: c.ServiceContent.PropertyCollector, objects: map[ref]map[string]any{}}
	w.once(1)
	if w.named("node-1") == nil {
		t.Fatalf("seen: %v", w.objects)
	}
	p.lever("DELETE", patchOf("/DC0/vm/k8s/node-1"), nil)
	w.until("its leave", func() bool { return len(w.objects) == 0 })
	_, err = methods.CreateFilter(ctx, c, &types.CreateFilter{This: c.ServiceContent.PropertyCollector, Spec: types.PropertyFilterSpec{
		ObjectSet: []types.ObjectSpec{{Obj: vm}}, PropSet: []types.PropertySpec{{Type: "ManagedEntity", PathSet: []string{"name"}}}}})
	wantFault(t, err, "ManagedObjectNotFound")
}

func TestAWaitEndsWithItsClient(t *testing.T) {
	p := launch(t, world())
	c := p.client()
	w := p.watch(c, c.ServiceContent.RootFolder, "VirtualMachine", "name")
	gone, cancel := context.WithCancel(context.Background())
	before := p.calls("WaitForUpdatesEx")
	ended := make(chan error, 1)
	go func() {
		_, err := methods.WaitForUpdatesEx(gone, c, &types.WaitForUpdatesEx{This: w.pc, Version: w.version})
		ended <- err
	}()
	for p.calls("WaitForUpdatesEx") == before {
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	<-ended
	p.lever("PATCH", patchOf("/DC0/vm/k8s/node-1"), record{"name": "renamed"})
	w.until("a change the one who left did not take", func() bool { return w.named("renamed") != nil })
}

func TestAVMIsDisconnectedWithItsHostAndInaccessibleWithoutItsDatastore(t *testing.T) {
	p := launch(t, world())
	c := p.client()
	w := p.watch(c, c.ServiceContent.RootFolder, "VirtualMachine", "name", "runtime.connectionState", "summary.runtime.connectionState")
	states := func(want types.VirtualMachineConnectionState) func() bool {
		return func() bool {
			o := w.named("node-1")
			return o["runtime.connectionState"] == want && o["summary.runtime.connectionState"] == want
		}
	}
	p.lever("PATCH", "/hosts?path=/DC0/host/C0/esx-1", record{"connection": "notResponding"})
	w.until("disconnected", states(types.VirtualMachineConnectionStateDisconnected))
	p.lever("PATCH", patchOf("/DC0/vm/k8s/node-1"), record{"host": "esx-2"})
	w.until("connected elsewhere", states(types.VirtualMachineConnectionStateConnected))
	p.lever("PATCH", "/datastores?path=/DC0/datastore/shared-1", record{"accessible": false})
	w.until("inaccessible", states(types.VirtualMachineConnectionStateInaccessible))
}
