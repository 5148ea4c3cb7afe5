package main

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// locked runs f while no call of a client uses the object.
func (s *Sim) locked(o mo.Reference, f func()) { s.reg().WithLock(s.ctx(), o, f) }

// at is the object of one kind at an inventory path.
func at[T mo.Entity](s *Sim, path string) (found T, err error) {
	e, err := s.find(path)
	if err != nil {
		return found, err
	}
	found, ok := e.(T)
	if !ok {
		return found, fmt.Errorf("%s is a %s", path, e.Reference().Type)
	}
	return found, nil
}

// datacenterOf is the datacenter an entity is in.
func (s *Sim) datacenterOf(e mo.Entity) *simulator.Datacenter {
	for e != nil {
		if dc, ok := e.(*simulator.Datacenter); ok {
			return dc
		}
		if e.Entity().Parent == nil {
			return nil
		}
		e, _ = s.reg().Get(*e.Entity().Parent).(mo.Entity)
	}
	return nil
}

// addVM adds a VM to a running simulator.
func (s *Sim) addVM(v VM) (VM, error) {
	dc, err := s.datacenter(v.Datacenter)
	if err != nil {
		return v, err
	}
	shape := s.describeDatacenter(dc)
	v.withDefaults(&shape, len(shape.VMs))
	if v.Name == "" {
		return v, fmt.Errorf("vm: name is empty")
	}
	if err := v.check("vm", shape.Networks); err != nil {
		return v, err
	}
	for _, had := range shape.VMs {
		if had.Name == v.Name && had.Folder == strings.Trim(v.Folder, "/") {
			return v, fmt.Errorf("vm: %s is already there", had.Path)
		}
	}
	p, err := s.places(dc)
	if err != nil {
		return v, err
	}
	vm, err := s.registerVM(p, v)
	if err != nil {
		return v, err
	}
	s.journal.restructure(vm.Self, *vm.Parent)
	return s.lookAt(vm), nil
}

// patchVM changes the given fields of a VM. The change is atomic: a client never sees a part of it.
func (s *Sim) patchVM(path string, patch []byte) (VM, error) {
	vm, err := at[*simulator.VirtualMachine](s, path)
	if err != nil {
		return VM{}, err
	}
	dc := s.datacenterOf(vm)
	p, err := s.places(dc)
	if err != nil {
		return VM{}, err
	}
	var after VM
	s.locked(vm, func() {
		before := s.describeVM(vm)
		after = clone(before)
		after.NICs, after.SCSI = clone(before.NICs), clone(before.SCSI)
		given := map[string]any{}
		decodeLoose(patch, &given)
		if given["nics"] != nil { // decoding into the old list would keep old fields
			after.NICs = nil
		}
		if err = decodeStrict(patch, &after); err != nil {
			return
		}
		if err = s.checkPatch(p, &before, &after, given); err != nil {
			return
		}
		err = s.changeVM(p, vm, before, after)
	})
	if err != nil {
		return VM{}, err
	}
	if err := s.setSnapshots(vm, after.Snapshots); err != nil {
		return VM{}, err
	}
	return s.lookAt(vm), nil
}

func (s *Sim) checkPatch(p *places, before, after *VM, given map[string]any) error {
	shape := Datacenter{Name: p.dc.Name}
	for name := range p.nets {
		shape.Networks = append(shape.Networks, name)
	}
	if after.Host != before.Host || after.Cluster != before.Cluster {
		if p.hosts[after.Host] == nil {
			return fmt.Errorf("vm.host: no host named %q", after.Host)
		}
		if given["resourcePool"] == nil {
			if s.computeResource(*p.hosts[after.Host].Parent) != s.computeResource(*p.hosts[before.Host].Parent) {
				after.ResourcePool = ""
			}
		}
	}
	for i := range *after.NICs {
		nic := &(*after.NICs)[i]
		if nic.Network == "" && len(shape.Networks) > 0 {
			nic.Network = shape.Networks[0]
		}
		or(&nic.MAC, stableMAC(after.UUID, i))
		orNew(&nic.Connected, true)
	}
	after.UUID, after.InstanceUUID = strings.ToLower(after.UUID), strings.ToLower(after.InstanceUUID)
	if *after.DiskUUID == *before.DiskUUID { // an extraConfig patch can set it too
		for k, x := range after.ExtraConfig {
			if strings.EqualFold(k, diskUUIDKey) && x != before.ExtraConfig[k] {
				after.DiskUUID = types.NewBool(strings.EqualFold(x, "true"))
			}
		}
	}
	return after.check("vm", shape.Networks)
}

func (s *Sim) changeVM(p *places, vm *simulator.VirtualMachine, before, after VM) error {
	host := p.hosts[after.Host]
	pool, err := s.poolOf(p, host, after.ResourcePool)
	if err != nil {
		return err
	}
	if folder := strings.Trim(after.Folder, "/"); folder != before.Folder {
		f, err := s.folderIn(p, folder)
		if err != nil {
			return err
		}
		s.moveTo(vm, f)
	}
	if after.Datastore != before.Datastore {
		if err := s.moveStorage(vm, p.stores[before.Datastore], p.stores[after.Datastore]); err != nil {
			return err
		}
	}
	if !reflect.DeepEqual(before.SCSI, after.SCSI) {
		s.setControllers(vm, *after.SCSI)
	}
	if before.ExtraDisks != after.ExtraDisks {
		if err := s.setExtraDisks(vm, after.ExtraDisks); err != nil {
			return err
		}
	}
	if !reflect.DeepEqual(before.NICs, after.NICs) {
		s.setNICs(vm, p, *after.NICs)
	}
	s.setVM(vm, after)
	s.place(vm, host, pool)
	s.guests.put(vm.Self, after)
	s.setGuest(vm, after)
	s.journal.touch(vm.Self)
	return nil
}

// moveTo moves an entity to another folder.
func (s *Sim) moveTo(e mo.Entity, to *simulator.Folder) {
	if from, ok := s.reg().Get(*e.Entity().Parent).(*simulator.Folder); ok {
		s.member(from, &from.ChildEntity, e.Reference(), false)
	}
	parent := to.Self
	e.Entity().Parent = &parent
	s.member(to, &to.ChildEntity, e.Reference(), true)
	s.journal.restructure(to.Self, e.Reference())
}

func (s *Sim) moveStorage(vm *simulator.VirtualMachine, from, to *simulator.Datastore) error {
	if to == nil {
		return fmt.Errorf("vm.datastore: there is no such datastore")
	}
	if from != nil {
		s.member(from, &from.Vm, vm.Self, false)
	}
	s.member(to, &to.Vm, vm.Self, true)
	vm.Datastore = []ref{to.Self}
	vm.Config.DatastoreUrl = []types.VirtualMachineConfigInfoDatastoreUrlPair{{Name: to.Name, Url: to.Summary.Url}}
	return nil
}

// destroyVM removes a VM in any state: its reference then returns ManagedObjectNotFound.
func (s *Sim) destroyVM(path string) error {
	vm, err := at[*simulator.VirtualMachine](s, path)
	if err != nil {
		return err
	}
	s.locked(vm, func() { s.unlink(vm) })
	return nil
}

func (s *Sim) unlink(vm *simulator.VirtualMachine) {
	if vm.Runtime.Host != nil {
		if h, ok := s.reg().Get(*vm.Runtime.Host).(*simulator.HostSystem); ok {
			s.member(h, &h.Vm, vm.Self, false)
		}
	}
	if vm.ResourcePool != nil {
		if p, ok := s.reg().Get(*vm.ResourcePool).(*simulator.ResourcePool); ok {
			s.member(p, &p.Vm, vm.Self, false)
		}
	}
	for _, r := range vm.Datastore {
		if d, ok := s.reg().Get(r).(*simulator.Datastore); ok {
			s.member(d, &d.Vm, vm.Self, false)
		}
	}
	if f, ok := s.reg().Get(*vm.Parent).(*simulator.Folder); ok {
		s.member(f, &f.ChildEntity, vm.Self, false)
	}
	s.guests.drop(vm.Self)
	s.reg().Remove(s.ctx(), vm.Self)
}

// reregister removes a VM from the inventory and registers it again: only its reference changes.
func (s *Sim) reregister(path string) (VM, error) {
	vm, err := at[*simulator.VirtualMachine](s, path)
	if err != nil {
		return VM{}, err
	}
	guest, _ := s.guests.get(vm.Self)
	again := &simulator.VirtualMachine{DataSets: vm.DataSets}
	s.locked(vm, func() {
		again.VirtualMachine = clone(vm.VirtualMachine)
		s.unlink(vm)
	})
	s.reg().NewEntity(again)
	again.Summary.Vm = &again.Self
	at, in := again.Runtime.Host, again.ResourcePool
	again.Runtime.Host, again.ResourcePool = nil, nil
	host := s.reg().Get(*at).(*simulator.HostSystem)
	pool := s.reg().Get(*in).(*simulator.ResourcePool)
	s.place(again, host, pool)
	for _, r := range again.Datastore {
		if d, ok := s.reg().Get(r).(*simulator.Datastore); ok {
			s.member(d, &d.Vm, again.Self, true)
		}
	}
	folder := s.reg().Get(*again.Parent).(*simulator.Folder)
	s.member(folder, &folder.ChildEntity, again.Self, true)
	s.guests.put(again.Self, guest)
	for _, d := range device[*types.VirtualDisk](again) {
		if d.VDiskId != nil {
			s.volumes.note(d.VDiskId.Id, &again.Self)
		}
	}
	s.reg().PutEntity(folder, again)
	s.journal.restructure(folder.Self, again.Self)
	return s.lookAt(again), nil
}

func (s *Sim) patchHost(path string, patch []byte) (Host, error) {
	h, err := at[*simulator.HostSystem](s, path)
	if err != nil {
		return Host{}, err
	}
	s.locked(h, func() {
		spec := describeHost(h)
		name := spec.Name
		if err = decodeStrict(patch, &spec); err != nil {
			return
		}
		if spec.Name != name {
			err = fmt.Errorf("host.name cannot be changed")
			return
		}
		if err = spec.check("host", map[string]bool{}); err == nil {
			s.setHost(h, spec)
		}
	})
	s.journal.touch(h.Self, *h.Parent)
	s.reconnect(h.Vm)
	return s.lookAtHost(h), err
}

func (s *Sim) patchDatastore(path string, patch []byte) (Datastore, error) {
	ds, err := at[*simulator.Datastore](s, path)
	if err != nil {
		return Datastore{}, err
	}
	dc := s.datacenterOf(ds)
	s.locked(ds, func() {
		spec := s.describeDatastore(ds)
		if err = decodeStrict(patch, &spec); err != nil {
			return
		}
		if spec.Name != ds.Name || spec.Type != ds.Summary.Type || spec.URL != ds.Summary.Url {
			err = fmt.Errorf("datastore: name, type and url cannot be changed")
			return
		}
		for _, name := range *spec.Hosts {
			if p, _ := s.places(dc); p.hosts[name] == nil {
				err = fmt.Errorf("datastore.hosts: no host named %q", name)
				return
			}
		}
		s.setDatastore(dc, ds, spec)
	})
	s.journal.touch(ds.Self)
	s.reconnect(ds.Vm)
	return s.lookAtDatastore(ds), err
}

// removeHost removes a host from the inventory; it must have no VMs.
func (s *Sim) removeHost(path string) error {
	h, err := at[*simulator.HostSystem](s, path)
	if err != nil {
		return err
	}
	if len(h.Vm) > 0 {
		return fmt.Errorf("%s still runs %d VMs: move them first", path, len(h.Vm))
	}
	for _, r := range h.Datastore {
		if ds, ok := s.reg().Get(r).(*simulator.Datastore); ok {
			s.locked(ds, func() {
				kept := []types.DatastoreHostMount{}
				for _, m := range ds.Host {
					if m.Key != h.Self {
						kept = append(kept, m)
					}
				}
				ds.Host = kept
			})
			s.journal.touch(r)
		}
	}
	if c := s.computeResource(*h.Parent); c != nil {
		s.member(c, &c.Host, h.Self, false)
		if c.Self.Type == "ComputeResource" { // the resource of a standalone host is removed with it
			if f, ok := s.reg().Get(*c.Parent).(*simulator.Folder); ok {
				s.member(f, &f.ChildEntity, c.Self, false)
			}
			s.reg().Remove(s.ctx(), *c.ResourcePool)
			s.reg().Remove(s.ctx(), c.Self)
		}
	}
	s.reg().Remove(s.ctx(), h.Self)
	s.journal.restructure(h.Self)
	return nil
}

func (s *Sim) removeDatastore(path string) error {
	ds, err := at[*simulator.Datastore](s, path)
	if err != nil {
		return err
	}
	if len(ds.Vm) > 0 {
		return fmt.Errorf("%s still holds %d VMs: move them first", path, len(ds.Vm))
	}
	dc, none := s.datacenterOf(ds), []string{}
	spec := s.describeDatastore(ds)
	spec.Hosts = &none
	s.locked(ds, func() { s.setDatastore(dc, ds, spec) })
	s.member(dc, &dc.Datastore, ds.Self, false)
	if f, ok := s.reg().Get(*ds.Parent).(*simulator.Folder); ok {
		s.member(f, &f.ChildEntity, ds.Self, false)
	}
	s.reg().Remove(s.ctx(), ds.Self)
	s.journal.restructure(ds.Self, dc.Self)
	for _, h := range s.hostsOf(dc) {
		s.journal.touch(h.Self)
	}
	return nil
}

// follow updates other objects after govmomi changed a VM, whose lock is held: the guest reports while the power is on, and
// hosts, pools and datastores list their VMs.
func (s *Sim) follow(r ref, changed map[string]bool) {
	vm, ok := s.reg().Get(r).(*simulator.VirtualMachine)
	if !ok {
		return
	}
	if changed["runtime.powerState"] {
		vm.Summary.Runtime.PowerState = vm.Runtime.PowerState
		if guest, known := s.guests.get(r); known {
			s.setGuest(vm, guest)
		}
		s.journal.touch(r)
	}
	if changed["runtime.host"] || changed["resourcePool"] || changed["datastore"] {
		for _, e := range s.reg().All("") {
			switch o := e.(type) {
			case *simulator.HostSystem:
				s.member(o, &o.Vm, r, vm.Runtime.Host != nil && *vm.Runtime.Host == o.Self)
			case *simulator.ResourcePool:
				s.member(o, &o.Vm, r, vm.ResourcePool != nil && *vm.ResourcePool == o.Self)
			case *simulator.Datastore:
				s.member(o, &o.Vm, r, slices.Contains(vm.Datastore, o.Self))
			}
		}
		s.journal.restructure(r)
	}
}
