package main

import (
	"fmt"
	"slices"
	"strings"

	cnsmethods "github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// A VM has up to four SCSI controllers. One unit belongs to the controller, so fifteen disks fit on each, or 64 on a
// host of release 8.0 or newer.
const controllersPerVM, unitsPerController, manyUnits, reservedUnit = 4, 16, 65, 7

func (s *Sim) units(vm *simulator.VirtualMachine) int32 {
	if vm.Runtime.Host != nil {
		if host, ok := s.reg().Get(*vm.Runtime.Host).(*simulator.HostSystem); ok {
			if major, _, _ := strings.Cut(host.Config.Product.Version, "."); len(major) > 1 || major >= "8" {
				return manyUnits
			}
		}
	}
	return unitsPerController
}

// attachedTo is the VM of a volume, nil if it is not attached. The devices decide: the VM can be destroyed, or a
// reconfiguration can have removed the disk.
func (c *volumes) attachedTo(id string) *ref {
	c.mu.Lock()
	r, noted := c.attached[id]
	c.mu.Unlock()
	if !noted {
		return nil
	}
	if vm, ok := c.sim.reg().Get(r).(*simulator.VirtualMachine); ok && volumeDisk(vm, id) != nil {
		return &r
	}
	c.note(id, nil)
	return nil
}

func (c *volumes) note(id string, vm *ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if vm == nil {
		delete(c.attached, id)
	} else {
		c.attached[id] = *vm
	}
}

func volumeDisk(vm *simulator.VirtualMachine, id string) *types.VirtualDisk {
	for _, d := range device[*types.VirtualDisk](vm) {
		if d.VDiskId != nil && d.VDiskId.Id == id {
			return d
		}
	}
	return nil
}

func (c *volumes) CnsAttachVolume(_ *simulator.Context, req *cnstypes.CnsAttachVolume) soap.HasFault {
	entity := cnsTaskEntity
	if len(req.AttachSpecs) > 0 {
		entity = req.AttachSpecs[0].Vm
	}
	task := c.batch(entity, "CnsAttachVolume", len(req.AttachSpecs), func(i int) (out result) {
		spec := req.AttachSpecs[i]
		vm, ok := c.sim.reg().Get(spec.Vm).(*simulator.VirtualMachine)
		if !ok {
			return failed(spec.VolumeId, &types.ManagedObjectNotFound{Obj: spec.Vm})
		}
		c.sim.locked(vm, func() { out = c.attach(vm, spec) })
		attached := out.GetCnsVolumeOperationResult().Fault == nil
		if out = c.tellAgent("attach", vm, out); attached && out.GetCnsVolumeOperationResult().Fault != nil {
			c.sim.locked(vm, func() { c.detach(vm, spec.VolumeId) })
		}
		c.sim.journal.touch(vm.Self)
		return out
	})
	return &cnsmethods.CnsAttachVolumeBody{Res: &cnstypes.CnsAttachVolumeResponse{Returnval: task}}
}

// attach adds the volume's disk to a VM that the caller has locked.
func (c *volumes) attach(vm *simulator.VirtualMachine, spec cnstypes.CnsVolumeAttachDetachSpec) result {
	c.attaching.Lock()
	defer c.attaching.Unlock()
	id := spec.VolumeId
	volume := c.find(id)
	if volume == nil {
		return failed(id, &cnstypes.CnsVolumeNotFoundFault{VolumeId: id})
	}
	if holder := c.attachedTo(id.Id); holder != nil {
		return failed(id, &types.ResourceInUse{Type: holder.Type, Name: id.Id})
	}
	ds := c.sim.datastoreAt(volume.DatastoreUrl)
	if ds == nil || !slices.ContainsFunc(ds.Host, func(m types.DatastoreHostMount) bool {
		return vm.Runtime.Host != nil && m.Key == *vm.Runtime.Host && m.MountInfo.Accessible != nil && *m.MountInfo.Accessible
	}) {
		return failed(id, &cnstypes.CnsFault{Reason: "CNS: Failed to attach disk: the host of the VM has no access to the volume's datastore"})
	}
	controller, unit := c.sim.freeUnit(vm)
	if controller == nil {
		return failed(id, &cnstypes.CnsFault{Reason: "CNS: Failed to attach disk because missing SCSI controller",
			MethodFault: types.MethodFault{FaultCause: &types.LocalizedMethodFault{Fault: &types.MissingController{}}}})
	}
	uuid := diskUUID(id.Id)
	details := volume.BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails)
	mode := spec.DiskMode
	or(&mode, string(types.VirtualDiskModeIndependent_persistent))
	disk := &types.VirtualDisk{CapacityInBytes: details.CapacityInMb << 20, CapacityInKB: details.CapacityInMb << 10, VDiskId: &types.ID{Id: id.Id}}
	disk.Key, disk.ControllerKey, disk.UnitNumber = freeKey(vm, firstDisk), controller.Key, &unit
	disk.DeviceInfo = &types.Description{Label: fmt.Sprintf("Hard disk %d", disk.Key-firstDisk+1), Summary: fmt.Sprintf("%d KB", disk.CapacityInKB)}
	backing := &types.VirtualDiskFlatVer2BackingInfo{DiskMode: mode, Uuid: uuid, ThinProvisioned: types.NewBool(true), Sharing: spec.Sharing}
	backing.FileName, backing.Datastore, backing.BackingObjectId = details.BackingDiskPath, &ds.Self, &id.Id
	disk.Backing = backing

	addDevice(vm, controller, disk)
	setMember(&vm.Datastore, ds.Self, true)
	c.note(id.Id, &vm.Self)
	c.sim.changeDisk(id.Id, func(o *simulator.VStorageObject) { o.Config.ConsumerId = []types.ID{{Id: vm.Config.InstanceUuid}} })
	return &cnstypes.CnsVolumeAttachResult{CnsVolumeOperationResult: cnstypes.CnsVolumeOperationResult{VolumeId: id},
		DiskUUID: plainUUID(uuid)}
}

func plainUUID(uuid string) string { return strings.ToLower(strings.ReplaceAll(uuid, "-", "")) }

// freeUnit is a free unit on a paravirtual controller. If all are full it adds a controller, like CNS, up to four; then
// there is none.
func (s *Sim) freeUnit(vm *simulator.VirtualMachine) (*types.VirtualSCSIController, int32) {
	buses := map[int32]bool{}
	for _, d := range device[types.BaseVirtualSCSIController](vm) {
		base := d.GetVirtualSCSIController()
		buses[base.BusNumber] = true
		if _, paravirtual := d.(*types.ParaVirtualSCSIController); !paravirtual {
			continue
		}
		taken := map[int32]bool{reservedUnit: true}
		for _, o := range vm.Config.Hardware.Device {
			if v := o.GetVirtualDevice(); v.ControllerKey == base.Key && v.UnitNumber != nil {
				taken[*v.UnitNumber] = true
			}
		}
		for unit := range s.units(vm) {
			if !taken[unit] {
				return base, unit
			}
		}
	}
	for bus := range int32(controllersPerVM) {
		if !buses[bus] && len(buses) < controllersPerVM {
			added := newController("pvscsi", bus)
			vm.Config.Hardware.Device = append(slices.Clone(vm.Config.Hardware.Device), added)
			return added.(types.BaseVirtualSCSIController).GetVirtualSCSIController(), 0
		}
	}
	return nil, 0
}

func freeKey(vm *simulator.VirtualMachine, from int32) int32 {
	for slices.ContainsFunc(vm.Config.Hardware.Device, func(d types.BaseVirtualDevice) bool { return d.GetVirtualDevice().Key == from }) {
		from++
	}
	return from
}

// CnsQueryVolumeInfo names the VM that has the disk. A VM that was destroyed has none.
func (c *volumes) CnsQueryVolumeInfo(_ *simulator.Context, req *cnstypes.CnsQueryVolumeInfo) soap.HasFault {
	task := c.sim.run(cnsTaskEntity, "CnsQueryVolumeInfo", func() (types.AnyType, types.BaseMethodFault) {
		out := &cnstypes.CnsVolumeOperationBatchResult{}
		for _, id := range req.VolumeIds {
			if c.attachedTo(id.Id) == nil {
				c.sim.changeDisk(id.Id, func(o *simulator.VStorageObject) { o.Config.ConsumerId = nil })
			}
			if disk := c.sim.diskObject(id.Id); disk != nil {
				out.VolumeResults = append(out.VolumeResults, &cnstypes.CnsQueryVolumeInfoResult{
					CnsVolumeOperationResult: cnstypes.CnsVolumeOperationResult{VolumeId: id},
					VolumeInfo:               &cnstypes.CnsBlockVolumeInfo{VStorageObject: disk.VStorageObject}})
			}
		}
		return out, nil
	})
	return &cnsmethods.CnsQueryVolumeInfoBody{Res: &cnstypes.CnsQueryVolumeInfoResponse{Returnval: task}}
}

func (c *volumes) CnsDetachVolume(_ *simulator.Context, req *cnstypes.CnsDetachVolume) soap.HasFault {
	entity := cnsTaskEntity
	if len(req.DetachSpecs) > 0 {
		entity = req.DetachSpecs[0].Vm
	}
	task := c.batch(entity, "CnsDetachVolume", len(req.DetachSpecs), func(i int) (out result) {
		spec := req.DetachSpecs[i]
		vm, ok := c.sim.reg().Get(spec.Vm).(*simulator.VirtualMachine)
		if !ok {
			return failed(spec.VolumeId, &types.ManagedObjectNotFound{Obj: spec.Vm})
		}
		c.sim.locked(vm, func() { out = c.detach(vm, spec.VolumeId) })
		c.sim.journal.touch(vm.Self)
		return c.tellAgent("detach", vm, out)
	})
	return &cnsmethods.CnsDetachVolumeBody{Res: &cnstypes.CnsDetachVolumeResponse{Returnval: task}}
}

// detach removes the volume's disk from a VM that the caller has locked.
func (c *volumes) detach(vm *simulator.VirtualMachine, id cnstypes.CnsVolumeId) result {
	disk := volumeDisk(vm, id.Id)
	if disk == nil {
		return failed(id, &types.NotFound{})
	}
	removeDisk(vm, disk.Key)
	if len(vm.Datastore) > 0 {
		used := []ref{vm.Datastore[0]} // of the VM itself
		for _, d := range device[*types.VirtualDisk](vm) {
			if b, ok := d.Backing.(*types.VirtualDiskFlatVer2BackingInfo); ok && b.Datastore != nil {
				setMember(&used, *b.Datastore, true)
			}
		}
		vm.Datastore = used
	}
	c.note(id.Id, nil)
	c.sim.changeDisk(id.Id, func(o *simulator.VStorageObject) { o.Config.ConsumerId = nil })
	return &cnstypes.CnsVolumeOperationResult{VolumeId: id}
}

// resize sets the size of the disk of an attached volume.
func (c *volumes) resize(id string, megabytes int64, done result) result {
	holder := c.attachedTo(id)
	if holder == nil {
		return done
	}
	if vm, ok := c.sim.reg().Get(*holder).(*simulator.VirtualMachine); ok {
		c.sim.locked(vm, func() {
			if d := volumeDisk(vm, id); d != nil {
				d.CapacityInBytes, d.CapacityInKB = megabytes<<20, megabytes<<10
			}
		})
		c.sim.journal.touch(vm.Self)
		return c.tellAgent("extend", vm, done)
	}
	return done
}
