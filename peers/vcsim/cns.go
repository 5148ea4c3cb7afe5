package main

import (
	"strings"

	"github.com/vmware/govmomi/cns"
	cnsmethods "github.com/vmware/govmomi/cns/methods"
	cnssim "github.com/vmware/govmomi/cns/simulator"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// volumes wraps govmomi's CNS: attach and detach really change the VM.
type volumes struct{ *cnssim.CnsVolumeManager }

func wrapCNS(reg *simulator.Registry) {
	reg.Put(&volumes{reg.Get(cns.CnsVolumeManagerInstance).(*cnssim.CnsVolumeManager)})
}

func outcome(ctx *simulator.Context, task ref) (types.AnyType, types.BaseMethodFault) {
	t := ctx.Map.Get(task).(*simulator.Task)
	t.Wait()
	if t.Info.Error != nil {
		return nil, t.Info.Error.Fault
	}
	return t.Info.Result, nil
}

func reconfigure(ctx *simulator.Context, vm *simulator.VirtualMachine, op types.VirtualDeviceConfigSpecOperation, d types.BaseVirtualDevice) types.BaseMethodFault {
	b := vm.ReconfigVMTask(ctx, &types.ReconfigVM_Task{This: vm.Self, Spec: types.VirtualMachineConfigSpec{
		DeviceChange: []types.BaseVirtualDeviceConfigSpec{&types.VirtualDeviceConfigSpec{Operation: op, Device: d}}}}).(*methods.ReconfigVM_TaskBody)
	_, f := outcome(ctx, b.Res.Returnval)
	return f
}

func (c *volumes) CnsAttachVolume(ctx *simulator.Context, req *cnstypes.CnsAttachVolume) soap.HasFault {
	vctx := ctx.For(vim25.Path)
	// The task stands on the VM, not on us: the inner task takes our lock under another context.
	task := simulator.CreateTask(req.AttachSpecs[0].Vm, "CnsAttachVolume", func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		base := c.CnsVolumeManager.CnsAttachVolume(ctx, req).(*cnsmethods.CnsAttachVolumeBody)
		res, fault := outcome(vctx, base.Res.Returnval)
		if fault != nil {
			return nil, fault
		}
		batch := res.(*cnstypes.CnsVolumeOperationBatchResult)
		for i, spec := range req.AttachSpecs {
			found := c.CnsVolumeManager.CnsQueryVolume(ctx, &cnstypes.CnsQueryVolume{Filter: &cnstypes.CnsQueryFilter{
				VolumeIds: []cnstypes.CnsVolumeId{spec.VolumeId}}}).(*cnsmethods.CnsQueryVolumeBody).Res.Returnval.Volumes
			if len(found) != 1 {
				return nil, &types.NotFound{}
			}
			backing := found[0].BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails)
			vm := vctx.Map.Get(spec.Vm).(*simulator.VirtualMachine)
			devices := object.VirtualDeviceList(vm.Config.Hardware.Device)
			controller := devices.PickController((*types.ParaVirtualSCSIController)(nil))
			if controller == nil {
				return nil, &types.InvalidDeviceSpec{}
			}
			uuid := diskUUID(spec.VolumeId.Id)
			disk := &types.VirtualDisk{CapacityInBytes: backing.CapacityInMb << 20, VDiskId: &types.ID{Id: spec.VolumeId.Id}}
			disk.Backing = &types.VirtualDiskFlatVer2BackingInfo{VirtualDeviceFileBackingInfo: types.VirtualDeviceFileBackingInfo{FileName: backing.BackingDiskPath},
				DiskMode: string(types.VirtualDiskModeIndependent_persistent), Uuid: uuid, ThinProvisioned: types.NewBool(true)}
			devices.AssignController(disk, controller)
			if f := reconfigure(vctx, vm, types.VirtualDeviceConfigSpecOperationAdd, disk); f != nil {
				return nil, f
			}
			batch.VolumeResults[i].(*cnstypes.CnsVolumeAttachResult).DiskUUID = strings.ToLower(strings.ReplaceAll(uuid, "-", ""))
		}
		return batch, nil
	})
	return &cnsmethods.CnsAttachVolumeBody{Res: &cnstypes.CnsAttachVolumeResponse{Returnval: task.Run(vctx)}}
}

func (c *volumes) CnsDetachVolume(ctx *simulator.Context, req *cnstypes.CnsDetachVolume) soap.HasFault {
	vctx := ctx.For(vim25.Path)
	task := simulator.CreateTask(req.DetachSpecs[0].Vm, "CnsDetachVolume", func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		base := c.CnsVolumeManager.CnsDetachVolume(ctx, req).(*cnsmethods.CnsDetachVolumeBody)
		res, fault := outcome(vctx, base.Res.Returnval)
		if fault != nil {
			return nil, fault
		}
		for _, spec := range req.DetachSpecs {
			vm := vctx.Map.Get(spec.Vm).(*simulator.VirtualMachine)
			for _, d := range vm.Config.Hardware.Device {
				if disk, ok := d.(*types.VirtualDisk); ok && disk.VDiskId != nil && disk.VDiskId.Id == spec.VolumeId.Id {
					if f := reconfigure(vctx, vm, types.VirtualDeviceConfigSpecOperationRemove, disk); f != nil {
						return nil, f
					}
					break
				}
			}
		}
		return res, nil
	})
	return &cnsmethods.CnsDetachVolumeBody{Res: &cnstypes.CnsDetachVolumeResponse{Returnval: task.Run(vctx)}}
}
