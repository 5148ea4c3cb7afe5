package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
)

// agent is a disk agent that records the events. Its answer is sent to every event.
func (p *peer) agent(answer string) chan diskEvent {
	p.t.Helper()
	socket, events := filepath.Join(p.t.TempDir(), "agent.sock"), make(chan diskEvent, 8)
	listener, err := net.Listen("unix", socket)
	must(p.t, err)
	p.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			var event diskEvent
			_ = json.NewDecoder(bufio.NewReader(conn)).Decode(&event)
			events <- event
			fmt.Fprintln(conn, answer)
			conn.Close()
		}
	}()
	p.lever("PUT", "/disk-agent", map[string]string{"socket": socket})
	return events
}

func TestTheDiskAgentIsCalledBeforeTheTaskSucceeds(t *testing.T) {
	p := launch(t, world())
	s := p.storage(p.client())
	id, vm := s.create("cluster-1", "a")[0], p.moref("node-1")
	events := p.agent("{}")
	heard := func(event, disk string, bytes int64) {
		t.Helper()
		want := diskEvent{Event: event, VM: "node-1", Volume: id, Disk: disk, Bytes: bytes}
		select {
		case got := <-events:
			if got != want {
				t.Fatalf("%+v, not %+v", got, want)
			}
		default:
			t.Fatalf("the task succeeded before the agent heard of %s", event)
		}
	}
	uuid, fault := s.attach(id, vm)
	if fault != "" {
		t.Fatal(fault)
	}
	heard("attach", uuid, 1<<30)
	r := s.results(s.cns.ExtendVolume(deadline(t), []cnstypes.CnsVolumeExtendSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, CapacityInMb: 4096}}))
	if f := r[0].GetCnsVolumeOperationResult().Fault; f != nil {
		t.Fatalf("extend: %T", f.Fault)
	}
	heard("extend", uuid, 4<<30)
	if f := s.detach(id, vm); f != nil {
		t.Fatalf("detach: %T", f.Fault)
	}
	heard("detach", uuid, 0)
}

func TestAnErrorOfTheDiskAgentFailsTheAttach(t *testing.T) {
	p := launch(t, world())
	s := p.storage(p.client())
	id, vm := s.create("cluster-1", "a")[0], p.moref("node-1")
	p.agent(`{"error":"no loop device is free"}`)
	if _, fault := s.attach(id, vm); fault != "SystemError" {
		t.Fatalf("attach: %q", fault)
	}
	if disks := p.describe("node-1").Disks; len(disks) != 1 {
		t.Fatalf("the disk is attached nevertheless: %+v", disks)
	}
	p.lever("PUT", "/disk-agent", map[string]string{"socket": ""})
	if _, fault := s.attach(id, vm); fault != "" {
		t.Fatalf("attach without an agent: %q", fault)
	}
}

func TestTheDiskAgentCopiesTheDataToASnapshotAndToTheRestoredVolume(t *testing.T) {
	p := launch(t, world())
	s := p.storage(p.client())
	id := cnstypes.CnsVolumeId{Id: s.create("cluster-1", "a")[0]}
	events := p.agent("{}")
	made := s.results(s.cns.CreateSnapshots(deadline(t), []cnstypes.CnsSnapshotCreateSpec{{VolumeId: id, Description: "one"}}))
	snapshot := made[0].(*cnstypes.CnsSnapshotCreateResult).Snapshot.SnapshotId
	want := diskEvent{Event: "copy", Volume: id.Id, Disk: plainUUID(snapshot.Id), From: plainUUID(diskUUID(id.Id))}
	if got := <-events; got != want {
		t.Fatalf("%+v, not %+v", got, want)
	}
	spec := spec("restored", s.ds, "cluster-1")
	spec.VolumeSource = &cnstypes.CnsSnapshotVolumeSource{VolumeId: id, SnapshotId: snapshot}
	restored := s.results(s.cns.CreateVolume(deadline(t), []cnstypes.CnsVolumeCreateSpec{spec}))[0].GetCnsVolumeOperationResult().VolumeId
	want = diskEvent{Event: "copy", Volume: restored.Id, Disk: plainUUID(diskUUID(restored.Id)), From: want.Disk}
	if got := <-events; got != want {
		t.Fatalf("%+v, not %+v", got, want)
	}
}
