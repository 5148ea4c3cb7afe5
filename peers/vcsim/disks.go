package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
)

// diskAgent gives attached disks to the nodes of a test: it makes a block device appear, disappear or grow, and copies
// the data of a disk to a snapshot and back. It is called before the task of the volume succeeds, as the guest of a
// real VM sees the disk by then.
type diskAgent struct {
	mu     sync.Mutex
	socket string
}

// diskEvent is one line of JSON for the agent. Its answer is a line too: {} or {"error": "..."}.
type diskEvent struct {
	Event  string `json:"event"` // attach, detach, extend or copy
	VM     string `json:"vm"`
	Volume string `json:"volume"`
	Disk   string `json:"disk"` // the uuid of the disk, or of the snapshot that a copy writes, 32 digits
	Bytes  int64  `json:"bytes"`
	From   string `json:"from,omitempty"` // of a copy: the uuid of the disk or snapshot that has the data
}

const diskAgentTimeout = 30 * time.Second

// tell calls the agent, if there is one.
func (a *diskAgent) tell(event diskEvent) error {
	a.mu.Lock()
	socket := a.socket
	a.mu.Unlock()
	if socket == "" {
		return nil
	}
	conn, err := net.DialTimeout("unix", socket, diskAgentTimeout)
	if err != nil {
		return fmt.Errorf("the disk agent cannot be reached: %w", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(diskAgentTimeout))
	if err := json.NewEncoder(conn).Encode(event); err != nil {
		return fmt.Errorf("the disk agent does not listen: %w", err)
	}
	var answer struct{ Error string }
	if err := json.NewDecoder(bufio.NewReader(conn)).Decode(&answer); err != nil {
		return fmt.Errorf("the disk agent does not answer: %w", err)
	}
	if answer.Error != "" {
		return fmt.Errorf("the disk agent: %s", answer.Error)
	}
	return nil
}

// tellAgent turns an error of the agent into a fault of the volume.
func (c *volumes) tellAgent(event string, vm *simulator.VirtualMachine, out result) result {
	done := out.GetCnsVolumeOperationResult()
	if done.Fault != nil {
		return out
	}
	var bytes int64
	if disk := volumeDisk(vm, done.VolumeId.Id); disk != nil {
		bytes = disk.CapacityInBytes
	}
	id := done.VolumeId.Id
	err := c.agent.tell(diskEvent{Event: event, VM: vm.Name, Volume: id, Disk: plainUUID(diskUUID(id)), Bytes: bytes})
	if err != nil {
		return failed(done.VolumeId, &types.SystemError{Reason: err.Error()})
	}
	return out
}

// copyData copies the data of a volume to its new snapshot, or of a snapshot to its new volume.
func (c *volumes) copyData(volume cnstypes.CnsVolumeId, from, to string, out result) result {
	err := c.agent.tell(diskEvent{Event: "copy", Volume: volume.Id, Disk: plainUUID(to), From: plainUUID(from)})
	if err != nil {
		return failed(volume, &types.SystemError{Reason: err.Error()})
	}
	return out
}

// setDiskAgent is the lever PUT /disk-agent: {"socket": "/path"}, empty for none.
func (c *control) setDiskAgent(_ *http.Request, b []byte) (any, error) {
	var agent struct{ Socket string }
	if err := decodeStrict(b, &agent); err != nil {
		return nil, err
	}
	a := &c.sim.volumes.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	a.socket = agent.Socket
	return map[string]string{"socket": a.socket}, nil
}
