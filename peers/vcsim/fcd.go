package main

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// diskCatalog has govmomi's first class disks, by datastore.
type diskCatalog = map[ref]map[types.ID]*simulator.VStorageObject

// catalog reads or changes the first class disks under the lock of their manager.
func (s *Sim) catalog(f func(diskCatalog)) {
	manager := s.reg().VStorageObjectManager()
	s.locked(manager, func() { f(manager.Catalog()) })
}

// changeDisk changes a first class disk, if it exists.
func (s *Sim) changeDisk(id string, f func(*simulator.VStorageObject)) {
	s.catalog(func(all diskCatalog) {
		for _, objects := range all {
			if o := objects[types.ID{Id: id}]; o != nil {
				f(o)
			}
		}
	})
}

// diskObject is a copy of a first class disk, nil if there is none.
func (s *Sim) diskObject(id string) (found *simulator.VStorageObject) {
	s.changeDisk(id, func(o *simulator.VStorageObject) {
		copied := clone(*o)
		found = &copied
	})
	return found
}

// addDisk creates a first class disk. It has no file: a disk agent keeps the data of disks.
func (s *Sim) addDisk(ds *simulator.Datastore, name string, megabytes int64) *simulator.VStorageObject {
	id := newToken()
	o := &simulator.VStorageObject{}
	o.Config.BaseConfigInfo = types.BaseConfigInfo{Id: types.ID{Id: id}, Name: name, CreateTime: time.Now(), KeepAfterDeleteVm: types.NewBool(true),
		RelocationDisabled: types.NewBool(false), NativeSnapshotSupported: types.NewBool(false), ChangedBlockTrackingEnabled: types.NewBool(false)}
	o.Config.CapacityInMB, o.Config.ConsumptionType = megabytes, []string{"disk"}
	backing := &types.BaseConfigInfoDiskFileBackingInfo{ProvisioningType: string(types.BaseConfigInfoDiskFileBackingInfoProvisioningTypeThin)}
	backing.Datastore, backing.FilePath, backing.BackingObjectId = ds.Self, fmt.Sprintf("[%s] fcd/%s.vmdk", ds.Name, id), newToken()
	o.Config.Backing = backing
	s.catalog(func(all diskCatalog) {
		if all[ds.Self] == nil {
			all[ds.Self] = map[types.ID]*simulator.VStorageObject{}
		}
		all[ds.Self][o.Config.Id] = o
	})
	copied := clone(*o)
	return &copied
}

// seed is a number of volumes of one cluster.
type seed struct {
	Count      int    `json:"count"`
	Cluster    string `json:"cluster"`
	Megabytes  int64  `json:"megabytes"`
	AttachEach int    `json:"attachEach"` // volumes to attach to each VM, in the order of their names
}

// addVolumes is the lever POST /volumes: it creates many volumes at once, without calls and tasks.
func (c *control) addVolumes(_ *http.Request, b []byte) (any, error) {
	var wanted seed
	if err := decodeStrict(b, &wanted); err != nil {
		return nil, err
	}
	if wanted.Count < 1 || wanted.Megabytes < 1 || wanted.Cluster == "" {
		return nil, fmt.Errorf("count, megabytes and cluster are needed")
	}
	store := c.sim.volumes
	ids := []string{}
	for number := range wanted.Count {
		ds := store.reserve(nil, wanted.Megabytes<<20)
		if ds == nil {
			return nil, fmt.Errorf("no datastore has room for volume %d", number+1)
		}
		spec := cnstypes.CnsVolumeCreateSpec{Name: fmt.Sprintf("pvc-%08x-0000-4000-8000-000000000000", number), VolumeType: string(cnstypes.CnsVolumeTypeBlock)}
		spec.Metadata.ContainerCluster = cnstypes.CnsContainerCluster{ClusterType: "KUBERNETES", ClusterId: wanted.Cluster, ClusterFlavor: "VANILLA"}
		made := store.register(spec, c.sim.addDisk(ds, spec.Name, wanted.Megabytes))
		ids = append(ids, made.VolumeId.Id)
	}
	return map[string]any{"ids": ids, "attached": store.attachEach(ids, wanted.AttachEach)}, nil
}

// attachEach attaches some of the volumes to each VM, and returns how many.
func (c *volumes) attachEach(ids []string, each int) (attached int) {
	vms := c.sim.reg().All("VirtualMachine")
	slices.SortFunc(vms, func(a, b mo.Entity) int { return compare(a.Entity().Name, b.Entity().Name) })
	for _, e := range vms {
		vm, ok := e.(*simulator.VirtualMachine)
		if !ok {
			continue
		}
		for range each {
			if attached == len(ids) {
				return attached
			}
			spec := cnstypes.CnsVolumeAttachDetachSpec{VolumeId: cnstypes.CnsVolumeId{Id: ids[attached]}, Vm: vm.Self}
			var out result
			c.sim.locked(vm, func() { out = c.attach(vm, spec) })
			if out.GetCnsVolumeOperationResult().Fault != nil {
				break
			}
			attached++
		}
		c.sim.journal.touch(vm.Self)
	}
	return attached
}

// moveVolume is the lever PATCH /volumes: the disk of a volume is on another datastore, as after a Storage vMotion.
func (c *control) moveVolume(r *http.Request, b []byte) (any, error) {
	var wanted struct {
		Datastore string `json:"datastore"`
	}
	id, err := query(r, "id")
	if err == nil {
		err = decodeStrict(b, &wanted)
	}
	if err != nil {
		return nil, err
	}
	ds, err := at[*simulator.Datastore](c.sim, wanted.Datastore)
	if err != nil {
		return nil, err
	}
	moved := c.sim.volumes.change(cnstypes.CnsVolumeId{Id: id}, func(v *volume) {
		v.datastore, v.DatastoreUrl = ds.Self, ds.Info.GetDatastoreInfo().Url
	})
	if !moved {
		return nil, fmt.Errorf("no volume has the id %q", id)
	}
	c.sim.catalog(func(all diskCatalog) {
		for _, objects := range all {
			if o := objects[types.ID{Id: id}]; o != nil {
				delete(objects, types.ID{Id: id})
				backing := o.Config.Backing.(*types.BaseConfigInfoDiskFileBackingInfo)
				backing.Datastore, backing.FilePath = ds.Self, fmt.Sprintf("[%s] fcd/%s.vmdk", ds.Name, id)
				if all[ds.Self] == nil {
					all[ds.Self] = map[types.ID]*simulator.VStorageObject{}
				}
				all[ds.Self][types.ID{Id: id}] = o
				return
			}
		}
	})
	return map[string]string{"moved": id}, nil
}
