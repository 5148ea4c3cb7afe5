package main

import (
	"fmt"
	"slices"
	"sync"

	"github.com/vmware/govmomi/cns"
	cnsmethods "github.com/vmware/govmomi/cns/methods"
	cnssim "github.com/vmware/govmomi/cns/simulator"
	cnstypes "github.com/vmware/govmomi/cns/types"
	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// volumes replaces govmomi's CNS for block volumes: attach and detach really change the VM, a call can have several specs,
// an error of one volume is in the result of that volume, queries honour filter and cursor, and tasks run in parallel, as
// in vCenter.
type volumes struct {
	*cnssim.CnsVolumeManager
	sim   *Sim
	agent diskAgent

	attaching sync.Mutex // held while a disk is attached: a volume goes to one VM

	mu       sync.Mutex
	all      map[string]*volume
	sorted   []string       // the ids of all
	attached map[string]ref // volume id to VM
}

// volume is a volume in CNS. The array of its metadata has the clusters that use it.
type volume struct {
	cnstypes.CnsVolume
	datastore ref
	snapshots []cnstypes.CnsSnapshot // the oldest first
}

func (v *volume) megabytes() int64 {
	return v.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb
}

func wrapCNS(s *Sim, reg *simulator.Registry) {
	s.volumes = &volumes{CnsVolumeManager: reg.Get(cns.CnsVolumeManagerInstance).(*cnssim.CnsVolumeManager), sim: s,
		all: map[string]*volume{}, attached: map[string]ref{}}
	reg.Put(s.volumes)
}

// Lock and Unlock opt out of the lock per object of govmomi: calls run in parallel.
func (c *volumes) Lock()   {}
func (c *volumes) Unlock() {}

// The object of tasks that belong to no VM.
var cnsTaskEntity = ref{Type: "CnsVolumeManager", Value: "cns-volume-manager-tasks"}

type result = cnstypes.BaseCnsVolumeOperationResult

// run starts a task. Unlike govmomi's tasks it holds no lock while it runs.
func (s *Sim) run(entity ref, name string, work func() (types.AnyType, types.BaseMethodFault)) ref {
	task := s.newTask(entity, name)
	go func() {
		out, fault := work()
		s.endTask(task, out, fault, "")
	}()
	return task.Self
}

// batch runs a task with one result for each volume.
func (c *volumes) batch(entity ref, name string, n int, each func(int) result) ref {
	return c.sim.run(entity, name, func() (types.AnyType, types.BaseMethodFault) {
		if n == 0 {
			return nil, &types.InvalidArgument{InvalidProperty: "specs"}
		}
		out := &cnstypes.CnsVolumeOperationBatchResult{}
		for i := range n {
			out.VolumeResults = append(out.VolumeResults, each(i))
		}
		return out, nil
	})
}

func failed(id cnstypes.CnsVolumeId, fault types.BaseMethodFault) result {
	text := fmt.Sprintf("%T", fault)
	if c, ok := fault.(*cnstypes.CnsFault); ok {
		text = "CnsFault error: " + c.Reason
	}
	return &cnstypes.CnsVolumeOperationResult{VolumeId: id, Fault: &types.LocalizedMethodFault{Fault: fault, LocalizedMessage: text}}
}

// query returns the matching volumes of a page, always in the same order, and the number of all that match.
func (c *volumes) query(filter *cnstypes.CnsQueryFilter) cnstypes.CnsQueryResult {
	accessible := map[string]bool{}
	for _, ds := range c.sim.datastores() {
		accessible[ds.Summary.Url] = ds.Summary.Accessible
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	among := c.sorted
	if len(filter.VolumeIds) > 0 {
		among = nil
		for _, id := range filter.VolumeIds {
			among = append(among, id.Id)
		}
		slices.Sort(among)
		among = slices.Compact(among)
	}
	found := []*volume{}
	for _, id := range among {
		if v := c.all[id]; v != nil && v.matches(filter) {
			found = append(found, v)
		}
	}
	total := int64(len(found))
	cursor := cnstypes.CnsCursor{Offset: total, Limit: total, TotalRecords: total}
	if filter.Cursor != nil {
		from := min(max(filter.Cursor.Offset, 0), total)
		to := total
		if filter.Cursor.Limit > 0 {
			to = min(from+filter.Cursor.Limit, total)
		}
		found = found[from:to]
		cursor = cnstypes.CnsCursor{Offset: to, Limit: filter.Cursor.Limit, TotalRecords: total}
	}
	out := make([]cnstypes.CnsVolume, len(found))
	for i, v := range found {
		out[i] = clone(v.CnsVolume)
		if !accessible[v.DatastoreUrl] {
			out[i].DatastoreAccessibilityStatus, out[i].HealthStatus = "notAccessible", "unknown"
		}
	}
	return cnstypes.CnsQueryResult{Volumes: out, Cursor: cursor}
}

func (v *volume) matches(f *cnstypes.CnsQueryFilter) bool {
	given := func(wanted []string, has string) bool { return len(wanted) == 0 || slices.Contains(wanted, has) }
	uses := func(x cnstypes.CnsContainerCluster) bool { return slices.Contains(f.ContainerClusterIds, x.ClusterId) }
	labelled := func(e cnstypes.BaseCnsEntityMetadata) bool {
		return slices.ContainsFunc(e.GetCnsEntityMetadata().Labels, func(l types.KeyValue) bool { return slices.Contains(f.Labels, l) })
	}
	return given(f.Names, v.Name) &&
		(len(f.Datastores) == 0 || slices.Contains(f.Datastores, v.datastore)) &&
		(len(f.ContainerClusterIds) == 0 || slices.ContainsFunc(v.Metadata.ContainerClusterArray, uses)) &&
		(len(f.Labels) == 0 || slices.ContainsFunc(v.Metadata.EntityMetadata, labelled)) &&
		(f.StoragePolicyId == "" || f.StoragePolicyId == v.StoragePolicyId) &&
		(f.ComplianceStatus == "" || f.ComplianceStatus == v.ComplianceStatus) &&
		(f.HealthStatus == "" || f.HealthStatus == v.HealthStatus)
}

// find returns a copy of a volume.
func (c *volumes) find(id cnstypes.CnsVolumeId) *volume {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.all[id.Id]; v != nil {
		return &volume{CnsVolume: clone(v.CnsVolume), datastore: v.datastore, snapshots: slices.Clone(v.snapshots)}
	}
	return nil
}

// change changes a volume, and returns false if there is none.
func (c *volumes) change(id cnstypes.CnsVolumeId, f func(*volume)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.all[id.Id]
	if v != nil {
		f(v)
	}
	return v != nil
}

func (c *volumes) CnsQueryVolume(_ *simulator.Context, req *cnstypes.CnsQueryVolume) soap.HasFault {
	filter := &cnstypes.CnsQueryFilter{}
	if req.Filter != nil {
		filter = req.Filter.GetCnsQueryFilter()
	}
	return &cnsmethods.CnsQueryVolumeBody{Res: &cnstypes.CnsQueryVolumeResponse{Returnval: c.query(filter)}}
}

func (c *volumes) CnsQueryAllVolume(_ *simulator.Context, req *cnstypes.CnsQueryAllVolume) soap.HasFault {
	return &cnsmethods.CnsQueryAllVolumeBody{Res: &cnstypes.CnsQueryAllVolumeResponse{Returnval: c.query(&req.Filter)}}
}

func (c *volumes) CnsQueryAsync(_ *simulator.Context, req *cnstypes.CnsQueryAsync) soap.HasFault {
	task := c.batch(cnsTaskEntity, "QueryVolumeAsync", 1, func(int) result {
		return &cnstypes.CnsAsyncQueryResult{QueryResult: c.query(&req.Filter)}
	})
	return &cnsmethods.CnsQueryAsyncBody{Res: &cnstypes.CnsQueryAsyncResponse{Returnval: task}}
}

func (c *volumes) CnsCreateVolume(_ *simulator.Context, req *cnstypes.CnsCreateVolume) soap.HasFault {
	task := c.batch(cnsTaskEntity, "CnsCreateVolume", len(req.CreateSpecs), func(i int) result {
		return c.create(req.CreateSpecs[i])
	})
	return &cnsmethods.CnsCreateVolumeBody{Res: &cnstypes.CnsCreateVolumeResponse{Returnval: task}}
}

func (c *volumes) create(spec cnstypes.CnsVolumeCreateSpec) result {
	details, block := spec.BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails)
	if !block {
		return failed(cnstypes.CnsVolumeId{}, &types.NotSupported{})
	}
	if problem := c.sourceProblem(spec); problem != nil {
		return failed(cnstypes.CnsVolumeId{}, problem)
	}
	var disk *simulator.VStorageObject
	if details.BackingDiskId == "" {
		ds := c.reserve(spec.Datastores, details.CapacityInMb<<20)
		if ds == nil {
			return failed(cnstypes.CnsVolumeId{}, &cnstypes.CnsFault{Reason: "no datastore has room for the volume and is accessible",
				MethodFault: types.MethodFault{FaultCause: &types.LocalizedMethodFault{Fault: &types.NoDiskSpace{}}}})
		}
		disk = c.sim.addDisk(ds, spec.Name, details.CapacityInMb)
	} else if had := c.find(cnstypes.CnsVolumeId{Id: details.BackingDiskId}); had != nil {
		return failed(had.VolumeId, &cnstypes.CnsAlreadyRegisteredFault{VolumeId: had.VolumeId})
	} else if disk = c.sim.diskObject(details.BackingDiskId); disk == nil {
		return failed(cnstypes.CnsVolumeId{}, &types.InvalidArgument{InvalidProperty: "VolumeId"})
	}
	made := c.register(spec, disk)
	var out result = &cnstypes.CnsVolumeCreateResult{CnsVolumeOperationResult: cnstypes.CnsVolumeOperationResult{VolumeId: made.VolumeId},
		Name: made.Name, PlacementResults: []cnstypes.CnsPlacementResult{{Datastore: made.datastore}}}
	if source, ok := spec.VolumeSource.(*cnstypes.CnsSnapshotVolumeSource); ok {
		out = c.copyData(made.VolumeId, source.SnapshotId.Id, diskUUID(made.VolumeId.Id), out)
	}
	return out
}

// register makes a disk a volume.
func (c *volumes) register(spec cnstypes.CnsVolumeCreateSpec, disk *simulator.VStorageObject) *volume {
	backing := disk.Config.Backing.(*types.BaseConfigInfoDiskFileBackingInfo)
	v := &volume{datastore: backing.Datastore, CnsVolume: cnstypes.CnsVolume{
		VolumeId: cnstypes.CnsVolumeId(disk.Config.Id), Name: spec.Name, VolumeType: spec.VolumeType, Metadata: spec.Metadata,
		BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: disk.Config.CapacityInMB},
			BackingDiskId: disk.Config.Id.Id, BackingDiskPath: backing.FilePath},
		ComplianceStatus: string(pbmtypes.PbmComplianceStatusCompliant), HealthStatus: string(pbmtypes.PbmHealthStatusForEntityGreen),
		DatastoreAccessibilityStatus: string(pbmtypes.PbmHealthStatusForEntityGreen),
	}}
	v.StoragePolicyId, _ = firstProfile(spec.Profile)
	v.Metadata.ContainerClusterArray = mergeClusters(nil, append(slices.Clone(spec.Metadata.ContainerClusterArray), spec.Metadata.ContainerCluster))
	if ds, ok := c.sim.reg().Get(backing.Datastore).(*simulator.Datastore); ok {
		v.DatastoreUrl = ds.Info.GetDatastoreInfo().Url
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	id := v.VolumeId.Id
	c.all[id] = v
	if at, had := slices.BinarySearch(c.sorted, id); !had {
		c.sorted = slices.Insert(c.sorted, at, id)
	}
	return v
}

// reserve takes space from the first of the given datastores (of all, if none is given) that has enough.
func (c *volumes) reserve(among []ref, size int64) *simulator.Datastore {
	all := c.sim.datastores()
	if len(among) > 0 {
		all = nil
		for _, r := range among {
			if ds, ok := c.sim.reg().Get(r).(*simulator.Datastore); ok {
				all = append(all, ds)
			}
		}
	}
	for _, ds := range all {
		fits := false
		c.sim.locked(ds, func() {
			if fits = ds.Summary.Accessible && ds.Summary.MaintenanceMode == "normal" && ds.Summary.FreeSpace >= size; fits {
				ds.Summary.FreeSpace -= size
				ds.Info.GetDatastoreInfo().FreeSpace = ds.Summary.FreeSpace
			}
		})
		if fits {
			c.sim.journal.touch(ds.Self)
			return ds
		}
	}
	return nil
}

// free gives space back to a datastore.
func (s *Sim) free(r ref, size int64) {
	if ds, ok := s.reg().Get(r).(*simulator.Datastore); ok {
		s.locked(ds, func() {
			ds.Summary.FreeSpace += size
			ds.Info.GetDatastoreInfo().FreeSpace = ds.Summary.FreeSpace
		})
		s.journal.touch(r)
	}
}

func (s *Sim) datastores() (all []*simulator.Datastore) {
	for _, dc := range s.datacenters() {
		for _, r := range dc.Datastore {
			if ds, ok := s.reg().Get(r).(*simulator.Datastore); ok {
				all = append(all, ds)
			}
		}
	}
	return all
}

func (c *volumes) CnsDeleteVolume(_ *simulator.Context, req *cnstypes.CnsDeleteVolume) soap.HasFault {
	task := c.batch(cnsTaskEntity, "CnsDeleteVolume", len(req.VolumeIds), func(i int) result {
		id := req.VolumeIds[i]
		if vm := c.attachedTo(id.Id); vm != nil {
			return failed(id, &types.ResourceInUse{Type: vm.Type, Name: vm.Value})
		}
		c.mu.Lock()
		v := c.all[id.Id]
		delete(c.all, id.Id)
		if at, had := slices.BinarySearch(c.sorted, id.Id); had {
			c.sorted = slices.Delete(c.sorted, at, at+1)
		}
		c.mu.Unlock()
		if v == nil {
			return failed(id, &types.NotFound{})
		}
		if req.DeleteDisk {
			c.sim.catalog(func(all diskCatalog) { delete(all[v.datastore], types.ID{Id: id.Id}) })
			c.sim.free(v.datastore, v.megabytes()<<20)
		}
		return &cnstypes.CnsVolumeOperationResult{VolumeId: id}
	})
	return &cnsmethods.CnsDeleteVolumeBody{Res: &cnstypes.CnsDeleteVolumeResponse{Returnval: task}}
}

func (s *Sim) datastoreAt(url string) *simulator.Datastore {
	for _, ds := range s.datastores() {
		if ds.Summary.Url == url {
			return ds
		}
	}
	return nil
}

// CnsExtendVolume grows the volume in CNS, the disk object and the VM's device.
func (c *volumes) CnsExtendVolume(_ *simulator.Context, req *cnstypes.CnsExtendVolume) soap.HasFault {
	task := c.batch(cnsTaskEntity, "CnsExtendVolume", len(req.ExtendSpecs), func(i int) result {
		spec := req.ExtendSpecs[i]
		var problem types.BaseMethodFault
		known := c.change(spec.VolumeId, func(v *volume) {
			switch {
			case spec.CapacityInMb < v.megabytes():
				problem = &types.InvalidArgument{InvalidProperty: "capacityInMb"}
			case len(v.snapshots) > 0:
				problem = &cnstypes.CnsFault{Reason: "CNS: Failed to extend the disk: it has snapshots"}
			default:
				v.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb = spec.CapacityInMb
			}
		})
		if !known {
			problem = &types.NotFound{}
		}
		if problem != nil {
			return failed(spec.VolumeId, problem)
		}
		c.sim.changeDisk(spec.VolumeId.Id, func(o *simulator.VStorageObject) { o.Config.CapacityInMB = spec.CapacityInMb })
		return c.resize(spec.VolumeId.Id, spec.CapacityInMb, &cnstypes.CnsVolumeOperationResult{VolumeId: spec.VolumeId})
	})
	return &cnsmethods.CnsExtendVolumeBody{Res: &cnstypes.CnsExtendVolumeResponse{Returnval: task}}
}

// CnsUpdateVolumeMetadata merges: cluster, type, namespace and name identify an entity, and the update can delete it.
func (c *volumes) CnsUpdateVolumeMetadata(_ *simulator.Context, req *cnstypes.CnsUpdateVolumeMetadata) soap.HasFault {
	task := c.batch(cnsTaskEntity, "CnsUpdateVolumeMetadata", len(req.UpdateSpecs), func(i int) result {
		spec := req.UpdateSpecs[i]
		known := c.change(spec.VolumeId, func(v *volume) {
			m := &v.Metadata
			m.ContainerClusterArray = mergeClusters(m.ContainerClusterArray, append(slices.Clone(spec.Metadata.ContainerClusterArray), spec.Metadata.ContainerCluster))
			m.EntityMetadata = mergeEntities(m.EntityMetadata, spec.Metadata.EntityMetadata)
		})
		if !known {
			return failed(spec.VolumeId, &types.NotFound{})
		}
		return &cnstypes.CnsVolumeOperationResult{VolumeId: spec.VolumeId}
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
