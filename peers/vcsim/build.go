package main

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

type ref = types.ManagedObjectReference

const gib = 1 << 30

// build creates the inventory in process, with the simulator's own objects.
func (s *Sim) build(inv *Inventory) error {
	for i := range inv.Datacenters {
		dc := &inv.Datacenters[i]
		if err := s.buildDatacenter(dc); err != nil {
			return fmt.Errorf("datacenters[%d]: %w", i, err)
		}
	}
	return nil
}

func (s *Sim) buildDatacenter(spec *Datacenter) error {
	ctx := s.ctx()
	parent, err := s.ensureFolder(s.root(), spec.Folder)
	if err != nil {
		return err
	}
	made := parent.CreateDatacenter(ctx, &types.CreateDatacenter{This: parent.Self, Name: spec.Name})
	if f := made.Fault(); f != nil {
		return fmt.Errorf("create datacenter: %v", f.Detail.Fault)
	}
	dc := s.reg().Get(made.(*methods.CreateDatacenterBody).Res.Returnval).(*simulator.Datacenter)
	s.buildNetworks(dc, spec.Networks)
	for i, c := range spec.Clusters {
		if err := s.buildCluster(dc, c); err != nil {
			return fmt.Errorf("clusters[%d]: %w", i, err)
		}
	}
	for i, h := range spec.Hosts {
		folder, err := s.ensureFolder(dc.HostFolder, h.Folder)
		if err != nil {
			return fmt.Errorf("hosts[%d]: %w", i, err)
		}
		host, fault := simulator.CreateStandaloneHost(ctx, folder, types.HostConnectSpec{HostName: h.Name})
		if fault != nil {
			return fmt.Errorf("hosts[%d]: %T", i, fault)
		}
		s.dressHost(dc, host, h)
	}
	for i, d := range spec.Datastores {
		if err := s.buildDatastore(dc, d); err != nil {
			return fmt.Errorf("datastores[%d]: %w", i, err)
		}
	}
	for i, f := range spec.Folders {
		if _, err := s.ensureFolder(dc.VmFolder, f); err != nil {
			return fmt.Errorf("folders[%d]: %w", i, err)
		}
	}
	place, err := s.places(dc)
	if err != nil {
		return err
	}
	for i, v := range spec.VMs {
		if _, err := s.registerVM(place, v); err != nil {
			return fmt.Errorf("vms[%d]: %w", i, err)
		}
	}
	return nil
}

// buildNetworks renames the default network of a datacenter to the first one and adds the others.
func (s *Sim) buildNetworks(dc *simulator.Datacenter, names []string) {
	first := s.reg().Get(dc.Network[0]).(*mo.Network)
	first.Name, first.ManagedEntity.Name = names[0], names[0]
	first.Summary.GetNetworkSummary().Name = names[0]
	for _, name := range names[1:] {
		n := &mo.Network{Name: name}
		n.ManagedEntity.Name = name
		s.putChild(dc.NetworkFolder, n)
		n.Summary = &types.NetworkSummary{Network: &n.Self, Name: name, Accessible: true}
		dc.Network = append(dc.Network, n.Self)
	}
}

func (s *Sim) buildCluster(dc *simulator.Datacenter, spec Cluster) error {
	ctx := s.ctx()
	folder, err := s.ensureFolder(dc.HostFolder, spec.Folder)
	if err != nil {
		return err
	}
	cluster, fault := simulator.CreateClusterComputeResource(ctx, folder, spec.Name, types.ClusterConfigSpecEx{})
	if fault != nil {
		return fmt.Errorf("%T", fault)
	}
	cluster.Network = slices.Clone(dc.Network)
	var hosts []*simulator.HostSystem
	for i, h := range spec.Hosts {
		body := cluster.AddHostTask(s.ctx(), &types.AddHost_Task{This: cluster.Self, AsConnected: true,
			Spec: types.HostConnectSpec{HostName: h.Name}}).(*methods.AddHost_TaskBody)
		made, fault := s.finish(body.Res.Returnval)
		if fault != nil {
			return fmt.Errorf("hosts[%d]: %T", i, fault)
		}
		hosts = append(hosts, s.reg().Get(made.(ref)).(*simulator.HostSystem))
	}
	for i, h := range hosts { // all of them after the last was added: govmomi panics on versions it does not know
		s.dressHost(dc, h, spec.Hosts[i])
	}
	root := s.reg().Get(*cluster.ResourcePool).(*simulator.ResourcePool)
	for i, name := range spec.ResourcePools {
		pool := root
		for _, part := range strings.Split(name, "/") {
			if had := s.reg().FindByName(part, pool.ResourcePool.ResourcePool); had != nil {
				pool = had.(*simulator.ResourcePool)
				continue
			}
			body := pool.CreateResourcePool(ctx, &types.CreateResourcePool{This: pool.Self, Name: part,
				Spec: types.DefaultResourceConfigSpec()}).(*methods.CreateResourcePoolBody)
			if body.Fault_ != nil {
				return fmt.Errorf("resourcePools[%d]: %T", i, body.Fault_.Detail.Fault)
			}
			pool = s.reg().Get(body.Res.Returnval).(*simulator.ResourcePool)
		}
	}
	s.fileService[cluster.Self] = spec.FileService
	return nil
}

// dressHost applies the inventory to a host. It copies the product first: all hosts of the simulator share one
// template.
func (s *Sim) dressHost(dc *simulator.Datacenter, h *simulator.HostSystem, spec Host) {
	h.Network = slices.Clone(dc.Network)
	product := clone(h.Config.Product)
	h.Config.Product = product
	h.Summary.Config.Product = &product
	h.Datastore = nil
	if dss, ok := s.reg().Get(*h.ConfigManager.DatastoreSystem).(*simulator.HostDatastoreSystem); ok {
		dss.Datastore = nil
	}
	s.setHost(h, spec)
}

// setHost sets the mutable fields of a host.
func (s *Sim) setHost(h *simulator.HostSystem, spec Host) {
	for _, p := range []*types.AboutInfo{&h.Config.Product, h.Summary.Config.Product} {
		p.Version, p.ApiVersion, p.Build = spec.Version, spec.Version, spec.Build
		p.FullName = fmt.Sprintf("VMware ESXi %s build-%s", spec.Version, spec.Build)
	}
	h.Runtime.InMaintenanceMode = spec.Maintenance
	h.Runtime.ConnectionState = types.HostSystemConnectionState(spec.Connection)
	h.Runtime.PowerState = types.HostSystemPowerStatePoweredOn
	if spec.Connection == "notResponding" {
		h.Runtime.PowerState = types.HostSystemPowerStateUnknown
	}
}

func (s *Sim) buildDatastore(dc *simulator.Datacenter, spec Datastore) error {
	if !strings.HasPrefix(spec.URL, "ds:///") || strings.Contains(spec.URL, "..") {
		return fmt.Errorf("url %q does not begin with ds:///", spec.URL)
	}
	// The simulator keeps a datastore's files under its url: as a path, this is inside our own folder.
	if err := os.MkdirAll(path.Join(spec.URL), 0o700); err != nil {
		return err
	}
	ds := &simulator.Datastore{}
	ds.Name = spec.Name
	s.putChild(dc.DatastoreFolder, ds)
	dc.Datastore = append(dc.Datastore, ds.Self)
	browser := &simulator.HostDatastoreBrowser{}
	browser.Datastore = []ref{ds.Self}
	ds.Browser = s.reg().Put(browser).Reference()
	ds.Info = datastoreInfo(spec)
	ds.Capability = types.DatastoreCapability{DirectoryHierarchySupported: true, PerFileThinProvisioningSupported: true,
		TopLevelDirectoryCreateSupported: types.NewBool(spec.Type != "vsan")}
	ds.Summary = types.DatastoreSummary{Datastore: &ds.Self, Name: spec.Name, Url: spec.URL, Type: spec.Type}
	s.setDatastore(dc, ds, spec)
	return nil
}

func datastoreInfo(spec Datastore) types.BaseDatastoreInfo {
	info := types.DatastoreInfo{Name: spec.Name, Url: spec.URL, Timestamp: types.NewTime(time.Now())}
	name := path.Base(spec.URL)
	switch spec.Type {
	case "VMFS":
		return &types.VmfsDatastoreInfo{DatastoreInfo: info, Vmfs: &types.HostVmfsVolume{
			HostFileSystemVolume: types.HostFileSystemVolume{Type: "VMFS", Name: spec.Name}, Uuid: name, Version: "6.82", MajorVersion: 6, BlockSizeMb: 1}}
	case "NFS", "NFS41":
		return &types.NasDatastoreInfo{DatastoreInfo: info, Nas: &types.HostNasVolume{
			HostFileSystemVolume: types.HostFileSystemVolume{Type: spec.Type, Name: spec.Name}, RemoteHost: "nas.example", RemotePath: "/" + spec.Name}}
	case "vsan":
		return &types.VsanDatastoreInfo{DatastoreInfo: info, MembershipUuid: name}
	}
	return &info
}

// setDatastore sets the mutable fields of a datastore, including its mounts on both sides.
func (s *Sim) setDatastore(dc *simulator.Datacenter, ds *simulator.Datastore, spec Datastore) {
	accessible := *spec.Accessible
	capacity, free := int64(*spec.CapacityGiB*gib), int64(*spec.FreeGiB*gib)
	sum := &ds.Summary
	sum.Capacity, sum.FreeSpace, sum.Accessible, sum.MaintenanceMode = capacity, free, accessible, spec.Maintenance
	info := ds.Info.GetDatastoreInfo()
	info.FreeSpace, info.MaxFileSize = free, capacity
	switch i := ds.Info.(type) {
	case *types.VmfsDatastoreInfo:
		i.Vmfs.Capacity = capacity
	case *types.NasDatastoreInfo:
		i.Nas.Capacity = capacity
	}

	mounts := []types.DatastoreHostMount{}
	for _, h := range s.hostsOf(dc) {
		mounted := spec.Hosts == nil || slices.Contains(*spec.Hosts, h.Name)
		s.member(h, &h.Datastore, ds.Self, mounted)
		if dss, ok := s.reg().Get(*h.ConfigManager.DatastoreSystem).(*simulator.HostDatastoreSystem); ok {
			setMember(&dss.Datastore, ds.Self, mounted)
		}
		if mounted {
			info := types.HostMountInfo{Path: "/vmfs/volumes/" + path.Base(spec.URL), AccessMode: "readWrite",
				Mounted: types.NewBool(true), Accessible: types.NewBool(accessible)}
			if !accessible {
				info.InaccessibleReason = string(types.HostMountInfoInaccessibleReasonAllPathsDown_Start)
			}
			mounts = append(mounts, types.DatastoreHostMount{Key: h.Self, MountInfo: info})
		}
	}
	ds.Host = mounts
	sum.MultipleHostAccess = types.NewBool(len(mounts) > 1)
	for _, c := range s.computeOf(dc) {
		has := false
		for _, h := range c.Host {
			has = has || slices.Contains(s.reg().Get(h).(*simulator.HostSystem).Datastore, ds.Self)
		}
		s.member(c, &c.Datastore, ds.Self, has)
	}
}

// setMember adds a reference to a list or removes it. It never changes the list in place: a reader can hold the old one.
func setMember(list *[]ref, r ref, in bool) {
	at := slices.Index(*list, r)
	switch {
	case in && at < 0:
		*list = append(slices.Clone(*list), r)
	case !in && at >= 0:
		*list = slices.Delete(slices.Clone(*list), at, at+1)
	}
}

// member adds a reference to a list of another object or removes it, and notes the change.
func (s *Sim) member(owner mo.Reference, list *[]ref, r ref, in bool) {
	changed := false
	s.locked(owner, func() {
		before := len(*list)
		setMember(list, r, in)
		changed = len(*list) != before
	})
	if changed {
		s.journal.touch(owner.Reference())
	}
}

// putChild registers an entity as the child of a folder.
func (s *Sim) putChild(folder ref, e mo.Entity) {
	f := s.reg().Get(folder).(*simulator.Folder)
	s.reg().NewEntity(e)
	f.ChildEntity = append(f.ChildEntity, e.Reference())
	s.reg().PutEntity(f, e)
}

// ensureFolder walks a path below a folder and creates missing folders; "" is the folder itself.
func (s *Sim) ensureFolder(base ref, below string) (*simulator.Folder, error) {
	f, ok := s.reg().Get(base).(*simulator.Folder)
	if !ok {
		return nil, fmt.Errorf("%s is no folder", base)
	}
	for _, name := range strings.FieldsFunc(below, func(r rune) bool { return r == '/' }) {
		if had := s.reg().FindByName(name, f.ChildEntity); had != nil {
			if f, ok = had.(*simulator.Folder); !ok {
				return nil, fmt.Errorf("folder %q: %q is a %s", below, name, had.Reference().Type)
			}
			continue
		}
		body := f.CreateFolder(s.ctx(), &types.CreateFolder{This: f.Self, Name: name}).(*methods.CreateFolderBody)
		if body.Fault_ != nil {
			return nil, fmt.Errorf("folder %q: %T", below, body.Fault_.Detail.Fault)
		}
		f = s.reg().Get(body.Res.Returnval).(*simulator.Folder)
	}
	return f, nil
}

// finish waits for one of our own tasks and removes it from the registry.
func (s *Sim) finish(task ref) (types.AnyType, types.BaseMethodFault) {
	t := s.reg().Get(task).(*simulator.Task)
	s.await(t)
	s.reg().Remove(s.ctx(), task)
	if t.Info.Error != nil {
		return nil, t.Info.Error.Fault
	}
	return t.Info.Result, nil
}

// await waits for the end of a task. govmomi's own wait looks every 10 ms only.
func (s *Sim) await(t *simulator.Task) {
	for {
		done := false
		s.reg().WithLock(&simulator.Context{}, t, func() {
			done = t.Info.State == types.TaskInfoStateSuccess || t.Info.State == types.TaskInfoStateError
		})
		if done {
			return
		}
		time.Sleep(50 * time.Microsecond)
	}
}
