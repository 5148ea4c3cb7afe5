package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vsan"
)

// storage is a CNS client with the inventory's first datastore.
type storage struct {
	t   *testing.T
	p   *peer
	c   *govmomi.Client
	cns *cns.Client
	ds  ref
}

func (p *peer) storage(c *govmomi.Client) *storage {
	p.t.Helper()
	client, err := cns.NewClient(deadline(p.t), c.Client)
	must(p.t, err)
	return &storage{p.t, p, c, client, ref{Type: "Datastore", Value: p.inventory().Datacenters[0].Datastores[0].Moref}}
}

func spec(name string, ds ref, cluster string) cnstypes.CnsVolumeCreateSpec {
	return cnstypes.CnsVolumeCreateSpec{Name: name, VolumeType: string(cnstypes.CnsVolumeTypeBlock), Datastores: []ref{ds},
		Metadata:             cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{ClusterType: "KUBERNETES", ClusterId: cluster, VSphereUser: admin, ClusterFlavor: "VANILLA"}},
		BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: 1024}}}
}

// results waits for a CNS task and returns the result of each volume.
func (s *storage) results(task *object.Task, err error) []cnstypes.BaseCnsVolumeOperationResult {
	s.t.Helper()
	must(s.t, err)
	info, err := task.WaitForResult(deadline(s.t), nil)
	must(s.t, err)
	return info.Result.(cnstypes.CnsVolumeOperationBatchResult).VolumeResults
}

func (s *storage) create(cluster string, names ...string) (ids []string) {
	s.t.Helper()
	var specs []cnstypes.CnsVolumeCreateSpec
	for _, n := range names {
		specs = append(specs, spec(n, s.ds, cluster))
	}
	for _, r := range s.results(s.cns.CreateVolume(deadline(s.t), specs)) {
		if f := r.GetCnsVolumeOperationResult().Fault; f != nil {
			s.t.Fatalf("create: %T", f.Fault)
		}
		ids = append(ids, r.GetCnsVolumeOperationResult().VolumeId.Id)
	}
	return ids
}

func (s *storage) attach(id string, vm ref) (uuid, fault string) {
	s.t.Helper()
	r := s.results(s.cns.AttachVolume(deadline(s.t), []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, Vm: vm}}))[0]
	if a, ok := r.(*cnstypes.CnsVolumeAttachResult); ok {
		uuid = a.DiskUUID
	}
	if f := r.GetCnsVolumeOperationResult().Fault; f != nil {
		fault = strings.TrimPrefix(fmt.Sprintf("%T", f.Fault), "*types.")
		fault = strings.TrimPrefix(fault, "types.")
		if c, ok := f.Fault.(*cnstypes.CnsFault); ok {
			fault += ": " + c.Reason
		}
	}
	return uuid, fault
}

func (s *storage) detach(id string, vm ref) *types.LocalizedMethodFault {
	s.t.Helper()
	return s.results(s.cns.DetachVolume(deadline(s.t), []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, Vm: vm}}))[0].GetCnsVolumeOperationResult().Fault
}

func TestAttachAddsADiskAndDetachRemovesIt(t *testing.T) {
	p := launch(t, world())
	s := p.storage(p.client())
	ids := s.create("cluster-1", "a", "b")
	if len(ids) != 2 {
		t.Fatalf("two specs, %d volumes", len(ids))
	}
	one, two := p.moref("node-1"), p.moref("node-2")
	uuid, fault := s.attach(ids[0], one)
	if fault != "" || !strings.HasPrefix(uuid, "6000c29") || len(uuid) != 32 {
		t.Fatalf("attach: %q %q", uuid, fault)
	}
	disks := p.describe("node-1").Disks
	if len(disks) != 2 || disks[1].VolumeID != ids[0] || strings.ToLower(strings.ReplaceAll(disks[1].UUID, "-", "")) != uuid || disks[1].CapacityMB != 1024 {
		t.Fatalf("the VM's disks: %+v", disks)
	}
	if _, fault = s.attach(ids[0], two); fault != "ResourceInUse" {
		t.Fatalf("a second attach: %q", fault)
	}
	r := s.results(s.cns.DeleteVolume(deadline(t), []cnstypes.CnsVolumeId{{Id: ids[0]}}, true))
	if f := r[0].GetCnsVolumeOperationResult().Fault; f == nil {
		t.Fatal("an attached volume was deleted")
	}
	r = s.results(s.cns.ExtendVolume(deadline(t), []cnstypes.CnsVolumeExtendSpec{{VolumeId: cnstypes.CnsVolumeId{Id: ids[0]}, CapacityInMb: 4096}}))
	if f := r[0].GetCnsVolumeOperationResult().Fault; f != nil {
		t.Fatalf("extend: %T", f.Fault)
	}
	if d := p.describe("node-1").Disks[1]; d.CapacityMB != 4096 {
		t.Fatalf("the device did not grow: %+v", d)
	}
	if f := s.detach(ids[0], one); f != nil {
		t.Fatalf("detach: %T", f.Fault)
	}
	if f := s.detach(ids[0], one); f == nil {
		t.Fatal("a second detach went well")
	}
	if d := p.describe("node-1").Disks; len(d) != 1 {
		t.Fatalf("the disk is still there: %+v", d)
	}
	if _, fault = s.attach(ids[0], two); fault != "" {
		t.Fatalf("attach elsewhere: %q", fault)
	}
	q, err := s.cns.QueryVolume(deadline(t), &cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{{Id: ids[0]}}})
	must(t, err)
	if got := q.Volumes[0].BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb; got != 4096 {
		t.Fatalf("the capacity was lost: %d", got)
	}
	p.lever("DELETE", patchOf("/DC0/vm/k8s/node-2"), nil)
	if _, fault = s.attach(ids[0], one); fault != "" {
		t.Fatalf("attach after its VM is gone: %q", fault)
	}
}

func TestAVMHasFifteenDisksOnEachOfFourControllers(t *testing.T) {
	p := launch(t, world())
	for _, host := range []string{"esx-1", "esx-2"} {
		p.lever("PATCH", "/hosts?path=/DC0/host/C0/"+host, record{"version": "7.0.3"})
	}
	s := p.storage(p.client())
	var names []string
	for i := range 60 {
		names = append(names, fmt.Sprint("v", i))
	}
	vm := p.moref("node-1")
	for i, id := range s.create("c", names...) {
		_, fault := s.attach(id, vm)
		if i < 59 && fault != "" {
			t.Fatalf("volume %d: %s", i, fault)
		}
		if i == 59 && !strings.Contains(fault, "missing SCSI controller") {
			t.Fatalf("the VM is full, but %q", fault)
		}
	}
	places := map[string]bool{}
	for _, d := range p.describe("node-1").Disks {
		if d.Unit == 7 || d.Unit > 15 {
			t.Fatalf("unit %d", d.Unit)
		}
		places[fmt.Sprint(d.Controller, ":", d.Unit)] = true
	}
	if len(places) != 60 || len(*p.describe("node-1").SCSI) != 4 {
		t.Fatalf("%d places on %v", len(places), *p.describe("node-1").SCSI)
	}
}

func TestManyDisksFitOnANewHostAndOthersTakeSlots(t *testing.T) {
	p := launch(t, world())
	p.lever("PATCH", patchOf("/DC0/vm/k8s/node-1"), record{"extraDisks": 3})
	p.lever("POST", "/volumes", record{"count": 300, "cluster": "c", "megabytes": 1, "attachEach": 300})
	places := map[string]bool{}
	for _, d := range p.describe("node-1").Disks {
		places[fmt.Sprint(d.Controller, ":", d.Unit)] = true
	}
	if len(places) != 4*64 || p.describe("node-1").ExtraDisks != 3 {
		t.Fatalf("%d places, %d extra disks", len(places), p.describe("node-1").ExtraDisks)
	}
	p.lever("PATCH", patchOf("/DC0/vm/k8s/node-1"), record{"extraDisks": 1})
	if got := len(p.describe("node-1").Disks); got != 4*64-2 {
		t.Fatalf("%d disks after two were removed", got)
	}
	q, err := p.storage(p.client()).cns.QueryVolume(deadline(t), &cnstypes.CnsQueryFilter{ContainerClusterIds: []string{"c"}, Cursor: &cnstypes.CnsCursor{Limit: 1}})
	must(t, err)
	if len(q.Volumes) != 1 || q.Cursor.TotalRecords != 300 {
		t.Fatalf("%d of %d volumes", len(q.Volumes), q.Cursor.TotalRecords)
	}
}

func TestAVolumeGoesToOneOfManyCallers(t *testing.T) {
	p := launch(t, world())
	s := p.storage(p.client())
	vms := []ref{p.moref("node-1"), p.moref("node-2")}
	for _, id := range s.create("c", "a", "b", "c", "d", "e") {
		won := make(chan bool, 8)
		for i := range cap(won) {
			go func() { _, fault := s.attach(id, vms[i%2]); won <- fault == "" }()
		}
		attached := 0
		for range cap(won) {
			if <-won {
				attached++
			}
		}
		if attached != 1 {
			t.Fatalf("%d calls attached the volume", attached)
		}
	}
}

func TestQueriesHonourFilterAndCursor(t *testing.T) {
	p := launch(t, world())
	s := p.storage(p.client())
	s.create("cluster-1", "a", "b", "c", "d", "e")
	mine := s.create("cluster-2", "x")
	ctx := deadline(t)
	q, err := s.cns.QueryVolume(ctx, &cnstypes.CnsQueryFilter{ContainerClusterIds: []string{"cluster-2"}})
	must(t, err)
	if len(q.Volumes) != 1 || q.Volumes[0].VolumeId.Id != mine[0] || q.Volumes[0].Metadata.ContainerCluster.ClusterId != "cluster-2" {
		t.Fatalf("cluster-2 has %+v", q.Volumes)
	}
	seen := map[string]bool{}
	cursor := cnstypes.CnsCursor{Limit: 2}
	for rounds := 0; rounds < 4; rounds++ {
		q, err = s.cns.QueryVolume(ctx, &cnstypes.CnsQueryFilter{ContainerClusterIds: []string{"cluster-1"}, Cursor: &cursor})
		must(t, err)
		for _, v := range q.Volumes {
			seen[v.VolumeId.Id] = true
		}
		if q.Cursor.TotalRecords != 5 {
			t.Fatalf("the cursor says %+v", q.Cursor)
		}
		if cursor = q.Cursor; cursor.Offset == cursor.TotalRecords {
			break
		}
	}
	if len(seen) != 5 {
		t.Fatalf("paging showed %d of 5", len(seen))
	}
}

func TestAQueryWithoutTypeWorks(t *testing.T) {
	p := launch(t, world())
	c := p.client()
	s := p.storage(c)
	s.create("cluster-1", "a")
	mine := s.create("cluster-2", "x")
	body := `<?xml version="1.0"?><soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"><soapenv:Body><CnsQueryVolume xmlns="urn:vsan">` +
		`<_this type="CnsVolumeManager">cns-volume-manager</_this><filter><containerClusterIds>cluster-2</containerClusterIds></filter></CnsQueryVolume></soapenv:Body></soapenv:Envelope>`
	req, _ := http.NewRequestWithContext(context.Background(), "POST", "https://"+p.url.Host+cns.Path, bytes.NewReader([]byte(body)))
	req.Header.Set("Content-Type", "text/xml")
	for _, k := range c.Jar.Cookies(p.url) {
		req.AddCookie(k)
	}
	res, err := trusting().Do(req)
	must(t, err)
	answer, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode != 200 || !strings.Contains(string(answer), mine[0]) || strings.Count(string(answer), "<volumeId>") != 1 {
		t.Fatalf("%d %s", res.StatusCode, answer)
	}
}

func TestStorageNeedsItsPrivileges(t *testing.T) {
	p := launch(t, world())
	s, ctx := p.storage(p.client(op)), deadline(t)
	_, err := s.cns.QueryVolume(ctx, &cnstypes.CnsQueryFilter{})
	wantFault(t, err, "NoPermission")
	p.lever("POST", "/roles", record{"name": "search", "privileges": list{"Cns.Searchable"}})
	p.lever("POST", "/permissions", record{"principal": op, "role": "search", "entity": "/", "propagate": false})
	_, err = s.cns.QueryVolume(ctx, &cnstypes.CnsQueryFilter{})
	must(t, err)
	_, err = s.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{spec("a", s.ds, "c")})
	wantFault(t, err, "NoPermission")
	p.lever("POST", "/roles", record{"name": "files", "privileges": list{"Datastore.FileManagement"}})
	p.lever("POST", "/permissions", record{"principal": op, "role": "files", "entity": "/DC0/datastore/shared-1"})
	id := s.create("c", "a")[0]
	_, err = s.cns.AttachVolume(ctx, []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, Vm: p.moref("node-1")}})
	wantFault(t, err, "NoPermission")
	p.lever("POST", "/roles", record{"name": "k8s", "privileges": list{"VirtualMachine.Config.AddExistingDisk", "VirtualMachine.Config.AddRemoveDevice"}})
	if _, fault := s.attach(id, p.moref("node-1")); fault != "" {
		t.Fatal(fault)
	}
}

func TestACNSTaskCanBeMadeToFail(t *testing.T) {
	p := launch(t, world())
	s := p.storage(p.client())
	p.lever("POST", "/faults", record{"method": "CnsCreateVolume", "task": "fail", "taskFault": "CnsFault", "count": 1})
	task, err := s.cns.CreateVolume(deadline(t), []cnstypes.CnsVolumeCreateSpec{spec("a", s.ds, "c")})
	must(t, err)
	if err = task.Wait(deadline(t)); err == nil {
		t.Fatal("the task was to fail")
	}
	p.lever("POST", "/faults", record{"method": "CnsCreateVolume", "task": "slow", "taskDelayMs": 50, "count": 1})
	if ids := s.create("c", "b"); len(ids) != 1 {
		t.Fatalf("the slow task made %v", ids)
	}
}

func TestFileServiceIsReportedByCluster(t *testing.T) {
	p := launch(t, record{"datacenters": list{record{"name": "DC0", "clusters": list{record{"name": "C0", "fileService": true}, record{"name": "C1"}}}}})
	c, ctx := p.client(), deadline(t)
	v, err := vsan.NewClient(ctx, c.Client)
	must(t, err)
	for _, cluster := range p.inventory().Datacenters[0].Clusters {
		config, err := v.VsanClusterGetConfig(ctx, ref{Type: "ClusterComputeResource", Value: cluster.Moref})
		must(t, err)
		on := config.FileServiceConfig != nil && config.FileServiceConfig.Enabled
		if on != (cluster.Name == "C0") {
			t.Fatalf("file service of %s: %v", cluster.Name, on)
		}
	}
}
