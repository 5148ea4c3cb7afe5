package main

import (
	"slices"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// describe returns the current inventory in the format of the inventory file, with morefs.
func (s *Sim) describe() Inventory {
	si := s.reg().Get(ref{Type: "ServiceInstance", Value: "ServiceInstance"}).(*simulator.ServiceInstance)
	a := si.Content.About
	inv := Inventory{About: About{Name: a.Name, FullName: a.FullName, Version: a.Version, APIVersion: a.ApiVersion, APIType: a.ApiType,
		Build: a.Build, InstanceUUID: a.InstanceUuid}, Datacenters: []Datacenter{}}
	for _, dc := range s.datacenters() {
		inv.Datacenters = append(inv.Datacenters, s.describeDatacenter(dc))
	}
	inv.Categories = s.rest.list()
	for _, u := range s.accounts.list() {
		inv.Users = append(inv.Users, u.User)
	}
	inv.Roles, inv.Permissions = s.auth.list()
	return inv
}

func (s *Sim) describeDatacenter(dc *simulator.Datacenter) Datacenter {
	out := Datacenter{Name: dc.Name, Moref: dc.Self.Value, Folder: s.below(dc.Self, s.root())}
	for _, c := range s.computeOf(dc) {
		hosts := []Host{}
		for _, r := range c.Host {
			if h, ok := s.reg().Get(r).(*simulator.HostSystem); ok {
				hosts = append(hosts, s.lookAtHost(h))
			}
		}
		folder := s.below(c.Self, dc.HostFolder)
		if c.Self.Type == "ComputeResource" {
			for _, h := range hosts {
				h.Folder = folder
				out.Hosts = append(out.Hosts, h)
			}
			continue
		}
		shown := Cluster{Name: c.Name, Moref: c.Self.Value, Folder: folder, Hosts: hosts, FileService: s.fileService[c.Self]}
		shown.ResourcePools = s.describePools(*c.ResourcePool, "")
		out.Clusters = append(out.Clusters, shown)
	}
	for _, r := range dc.Datastore {
		if ds, ok := s.reg().Get(r).(*simulator.Datastore); ok {
			out.Datastores = append(out.Datastores, s.lookAtDatastore(ds))
		}
	}
	for _, r := range dc.Network {
		if n, ok := s.reg().Get(r).(*mo.Network); ok {
			out.Networks = append(out.Networks, n.Name)
		}
	}
	var folders func(ref, string)
	folders = func(r ref, at string) {
		f, ok := s.reg().Get(r).(*simulator.Folder)
		if !ok {
			return
		}
		for _, child := range f.ChildEntity {
			switch o := s.reg().Get(child).(type) {
			case *simulator.Folder:
				name := at + o.Name
				out.Folders = append(out.Folders, name)
				folders(child, name+"/")
			case *simulator.VirtualMachine:
				out.VMs = append(out.VMs, s.lookAt(o))
			}
		}
	}
	folders(dc.VmFolder, "")
	return out
}

func (s *Sim) describePools(root ref, at string) (names []string) {
	pool, ok := s.reg().Get(root).(*simulator.ResourcePool)
	if !ok {
		return nil
	}
	for _, r := range pool.ResourcePool.ResourcePool {
		if child, ok := s.reg().Get(r).(*simulator.ResourcePool); ok {
			names = append(names, at+child.Name)
			names = append(names, s.describePools(r, at+child.Name+"/")...)
		}
	}
	return names
}

// lookAt describes a VM that is not locked; lookAtHost and lookAtDatastore do the same.
func (s *Sim) lookAt(vm *simulator.VirtualMachine) (v VM) {
	s.locked(vm, func() { v = s.describeVM(vm) })
	return v
}

func (s *Sim) lookAtHost(h *simulator.HostSystem) (out Host) {
	s.locked(h, func() { out = describeHost(h) })
	return out
}

func (s *Sim) lookAtDatastore(ds *simulator.Datastore) (out Datastore) {
	s.locked(ds, func() { out = s.describeDatastore(ds) })
	return out
}

func describeHost(h *simulator.HostSystem) Host {
	return Host{Name: h.Name, Moref: h.Self.Value, Version: h.Config.Product.Version, Build: h.Config.Product.Build,
		Maintenance: h.Runtime.InMaintenanceMode, Connection: string(h.Runtime.ConnectionState)}
}

func (s *Sim) describeDatastore(ds *simulator.Datastore) Datastore {
	sum := ds.Summary
	capacity, free, hosts := float64(sum.Capacity)/gib, float64(sum.FreeSpace)/gib, []string{}
	for _, m := range ds.Host {
		if h, ok := s.reg().Get(m.Key).(*simulator.HostSystem); ok {
			hosts = append(hosts, h.Name)
		}
	}
	return Datastore{Name: ds.Name, Moref: ds.Self.Value, Type: sum.Type, URL: sum.Url, CapacityGiB: &capacity, FreeGiB: &free,
		Hosts: &hosts, Accessible: types.NewBool(sum.Accessible), Maintenance: sum.MaintenanceMode}
}

// describeVM reads the live object, and the guest's state, which is stored separately.
func (s *Sim) describeVM(vm *simulator.VirtualMachine) VM {
	v, known := s.guests.get(vm.Self)
	if !known { // created by a client
		v = VM{Tools: "notInstalled", HostName: new(string), NICs: &[]NIC{}}
	}
	c := vm.Config
	v.Name, v.Moref, v.Path = vm.Name, vm.Self.Value, s.path(vm.Self)
	v.UUID, v.InstanceUUID, v.GuestID, v.Version = c.Uuid, c.InstanceUuid, c.GuestId, c.Version
	v.CPUs, v.MemoryMiB, v.Template = c.Hardware.NumCPU, c.Hardware.MemoryMB, c.Template
	v.DiskUUID = types.NewBool(c.Flags.DiskUuidEnabled != nil && *c.Flags.DiskUuidEnabled)
	for word, state := range powerState {
		if state == vm.Runtime.PowerState {
			v.Power = word
		}
	}
	v.ExtraConfig = map[string]string{}
	for _, o := range c.ExtraConfig {
		if text, ok := o.GetOptionValue().Value.(string); ok {
			v.ExtraConfig[o.GetOptionValue().Key] = text
		}
	}
	kinds := controllerKinds(vm)
	v.SCSI, v.ExtraDisks = &kinds, len(extraDisks(vm))
	v.Snapshots, v.Disks = snapshotNames(vm), describeDisks(vm)
	s.describePlace(vm, &v)
	return v
}

func (s *Sim) describePlace(vm *simulator.VirtualMachine, v *VM) {
	v.Datacenter, v.Folder, v.Cluster, v.Host, v.ResourcePool, v.Datastore = "", "", "", "", "", ""
	for _, dc := range s.datacenters() {
		top := s.path(dc.VmFolder)
		if len(v.Path) > len(top) && v.Path[:len(top)+1] == top+"/" {
			v.Datacenter, v.Folder = dc.Name, s.below(vm.Self, dc.VmFolder)
		}
	}
	if vm.Runtime.Host != nil {
		if h, ok := s.reg().Get(*vm.Runtime.Host).(*simulator.HostSystem); ok {
			v.Host = h.Name
			if c := s.computeResource(*h.Parent); c != nil && c.Self.Type == "ClusterComputeResource" {
				v.Cluster = c.Name
			}
		}
	}
	if vm.ResourcePool != nil {
		var names []string
		for r := *vm.ResourcePool; ; {
			p, ok := s.reg().Get(r).(*simulator.ResourcePool)
			if !ok || p.Parent == nil || p.Parent.Type != "ResourcePool" {
				break
			}
			names = append(names, p.Name)
			r = *p.Parent
		}
		slices.Reverse(names)
		for i, n := range names {
			if i > 0 {
				v.ResourcePool += "/"
			}
			v.ResourcePool += n
		}
	}
	if len(vm.Datastore) > 0 {
		if ds, ok := s.reg().Get(vm.Datastore[0]).(*simulator.Datastore); ok {
			v.Datastore = ds.Name
		}
	}
}

func describeDisks(vm *simulator.VirtualMachine) (disks []Disk) {
	for _, d := range device[*types.VirtualDisk](vm) {
		shown := Disk{CapacityMB: d.CapacityInBytes >> 20, Controller: d.ControllerKey}
		if d.UnitNumber != nil {
			shown.Unit = *d.UnitNumber
		}
		if d.VDiskId != nil {
			shown.VolumeID = d.VDiskId.Id
		}
		if b, ok := d.Backing.(*types.VirtualDiskFlatVer2BackingInfo); ok {
			shown.UUID, shown.File = b.Uuid, b.FileName
		}
		disks = append(disks, shown)
	}
	return disks
}
