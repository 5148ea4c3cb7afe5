package main

import (
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/simulator/esx"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// places are the hosts, pools and datastores of a datacenter by name, looked up once for many VMs.
type places struct {
	dc      *simulator.Datacenter
	hosts   map[string]*simulator.HostSystem
	stores  map[string]*simulator.Datastore
	nets    map[string]ref
	folders map[string]*simulator.Folder
	pools   map[string]*simulator.ResourcePool
}

func (s *Sim) places(dc *simulator.Datacenter) (*places, error) {
	p := &places{dc: dc, hosts: map[string]*simulator.HostSystem{}, stores: map[string]*simulator.Datastore{},
		nets: map[string]ref{}, folders: map[string]*simulator.Folder{}, pools: map[string]*simulator.ResourcePool{}}
	for _, h := range s.hostsOf(dc) {
		p.hosts[h.Name] = h
	}
	for _, r := range dc.Datastore {
		if ds, ok := s.reg().Get(r).(*simulator.Datastore); ok {
			p.stores[ds.Name] = ds
		}
	}
	for _, r := range dc.Network {
		if n, ok := s.reg().Get(r).(*mo.Network); ok {
			p.nets[n.Name] = r
		}
	}
	return p, nil
}

func (s *Sim) folderIn(p *places, below string) (*simulator.Folder, error) {
	below = strings.Trim(below, "/")
	if f := p.folders[below]; f != nil {
		return f, nil
	}
	f, err := s.ensureFolder(p.dc.VmFolder, below)
	p.folders[below] = f
	return f, err
}

// poolOf finds a resource pool below the root pool of the host's cluster; "" is the root pool.
func (s *Sim) poolOf(p *places, h *simulator.HostSystem, name string) (*simulator.ResourcePool, error) {
	compute := s.computeResource(*h.Parent)
	key := compute.Self.Value + "/" + name
	if pool := p.pools[key]; pool != nil {
		return pool, nil
	}
	pool := s.reg().Get(*compute.ResourcePool).(*simulator.ResourcePool)
	for _, part := range strings.FieldsFunc(name, func(r rune) bool { return r == '/' }) {
		child, ok := s.reg().FindByName(part, pool.ResourcePool.ResourcePool).(*simulator.ResourcePool)
		if !ok {
			return nil, fmt.Errorf("resourcePool: no pool named %q under %s", name, compute.Name)
		}
		pool = child
	}
	p.pools[key] = pool
	return pool, nil
}

// registerVM registers a VM directly: no task, no event. v must be complete (withDefaults).
func (s *Sim) registerVM(p *places, v VM) (*simulator.VirtualMachine, error) {
	host, ds := p.hosts[v.Host], p.stores[v.Datastore]
	if host == nil {
		return nil, fmt.Errorf("host: no host named %q", v.Host)
	}
	if ds == nil {
		return nil, fmt.Errorf("datastore: no datastore named %q", v.Datastore)
	}
	folder, err := s.folderIn(p, v.Folder)
	if err != nil {
		return nil, err
	}
	pool, err := s.poolOf(p, host, v.ResourcePool)
	if err != nil {
		return nil, err
	}

	vm := &simulator.VirtualMachine{DataSets: map[string]*simulator.DataSet{}}
	dir := fmt.Sprintf("[%s] %s", ds.Name, v.Name)
	_ = os.Mkdir(path.Join(ds.Summary.Url, v.Name), 0o700)
	s.blank(vm, dir, v.Name)
	vm.Datastore = []ref{ds.Self}
	vm.Config.Hardware.Device = clone(esx.VirtualDevice)
	s.reg().NewEntity(vm)
	vm.Summary.Vm = &vm.Self
	vm.Config.DatastoreUrl = []types.VirtualMachineConfigInfoDatastoreUrlPair{{Name: ds.Name, Url: ds.Summary.Url}}

	s.setControllers(vm, *v.SCSI)
	s.addSystemDisk(vm, ds, dir)
	s.setNICs(vm, p, *v.NICs)
	s.setVM(vm, v)
	s.place(vm, host, pool)
	if err := s.setExtraDisks(vm, v.ExtraDisks); err != nil {
		return nil, err
	}
	s.locked(ds, func() { ds.Vm = append(ds.Vm, vm.Self) })

	s.guests.put(vm.Self, v)
	s.setGuest(vm, v)
	s.locked(folder, func() { folder.ChildEntity = append(folder.ChildEntity, vm.Self) })
	s.reg().PutEntity(folder, vm)
	return vm, s.setSnapshots(vm, v.Snapshots)
}

// blank sets the constant fields of every VM. Pointers that govmomi's methods follow are never nil.
func (s *Sim) blank(vm *simulator.VirtualMachine, dir, name string) {
	now := time.Now()
	res := types.DefaultResourceConfigSpec()
	vm.Config = &types.VirtualMachineConfigInfo{
		ChangeVersion: now.Format(time.RFC3339Nano), Modified: now, CreateDate: &now,
		Tools: &types.ToolsConfigInfo{}, BootOptions: &types.VirtualMachineBootOptions{}, Firmware: "efi",
		CpuAllocation: &res.CpuAllocation, MemoryAllocation: &res.MemoryAllocation,
		LatencySensitivity: &types.LatencySensitivity{Level: types.LatencySensitivitySensitivityLevelNormal},
		Files: types.VirtualMachineFileInfo{VmPathName: dir + "/" + name + ".vmx", SnapshotDirectory: dir + "/",
			SuspendDirectory: dir + "/", LogDirectory: dir + "/"},
		Flags: types.VirtualMachineFlagInfo{EnableLogging: types.NewBool(true), DiskUuidEnabled: types.NewBool(false)},
	}
	vm.Guest = &types.GuestInfo{}
	vm.Layout = &types.VirtualMachineFileLayout{}
	vm.LayoutEx = &types.VirtualMachineFileLayoutEx{Timestamp: now}
	vm.Storage = &types.VirtualMachineStorageInfo{Timestamp: now}
	vm.Runtime.ConnectionState = types.VirtualMachineConnectionStateConnected
	vm.Runtime.FaultToleranceState = types.VirtualMachineFaultToleranceStateNotConfigured
	vm.Runtime.RecordReplayState = types.VirtualMachineRecordReplayStateInactive
	vm.Summary.Guest = &types.VirtualMachineGuestSummary{}
	vm.Summary.Storage = &types.VirtualMachineStorageSummary{Timestamp: now}
	vm.Summary.OverallStatus = types.ManagedEntityStatusGreen
	vm.Summary.QuickStats.GuestHeartbeatStatus = types.ManagedEntityStatusGreen
	vm.Summary.Config.VmPathName = vm.Config.Files.VmPathName
}

// setVM writes name, identity, size and settings, in every property that has them.
func (s *Sim) setVM(vm *simulator.VirtualMachine, v VM) {
	c, sum := vm.Config, &vm.Summary.Config
	vm.Name, c.Name, sum.Name = v.Name, v.Name, v.Name
	c.Uuid, sum.Uuid = v.UUID, v.UUID
	c.InstanceUuid, sum.InstanceUuid = v.InstanceUUID, v.InstanceUUID
	c.Version, sum.HwVersion = v.Version, v.Version
	c.GuestId, sum.GuestId = v.GuestID, v.GuestID
	c.GuestFullName, sum.GuestFullName = guestName(v.GuestID), guestName(v.GuestID)
	c.Template, sum.Template = v.Template, v.Template
	c.Hardware.NumCPU, sum.NumCpu, c.Hardware.NumCoresPerSocket = v.CPUs, v.CPUs, types.NewInt32(1)
	c.Hardware.MemoryMB, sum.MemorySizeMB = v.MemoryMiB, v.MemoryMiB
	c.Flags.DiskUuidEnabled = types.NewBool(*v.DiskUUID)
	extra := maps.Clone(v.ExtraConfig)
	if extra == nil {
		extra = map[string]string{}
	}
	setExtra(extra, diskUUIDKey, strings.ToUpper(fmt.Sprint(*v.DiskUUID)), *v.DiskUUID)
	c.ExtraConfig = nil
	for _, k := range slices.Sorted(maps.Keys(extra)) {
		c.ExtraConfig = append(c.ExtraConfig, &types.OptionValue{Key: k, Value: extra[k]})
	}
	state := powerState[v.Power]
	vm.Runtime.PowerState = state
	if state == types.VirtualMachinePowerStatePoweredOn {
		if vm.Runtime.BootTime == nil {
			vm.Runtime.BootTime = types.NewTime(time.Now())
		}
	} else {
		vm.Runtime.BootTime = nil
	}
	vm.Summary.Runtime = vm.Runtime
}

const diskUUIDKey = "disk.EnableUUID"

// setExtra writes a key of the extra configuration, in any case: an existing spelling stays, and a missing key is added only
// on request.
func setExtra(extra map[string]string, key, value string, add bool) {
	for k := range extra {
		if strings.EqualFold(k, key) {
			extra[k] = value
			return
		}
	}
	if add {
		extra[key] = value
	}
}

var powerState = map[string]types.VirtualMachinePowerState{
	"on": types.VirtualMachinePowerStatePoweredOn, "off": types.VirtualMachinePowerStatePoweredOff,
	"suspended": types.VirtualMachinePowerStateSuspended,
}

var guestNames = map[string]string{
	"ubuntu64Guest": "Ubuntu Linux (64-bit)", "rhel9_64Guest": "Red Hat Enterprise Linux 9 (64-bit)",
	"rhel8_64Guest": "Red Hat Enterprise Linux 8 (64-bit)", "coreos64Guest": "CoreOS Linux (64-bit)",
	"vmwarePhoton64Guest": "VMware Photon OS (64-bit)", "otherLinux64Guest": "Other Linux (64-bit)",
	"windows2019srvNext_64Guest": "Microsoft Windows Server 2022 (64-bit)",
}

func guestName(id string) string {
	if n := guestNames[id]; n != "" {
		return n
	}
	return id
}

// place moves a VM to a host and a pool: a vMotion.
func (s *Sim) place(vm *simulator.VirtualMachine, host *simulator.HostSystem, pool *simulator.ResourcePool) {
	if old := vm.Runtime.Host; old != nil && *old != host.Self {
		if h, ok := s.reg().Get(*old).(*simulator.HostSystem); ok {
			s.member(h, &h.Vm, vm.Self, false)
		}
	}
	if old := vm.ResourcePool; old != nil && *old != pool.Self {
		if rp, ok := s.reg().Get(*old).(*simulator.ResourcePool); ok {
			s.member(rp, &rp.Vm, vm.Self, false)
		}
	}
	if vm.Runtime.Host == nil { // a new VM is in no list: this avoids a lookup for each of 5,000
		s.locked(host, func() { host.Vm = append(host.Vm, vm.Self) })
		s.locked(pool, func() { pool.Vm = append(pool.Vm, vm.Self) })
	} else {
		s.member(host, &host.Vm, vm.Self, true)
		s.member(pool, &pool.Vm, vm.Self, true)
	}
	if at := host.Self; vm.Runtime.Host == nil || *vm.Runtime.Host != at {
		vm.Runtime.Host, vm.Summary.Runtime.Host = &at, &at
	}
	if in := pool.Self; vm.ResourcePool == nil || *vm.ResourcePool != in {
		vm.ResourcePool = &in
	}
	vm.EnvironmentBrowser = *s.computeResource(*host.Parent).EnvironmentBrowser
	s.setConnection(vm)
	s.journal.touch(host.Self, pool.Self, vm.Self)
}

// setConnection sets the connection state of a locked VM: it is disconnected with its host, and inaccessible without its
// datastore.
func (s *Sim) setConnection(vm *simulator.VirtualMachine) {
	state := types.VirtualMachineConnectionStateConnected
	if len(vm.Datastore) > 0 {
		if ds, ok := s.reg().Get(vm.Datastore[0]).(*simulator.Datastore); ok && !ds.Summary.Accessible {
			state = types.VirtualMachineConnectionStateInaccessible
		}
	}
	if vm.Runtime.Host != nil {
		if h, ok := s.reg().Get(*vm.Runtime.Host).(*simulator.HostSystem); ok && h.Runtime.ConnectionState != types.HostSystemConnectionStateConnected {
			state = types.VirtualMachineConnectionStateDisconnected
		}
	}
	vm.Runtime.ConnectionState, vm.Summary.Runtime.ConnectionState = state, state
}

// reconnect updates the state of VMs after their host or datastore changed.
func (s *Sim) reconnect(vms []ref) {
	for _, r := range vms {
		if vm, ok := s.reg().Get(r).(*simulator.VirtualMachine); ok {
			s.locked(vm, func() { s.setConnection(vm) })
			s.journal.touch(r)
		}
	}
}

// setSnapshots sets the VM's chain of snapshots, oldest first.
func (s *Sim) setSnapshots(vm *simulator.VirtualMachine, names []string) error {
	if slices.Equal(names, snapshotNames(vm)) {
		return nil
	}
	if vm.Snapshot != nil {
		body := vm.RemoveAllSnapshotsTask(s.ctx(), &types.RemoveAllSnapshots_Task{This: vm.Self}).(*methods.RemoveAllSnapshots_TaskBody)
		if _, fault := s.finish(body.Res.Returnval); fault != nil {
			return fmt.Errorf("snapshots: %T", fault)
		}
	}
	for _, name := range names {
		body := vm.CreateSnapshotExTask(s.ctx(), &types.CreateSnapshotEx_Task{This: vm.Self, Name: name}).(*methods.CreateSnapshotEx_TaskBody)
		if _, fault := s.finish(body.Res.Returnval); fault != nil {
			return fmt.Errorf("snapshots: %T", fault)
		}
	}
	s.journal.touch(vm.Self)
	return nil
}

func snapshotNames(vm *simulator.VirtualMachine) (names []string) {
	var walk func([]types.VirtualMachineSnapshotTree)
	walk = func(tree []types.VirtualMachineSnapshotTree) {
		for _, t := range tree {
			names = append(names, t.Name)
			walk(t.ChildSnapshotList)
		}
	}
	if vm.Snapshot != nil {
		walk(vm.Snapshot.RootSnapshotList)
	}
	return names
}
