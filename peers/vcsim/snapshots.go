package main

import (
	cnsmethods "github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// CnsCreateSnapshots reports an unknown volume as the fault of that volume.
func (c *volumes) CnsCreateSnapshots(ctx *simulator.Context, req *cnstypes.CnsCreateSnapshots) soap.HasFault {
	task := c.batch(ctx, cnsTaskEntity, "CnsCreateSnapshots", len(req.SnapshotSpecs), func(vctx *simulator.Context, i int) result {
		spec := req.SnapshotSpecs[i]
		if c.find(spec.VolumeId) == nil {
			return failed(spec.VolumeId, &cnstypes.CnsVolumeNotFoundFault{VolumeId: spec.VolumeId})
		}
		body := c.CnsVolumeManager.CnsCreateSnapshots(vctx, &cnstypes.CnsCreateSnapshots{This: c.Reference(), SnapshotSpecs: []cnstypes.CnsSnapshotCreateSpec{spec}})
		out := inner(vctx, spec.VolumeId, body.(*cnsmethods.CnsCreateSnapshotsBody).Res.Returnval)
		if made, ok := out.(*cnstypes.CnsSnapshotCreateResult); ok && made.Fault == nil {
			out = c.copyData(spec.VolumeId, diskUUID(spec.VolumeId.Id), made.Snapshot.SnapshotId.Id, out)
		}
		return out
	})
	return &cnsmethods.CnsCreateSnapshotsBody{Res: &cnstypes.CnsCreateSnapshotsResponse{Returnval: task}}
}

// CnsDeleteSnapshots reports an unknown volume or snapshot as a fault.
func (c *volumes) CnsDeleteSnapshots(ctx *simulator.Context, req *cnstypes.CnsDeleteSnapshots) soap.HasFault {
	task := c.batch(ctx, cnsTaskEntity, "CnsDeleteSnapshots", len(req.SnapshotDeleteSpecs), func(vctx *simulator.Context, i int) result {
		spec := req.SnapshotDeleteSpecs[i]
		if c.find(spec.VolumeId) == nil {
			return failed(spec.VolumeId, &cnstypes.CnsVolumeNotFoundFault{VolumeId: spec.VolumeId})
		}
		if len(c.snapshots(vctx, spec.VolumeId, &spec.SnapshotId)) == 0 {
			return failed(spec.VolumeId, &cnstypes.CnsSnapshotNotFoundFault{VolumeId: spec.VolumeId, SnapshotId: spec.SnapshotId})
		}
		body := c.CnsVolumeManager.CnsDeleteSnapshots(vctx, &cnstypes.CnsDeleteSnapshots{This: c.Reference(), SnapshotDeleteSpecs: []cnstypes.CnsSnapshotDeleteSpec{spec}})
		return inner(vctx, spec.VolumeId, body.(*cnsmethods.CnsDeleteSnapshotBody).Res.Returnval)
	})
	return &cnsmethods.CnsDeleteSnapshotBody{Res: &cnstypes.CnsDeleteSnapshotsResponse{Returnval: task}}
}

// snapshots lists the snapshots of a volume, or the one that is given.
func (c *volumes) snapshots(vctx *simulator.Context, volume cnstypes.CnsVolumeId, one *cnstypes.CnsSnapshotId) (found []cnstypes.CnsSnapshot) {
	filter := cnstypes.CnsSnapshotQueryFilter{SnapshotQuerySpecs: []cnstypes.CnsSnapshotQuerySpec{{VolumeId: volume, SnapshotId: one}}}
	body := c.CnsVolumeManager.CnsQuerySnapshots(vctx, &cnstypes.CnsQuerySnapshots{This: c.Reference(), SnapshotQueryFilter: filter})
	task := vctx.Map.Get(body.(*cnsmethods.CnsQuerySnapshotsBody).Res.Returnval).(*simulator.Task)
	task.Wait()
	answer, ok := task.Info.Result.(*cnstypes.CnsSnapshotQueryResult)
	if !ok {
		return nil
	}
	for _, entry := range answer.Entries {
		if entry.Error == nil {
			found = append(found, entry.Snapshot)
		}
	}
	return found
}

// sourceProblem says why a volume cannot be created from a snapshot: it does not exist, or the sizes differ.
func (c *volumes) sourceProblem(vctx *simulator.Context, spec cnstypes.CnsVolumeCreateSpec) types.BaseMethodFault {
	source, ok := spec.VolumeSource.(*cnstypes.CnsSnapshotVolumeSource)
	if !ok {
		return nil
	}
	volume := c.find(source.VolumeId)
	if volume == nil {
		return &cnstypes.CnsVolumeNotFoundFault{VolumeId: source.VolumeId}
	}
	if len(c.snapshots(vctx, source.VolumeId, &source.SnapshotId)) == 0 {
		return &cnstypes.CnsSnapshotNotFoundFault{VolumeId: source.VolumeId, SnapshotId: source.SnapshotId}
	}
	wanted := spec.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb
	if wanted != volume.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb {
		return &types.InvalidArgument{InvalidProperty: "capacityInMb"}
	}
	return nil
}

// CnsReconfigVolumePolicy sets the storage policy of volumes.
func (c *volumes) CnsReconfigVolumePolicy(ctx *simulator.Context, req *cnstypes.CnsReconfigVolumePolicy) soap.HasFault {
	task := c.batch(ctx, cnsTaskEntity, "CnsReconfigVolumePolicy", len(req.VolumePolicyReconfigSpecs), func(_ *simulator.Context, i int) result {
		spec := req.VolumePolicyReconfigSpecs[i]
		if c.find(spec.VolumeId) == nil {
			return failed(spec.VolumeId, &cnstypes.CnsVolumeNotFoundFault{VolumeId: spec.VolumeId})
		}
		profile, ok := firstProfile(spec.Profile)
		if !ok {
			return failed(spec.VolumeId, &types.InvalidArgument{InvalidProperty: "profile"})
		}
		c.mu.Lock()
		c.policies[spec.VolumeId.Id] = profile
		c.mu.Unlock()
		return &cnstypes.CnsVolumeOperationResult{VolumeId: spec.VolumeId}
	})
	return &cnsmethods.CnsReconfigVolumePolicyBody{Res: &cnstypes.CnsReconfigVolumePolicyResponse{Returnval: task}}
}

func firstProfile(profiles []types.BaseVirtualMachineProfileSpec) (string, bool) {
	for _, p := range profiles {
		if defined, ok := p.(*types.VirtualMachineDefinedProfileSpec); ok {
			return defined.ProfileId, true
		}
	}
	return "", false
}
