package main

import (
	"slices"
	"time"

	cnsmethods "github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// CnsCreateSnapshots reports an unknown volume as the fault of that volume.
func (c *volumes) CnsCreateSnapshots(_ *simulator.Context, req *cnstypes.CnsCreateSnapshots) soap.HasFault {
	task := c.batch(cnsTaskEntity, "CnsCreateSnapshots", len(req.SnapshotSpecs), func(i int) result {
		spec := req.SnapshotSpecs[i]
		made := cnstypes.CnsSnapshot{SnapshotId: cnstypes.CnsSnapshotId{Id: newToken()}, VolumeId: spec.VolumeId, Description: spec.Description, CreateTime: time.Now()}
		if !c.change(spec.VolumeId, func(v *volume) { v.snapshots = append(v.snapshots, made) }) {
			return failed(spec.VolumeId, &cnstypes.CnsVolumeNotFoundFault{VolumeId: spec.VolumeId})
		}
		out := &cnstypes.CnsSnapshotCreateResult{Snapshot: made}
		out.VolumeId = spec.VolumeId
		return c.copyData(spec.VolumeId, diskUUID(spec.VolumeId.Id), made.SnapshotId.Id, out)
	})
	return &cnsmethods.CnsCreateSnapshotsBody{Res: &cnstypes.CnsCreateSnapshotsResponse{Returnval: task}}
}

// CnsDeleteSnapshots reports an unknown volume or snapshot as a fault.
func (c *volumes) CnsDeleteSnapshots(_ *simulator.Context, req *cnstypes.CnsDeleteSnapshots) soap.HasFault {
	task := c.batch(cnsTaskEntity, "CnsDeleteSnapshots", len(req.SnapshotDeleteSpecs), func(i int) result {
		spec := req.SnapshotDeleteSpecs[i]
		before, after := 0, 0
		known := c.change(spec.VolumeId, func(v *volume) {
			before = len(v.snapshots)
			v.snapshots = slices.DeleteFunc(slices.Clone(v.snapshots), func(s cnstypes.CnsSnapshot) bool { return s.SnapshotId == spec.SnapshotId })
			after = len(v.snapshots)
		})
		if !known {
			return failed(spec.VolumeId, &cnstypes.CnsVolumeNotFoundFault{VolumeId: spec.VolumeId})
		}
		if before == after {
			return failed(spec.VolumeId, &cnstypes.CnsSnapshotNotFoundFault{VolumeId: spec.VolumeId, SnapshotId: spec.SnapshotId})
		}
		out := &cnstypes.CnsSnapshotDeleteResult{SnapshotId: spec.SnapshotId}
		out.VolumeId = spec.VolumeId
		return out
	})
	return &cnsmethods.CnsDeleteSnapshotBody{Res: &cnstypes.CnsDeleteSnapshotsResponse{Returnval: task}}
}

// page cuts the page of a cursor out of a list.
func page(out *cnstypes.CnsSnapshotQueryResult, at *cnstypes.CnsCursor) {
	total := int64(len(out.Entries))
	from, to := min(max(at.Offset, 0), total), total
	if at.Limit > 0 {
		to = min(from+at.Limit, total)
	}
	out.Entries = out.Entries[from:to]
	out.Cursor = cnstypes.CnsCursor{Offset: to, Limit: at.Limit, TotalRecords: total}
}

// CnsQuerySnapshots lists the snapshots of one volume, or of all, and honours the cursor.
func (c *volumes) CnsQuerySnapshots(_ *simulator.Context, req *cnstypes.CnsQuerySnapshots) soap.HasFault {
	task := c.sim.run(cnsTaskEntity, "CnsQuerySnapshots", func() (types.AnyType, types.BaseMethodFault) {
		specs := req.SnapshotQueryFilter.SnapshotQuerySpecs
		if len(specs) > 1 {
			return nil, &types.InvalidArgument{InvalidProperty: "CnsSnapshotQuerySpec"}
		}
		out := &cnstypes.CnsSnapshotQueryResult{}
		add := func(all []cnstypes.CnsSnapshot) {
			for _, s := range all {
				out.Entries = append(out.Entries, cnstypes.CnsSnapshotQueryResultEntry{Snapshot: s})
			}
		}
		refuse := func(fault types.BaseMethodFault) {
			out.Entries = append(out.Entries, cnstypes.CnsSnapshotQueryResultEntry{Error: &types.LocalizedMethodFault{Fault: fault}})
		}
		if len(specs) == 0 {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, id := range c.sorted {
				add(c.all[id].snapshots)
			}
			if cursor := req.SnapshotQueryFilter.Cursor; cursor != nil {
				page(out, cursor)
			}
			return out, nil
		}
		id, one := specs[0].VolumeId, specs[0].SnapshotId
		v := c.find(id)
		switch {
		case v == nil:
			refuse(&cnstypes.CnsVolumeNotFoundFault{VolumeId: id})
		case one == nil || one.Id == "":
			add(v.snapshots)
		case v.snapshot(*one) == nil:
			refuse(&cnstypes.CnsSnapshotNotFoundFault{VolumeId: id, SnapshotId: *one})
		default:
			add([]cnstypes.CnsSnapshot{*v.snapshot(*one)})
		}
		return out, nil
	})
	return &cnsmethods.CnsQuerySnapshotsBody{Res: &cnstypes.CnsQuerySnapshotsResponse{Returnval: task}}
}

func (v *volume) snapshot(id cnstypes.CnsSnapshotId) *cnstypes.CnsSnapshot {
	for _, s := range v.snapshots {
		if s.SnapshotId == id {
			return &s
		}
	}
	return nil
}

// sourceProblem says why a volume cannot be created from a snapshot: it does not exist, or the sizes differ.
func (c *volumes) sourceProblem(spec cnstypes.CnsVolumeCreateSpec) types.BaseMethodFault {
	source, ok := spec.VolumeSource.(*cnstypes.CnsSnapshotVolumeSource)
	if !ok {
		return nil
	}
	v := c.find(source.VolumeId)
	if v == nil {
		return &cnstypes.CnsVolumeNotFoundFault{VolumeId: source.VolumeId}
	}
	if v.snapshot(source.SnapshotId) == nil {
		return &cnstypes.CnsSnapshotNotFoundFault{VolumeId: source.VolumeId, SnapshotId: source.SnapshotId}
	}
	if len(spec.Datastores) > 0 && !slices.Contains(spec.Datastores, v.datastore) {
		return &cnstypes.CnsFault{Reason: "CNS: Failed to create the volume: the source is on another datastore"}
	}
	if spec.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb != v.megabytes() {
		return &types.InvalidArgument{InvalidProperty: "capacityInMb"}
	}
	return nil
}

// CnsReconfigVolumePolicy sets the storage policy of volumes.
func (c *volumes) CnsReconfigVolumePolicy(_ *simulator.Context, req *cnstypes.CnsReconfigVolumePolicy) soap.HasFault {
	task := c.batch(cnsTaskEntity, "CnsReconfigVolumePolicy", len(req.VolumePolicyReconfigSpecs), func(i int) result {
		spec := req.VolumePolicyReconfigSpecs[i]
		profile, ok := firstProfile(spec.Profile)
		if !ok {
			return failed(spec.VolumeId, &types.InvalidArgument{InvalidProperty: "profile"})
		}
		if !c.change(spec.VolumeId, func(v *volume) { v.StoragePolicyId = profile }) {
			return failed(spec.VolumeId, &cnstypes.CnsVolumeNotFoundFault{VolumeId: spec.VolumeId})
		}
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
