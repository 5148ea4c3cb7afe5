package main

import (
	"fmt"
	"strings"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/vim25/types"
)

func volumeFault(r cnstypes.BaseCnsVolumeOperationResult) string {
	f := r.GetCnsVolumeOperationResult().Fault
	if f == nil {
		return ""
	}
	return strings.TrimPrefix(strings.TrimPrefix(fmt.Sprintf("%T", f.Fault), "*"), "types.")
}

func TestASnapshotCanBeRestoredAndPreventsGrowth(t *testing.T) {
	p := launch(t, world())
	s := p.storage(p.client())
	id := cnstypes.CnsVolumeId{Id: s.create("cluster-1", "a")[0]}
	unknown := cnstypes.CnsVolumeId{Id: "no-such-volume"}
	made := s.results(s.cns.CreateSnapshots(deadline(t), []cnstypes.CnsSnapshotCreateSpec{{VolumeId: id, Description: "one"}, {VolumeId: unknown}}))
	if volumeFault(made[0]) != "" || volumeFault(made[1]) != "CnsVolumeNotFoundFault" {
		t.Fatalf("%q %q", volumeFault(made[0]), volumeFault(made[1]))
	}
	snapshot := made[0].(*cnstypes.CnsSnapshotCreateResult).Snapshot.SnapshotId
	restore := func(size int64, snapshot cnstypes.CnsSnapshotId) string {
		spec := spec("restored", s.ds, "cluster-1")
		spec.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb = size
		spec.VolumeSource = &cnstypes.CnsSnapshotVolumeSource{VolumeId: id, SnapshotId: snapshot}
		return volumeFault(s.results(s.cns.CreateVolume(deadline(t), []cnstypes.CnsVolumeCreateSpec{spec}))[0])
	}
	if got := restore(1024, snapshot); got != "" {
		t.Fatal(got)
	}
	p.lever("PATCH", "/volumes?id="+id.Id, record{"datastore": "/DC0/datastore/local-1"})
	if got := restore(1024, snapshot); got != "CnsFault" {
		t.Fatalf("another datastore: %q", got)
	}
	p.lever("PATCH", "/volumes?id="+id.Id, record{"datastore": "/DC0/datastore/shared-1"})
	if got := restore(2048, snapshot); got != "InvalidArgument" {
		t.Fatalf("another size: %q", got)
	}
	if got := restore(1024, cnstypes.CnsSnapshotId{Id: "no-such-snapshot"}); got != "CnsSnapshotNotFoundFault" {
		t.Fatalf("another snapshot: %q", got)
	}
	grow := []cnstypes.CnsVolumeExtendSpec{{VolumeId: id, CapacityInMb: 4096}}
	if got := volumeFault(s.results(s.cns.ExtendVolume(deadline(t), grow))[0]); got != "CnsFault" {
		t.Fatalf("a volume with a snapshot grew: %q", got)
	}
	remove := []cnstypes.CnsSnapshotDeleteSpec{{VolumeId: id, SnapshotId: snapshot}}
	for _, want := range []string{"", "CnsSnapshotNotFoundFault"} {
		if got := volumeFault(s.results(s.cns.DeleteSnapshots(deadline(t), remove))[0]); got != want {
			t.Fatalf("delete: %q, not %q", got, want)
		}
	}
	if got := volumeFault(s.results(s.cns.ExtendVolume(deadline(t), grow))[0]); got != "" {
		t.Fatalf("extend: %q", got)
	}
}

func TestAVolumeGetsAnotherPolicy(t *testing.T) {
	p := launch(t, world())
	s := p.storage(p.client())
	id := cnstypes.CnsVolumeId{Id: s.create("cluster-1", "a")[0]}
	profile := []types.BaseVirtualMachineProfileSpec{&types.VirtualMachineDefinedProfileSpec{ProfileId: "gold"}}
	change := []cnstypes.CnsVolumePolicyReconfigSpec{{VolumeId: id, Profile: profile}}
	if got := volumeFault(s.results(s.cns.ReconfigVolumePolicy(deadline(t), change))[0]); got != "" {
		t.Fatal(got)
	}
	q, err := s.cns.QueryVolume(deadline(t), &cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{id}})
	must(t, err)
	if len(q.Volumes) != 1 || q.Volumes[0].StoragePolicyId != "gold" {
		t.Fatalf("%+v", q.Volumes)
	}
}
