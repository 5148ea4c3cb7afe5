package main

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/vmware/govmomi/cns"
	cnsmethods "github.com/vmware/govmomi/cns/methods"
	cnssim "github.com/vmware/govmomi/cns/simulator"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// volumes extends govmomi's CNS: attach and detach really change the VM, a call can have several specs, an error of one
// volume is in the result of that volume, and queries honour filter and cursor. Creation, deletion and snapshots are
// govmomi's.
type volumes struct {
	*cnssim.CnsVolumeManager
	sim   *Sim
	agent diskAgent

	mu       sync.Mutex
	attached map[string]ref                            // volume id to VM
	clusters map[string][]cnstypes.CnsContainerCluster // volume id to the clusters that use it
	policies map[string]string                         // volume id to its changed storage policy
}

func wrapCNS(s *Sim, reg *simulator.Registry) {
	s.volumes = &volumes{CnsVolumeManager: reg.Get(cns.CnsVolumeManagerInstance).(*cnssim.CnsVolumeManager), sim: s,
		attached: map[string]ref{}, clusters: map[string][]cnstypes.CnsContainerCluster{}, policies: map[string]string{}}
	reg.Put(s.volumes)
}

// Our tasks have their own object: govmomi's take the lock of the manager under another context.
var cnsTaskEntity = ref{Type: "CnsVolumeManager", Value: "cns-volume-manager-tasks"}

type result = cnstypes.BaseCnsVolumeOperationResult

// batch runs a task with one result for each volume.
func (c *volumes) batch(ctx *simulator.Context, entity ref, name string, n int, each func(*simulator.Context, int) result) ref {
	vctx := ctx.For(vim25.Path)
	task := simulator.CreateTask(entity, name, func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		if n == 0 {
			return nil, &types.InvalidArgument{InvalidProperty: "specs"}
		}
		out := &cnstypes.CnsVolumeOperationBatchResult{}
		for i := range n {
			out.VolumeResults = append(out.VolumeResults, each(vctx, i))
		}
		return out, nil
	})
	return task.Run(vctx)
}

// inner runs one of govmomi's batch tasks for a single volume and returns its result.
func inner(vctx *simulator.Context, id cnstypes.CnsVolumeId, task ref) result {
	t := vctx.Map.Get(task).(*simulator.Task)
	t.Wait()
	if t.Info.Error != nil {
		return failed(id, t.Info.Error.Fault)
	}
	got := t.Info.Result.(*cnstypes.CnsVolumeOperationBatchResult).VolumeResults
	if len(got) == 0 {
		return failed(id, &types.NotFound{})
	}
	return got[0]
}

func failed(id cnstypes.CnsVolumeId, fault types.BaseMethodFault) result {
	text := fmt.Sprintf("%T", fault)
	if c, ok := fault.(*cnstypes.CnsFault); ok {
		text = "CnsFault error: " + c.Reason
	}
	return &cnstypes.CnsVolumeOperationResult{VolumeId: id, Fault: &types.LocalizedMethodFault{Fault: fault, LocalizedMessage: text}}
}

// query lists the matching volumes, always in the same order.
func (c *volumes) query(filter *cnstypes.CnsQueryFilter) []cnstypes.CnsVolume {
	wanted := *filter
	wanted.ContainerClusterIds, wanted.Cursor = nil, nil
	found := c.CnsVolumeManager.CnsQueryVolume(context.Background(), &cnstypes.CnsQueryVolume{Filter: &wanted}).(*cnsmethods.CnsQueryVolumeBody).Res.Returnval.Volumes
	c.mu.Lock()
	defer c.mu.Unlock()
	out := []cnstypes.CnsVolume{}
	for _, v := range found {
		v = clone(v)
		v.Metadata.ContainerClusterArray = slices.Clone(c.clusters[v.VolumeId.Id])
		if policy, changed := c.policies[v.VolumeId.Id]; changed {
			v.StoragePolicyId = policy
		}
		if ds := c.sim.datastoreAt(v.DatastoreUrl); ds == nil || !ds.Summary.Accessible {
			v.DatastoreAccessibilityStatus, v.HealthStatus = "notAccessible", "unknown"
		}
		uses := func(id string) bool {
			return slices.ContainsFunc(v.Metadata.ContainerClusterArray, func(x cnstypes.CnsContainerCluster) bool { return x.ClusterId == id })
		}
		if len(filter.ContainerClusterIds) == 0 || slices.ContainsFunc(filter.ContainerClusterIds, uses) {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b cnstypes.CnsVolume) int { return compare(a.VolumeId.Id, b.VolumeId.Id) })
	return out
}

func (c *volumes) find(id cnstypes.CnsVolumeId) *cnstypes.CnsVolume {
	if found := c.query(&cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{id}}); len(found) == 1 {
		return &found[0]
	}
	return nil
}

// page returns the requested part of all volumes; the returned cursor points behind it.
func page(all []cnstypes.CnsVolume, cursor *cnstypes.CnsCursor) cnstypes.CnsQueryResult {
	total := int64(len(all))
	if cursor == nil {
		return cnstypes.CnsQueryResult{Volumes: all, Cursor: cnstypes.CnsCursor{Offset: total, Limit: total, TotalRecords: total}}
	}
	from := min(max(cursor.Offset, 0), total)
	to := total
	if cursor.Limit > 0 {
		to = min(from+cursor.Limit, total)
	}
	return cnstypes.CnsQueryResult{Volumes: all[from:to], Cursor: cnstypes.CnsCursor{Offset: to, Limit: cursor.Limit, TotalRecords: total}}
}

func (c *volumes) CnsQueryVolume(_ *simulator.Context, req *cnstypes.CnsQueryVolume) soap.HasFault {
	filter := &cnstypes.CnsQueryFilter{}
	if req.Filter != nil {
		filter = req.Filter.GetCnsQueryFilter()
	}
	return &cnsmethods.CnsQueryVolumeBody{Res: &cnstypes.CnsQueryVolumeResponse{Returnval: page(c.query(filter), filter.Cursor)}}
}

func (c *volumes) CnsQueryAllVolume(_ *simulator.Context, req *cnstypes.CnsQueryAllVolume) soap.HasFault {
	return &cnsmethods.CnsQueryAllVolumeBody{Res: &cnstypes.CnsQueryAllVolumeResponse{Returnval: page(c.query(&req.Filter), req.Filter.Cursor)}}
}

func (c *volumes) CnsQueryAsync(ctx *simulator.Context, req *cnstypes.CnsQueryAsync) soap.HasFault {
	task := c.batch(ctx, cnsTaskEntity, "QueryVolumeAsync", 1, func(*simulator.Context, int) result {
		return &cnstypes.CnsAsyncQueryResult{QueryResult: page(c.query(&req.Filter), req.Filter.Cursor)}
	})
	return &cnsmethods.CnsQueryAsyncBody{Res: &cnstypes.CnsQueryAsyncResponse{Returnval: task}}
}

func (c *volumes) CnsCreateVolume(ctx *simulator.Context, req *cnstypes.CnsCreateVolume) soap.HasFault {
	task := c.batch(ctx, cnsTaskEntity, "CnsCreateVolume", len(req.CreateSpecs), func(vctx *simulator.Context, i int) result {
		return c.create(ctx, vctx, req.CreateSpecs[i])
	})
	return &cnsmethods.CnsCreateVolumeBody{Res: &cnstypes.CnsCreateVolumeResponse{Returnval: task}}
}

func (c *volumes) create(ctx, vctx *simulator.Context, spec cnstypes.CnsVolumeCreateSpec) result {
	details, block := spec.BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails)
	if !block {
		return failed(cnstypes.CnsVolumeId{}, &types.NotSupported{})
	}
	if problem := c.sourceProblem(vctx, spec); problem != nil {
		return failed(cnstypes.CnsVolumeId{}, problem)
	}
	if details.BackingDiskId == "" {
		ds := c.choose(spec.Datastores, details.CapacityInMb<<20)
		if ds == nil {
			return failed(cnstypes.CnsVolumeId{}, &cnstypes.CnsFault{Reason: "no datastore has room for the volume and is accessible",
				MethodFault: types.MethodFault{FaultCause: &types.LocalizedMethodFault{Fault: &types.NoDiskSpace{}}}})
		}
		spec.Datastores = []ref{*ds}
	} else if had := c.find(cnstypes.CnsVolumeId{Id: details.BackingDiskId}); had != nil {
		return failed(had.VolumeId, &cnstypes.CnsAlreadyRegisteredFault{VolumeId: had.VolumeId})
	}
	body := c.CnsVolumeManager.CnsCreateVolume(ctx, &cnstypes.CnsCreateVolume{This: c.Reference(), CreateSpecs: []cnstypes.CnsVolumeCreateSpec{spec}})
	got := inner(vctx, cnstypes.CnsVolumeId{}, body.(*cnsmethods.CnsCreateVolumeBody).Res.Returnval)
	if made := got.GetCnsVolumeOperationResult(); made.Fault == nil {
		c.mu.Lock()
		c.clusters[made.VolumeId.Id] = mergeClusters(nil, append(spec.Metadata.ContainerClusterArray, spec.Metadata.ContainerCluster))
		c.mu.Unlock()
		if len(spec.Datastores) > 0 {
			c.sim.reserve(spec.Datastores[0], details.CapacityInMb<<20)
		}
		if source, ok := spec.VolumeSource.(*cnstypes.CnsSnapshotVolumeSource); ok {
			got = c.copyData(made.VolumeId, source.SnapshotId.Id, diskUUID(made.VolumeId.Id), got)
		}
	}
	return got
}

// choose returns the first of the given datastores (of all, if none is given) with enough space for the volume.
func (c *volumes) choose(among []ref, size int64) *ref {
	if len(among) == 0 {
		for _, dc := range c.sim.datacenters() {
			among = append(among, dc.Datastore...)
		}
	}
	for _, r := range among {
		ds, ok := c.sim.reg().Get(r).(*simulator.Datastore)
		if ok && ds.Summary.Accessible && ds.Summary.MaintenanceMode == "normal" && ds.Summary.FreeSpace >= size {
			return &r
		}
	}
	return nil
}

// reserve takes space from a datastore, or frees it.
func (s *Sim) reserve(r ref, size int64) {
	if ds, ok := s.reg().Get(r).(*simulator.Datastore); ok {
		s.locked(ds, func() {
			ds.Summary.FreeSpace -= size
			ds.Info.GetDatastoreInfo().FreeSpace = ds.Summary.FreeSpace
		})
		s.journal.touch(r)
	}
}

func (c *volumes) CnsDeleteVolume(ctx *simulator.Context, req *cnstypes.CnsDeleteVolume) soap.HasFault {
	task := c.batch(ctx, cnsTaskEntity, "CnsDeleteVolume", len(req.VolumeIds), func(vctx *simulator.Context, i int) result {
		id := req.VolumeIds[i]
		if vm := c.attachedTo(id.Id); vm != nil {
			return failed(id, &types.ResourceInUse{Type: vm.Type, Name: vm.Value})
		}
		volume := c.find(id)
		body := c.CnsVolumeManager.CnsDeleteVolume(ctx, &cnstypes.CnsDeleteVolume{This: c.Reference(), VolumeIds: []cnstypes.CnsVolumeId{id}, DeleteDisk: req.DeleteDisk})
		got := inner(vctx, id, body.(*cnsmethods.CnsDeleteVolumeBody).Res.Returnval)
		if volume != nil && got.GetCnsVolumeOperationResult().Fault == nil && req.DeleteDisk {
			if ds := c.sim.datastoreAt(volume.DatastoreUrl); ds != nil {
				c.sim.reserve(ds.Self, -volume.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb<<20)
			}
		}
		return got
	})
	return &cnsmethods.CnsDeleteVolumeBody{Res: &cnstypes.CnsDeleteVolumeResponse{Returnval: task}}
}

func (s *Sim) datastoreAt(url string) *simulator.Datastore {
	for _, e := range s.reg().All("Datastore") {
		if ds, ok := e.(*simulator.Datastore); ok && ds.Summary.Url == url {
			return ds
		}
	}
	return nil
}

// CnsExtendVolume grows the volume in CNS, the disk object and the VM's device.
func (c *volumes) CnsExtendVolume(ctx *simulator.Context, req *cnstypes.CnsExtendVolume) soap.HasFault {
	task := c.batch(ctx, cnsTaskEntity, "CnsExtendVolume", len(req.ExtendSpecs), func(vctx *simulator.Context, i int) result {
		spec := req.ExtendSpecs[i]
		volume := c.find(spec.VolumeId)
		if volume != nil && spec.CapacityInMb < volume.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb {
			return failed(spec.VolumeId, &types.InvalidArgument{InvalidProperty: "capacityInMb"})
		}
		if volume != nil && len(c.snapshots(vctx, spec.VolumeId, nil)) > 0 {
			return failed(spec.VolumeId, &cnstypes.CnsFault{Reason: "CNS: Failed to extend the disk: it has snapshots"})
		}
		body := c.CnsVolumeManager.CnsExtendVolume(ctx, &cnstypes.CnsExtendVolume{This: c.Reference(), ExtendSpecs: []cnstypes.CnsVolumeExtendSpec{spec}})
		got := inner(vctx, spec.VolumeId, body.(*cnsmethods.CnsExtendVolumeBody).Res.Returnval)
		if got.GetCnsVolumeOperationResult().Fault == nil {
			if disk := c.sim.diskObject(spec.VolumeId.Id); disk != nil {
				disk.Config.CapacityInMB = spec.CapacityInMb
			}
			got = c.resize(spec.VolumeId.Id, spec.CapacityInMb, got)
		}
		return got
	})
	return &cnsmethods.CnsExtendVolumeBody{Res: &cnstypes.CnsExtendVolumeResponse{Returnval: task}}
}

func (s *Sim) diskObject(id string) *simulator.VStorageObject {
	for _, objects := range s.reg().VStorageObjectManager().Catalog() {
		if o := objects[types.ID{Id: id}]; o != nil {
			return o
		}
	}
	return nil
}

// CnsUpdateVolumeMetadata merges: cluster, type, namespace and name identify an entity, and the update can delete it.
func (c *volumes) CnsUpdateVolumeMetadata(ctx *simulator.Context, req *cnstypes.CnsUpdateVolumeMetadata) soap.HasFault {
	task := c.batch(ctx, cnsTaskEntity, "CnsUpdateVolumeMetadata", len(req.UpdateSpecs), func(vctx *simulator.Context, i int) result {
		spec := req.UpdateSpecs[i]
		volume := c.find(spec.VolumeId)
		if volume == nil {
			return failed(spec.VolumeId, &types.NotFound{})
		}
		c.mu.Lock()
		id := spec.VolumeId.Id
		c.clusters[id] = mergeClusters(c.clusters[id], append(spec.Metadata.ContainerClusterArray, spec.Metadata.ContainerCluster))
		c.mu.Unlock()
		spec.Metadata.EntityMetadata = mergeEntities(volume.Metadata.EntityMetadata, spec.Metadata.EntityMetadata)
		body := c.CnsVolumeManager.CnsUpdateVolumeMetadata(ctx, &cnstypes.CnsUpdateVolumeMetadata{This: c.Reference(),
			UpdateSpecs: []cnstypes.CnsVolumeMetadataUpdateSpec{spec}})
		return inner(vctx, spec.VolumeId, body.(*cnsmethods.CnsUpdateVolumeBody).Res.Returnval)
	})
	return &cnsmethods.CnsUpdateVolumeBody{Res: &cnstypes.CnsUpdateVolumeMetadataResponse{Returnval: task}}
}

func mergeClusters(had, given []cnstypes.CnsContainerCluster) []cnstypes.CnsContainerCluster {
	for _, n := range given {
		if n.ClusterId == "" {
			continue
		}
		had = slices.DeleteFunc(slices.Clone(had), func(o cnstypes.CnsContainerCluster) bool { return o.ClusterId == n.ClusterId })
		if !n.Delete {
			had = append(had, n)
		}
	}
	return had
}

func entityKey(e cnstypes.BaseCnsEntityMetadata) string {
	base := e.GetCnsEntityMetadata()
	key := base.ClusterID + "\x00" + base.EntityName
	if k, ok := e.(*cnstypes.CnsKubernetesEntityMetadata); ok {
		key += "\x00" + k.EntityType + "\x00" + k.Namespace
	}
	return key
}

func mergeEntities(had, given []cnstypes.BaseCnsEntityMetadata) []cnstypes.BaseCnsEntityMetadata {
	for _, n := range given {
		had = slices.DeleteFunc(slices.Clone(had), func(o cnstypes.BaseCnsEntityMetadata) bool { return entityKey(o) == entityKey(n) })
		if !n.GetCnsEntityMetadata().Delete {
			had = append(had, n)
		}
	}
	return had
}
