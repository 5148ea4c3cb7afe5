package main

import (
	"fmt"
	"math/rand"
	"sync"
	"testing"
	"time"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/types"
)

// Clients, watchers and control requests use the same objects at once: there must be no deadlock, and at the end the
// watchers must know the current inventory.
func TestConcurrentClientsAgreeInTheEnd(t *testing.T) {
	p := launch(t, world(func(w record) {
		var vms list
		for i := range 8 {
			vms = append(vms, record{"name": fmt.Sprintf("node-%d", i), "folder": "k8s", "resourcePool": "k8s"})
		}
		w["datacenters"].(list)[0].(record)["vms"] = vms
		w["permissions"] = append(w["permissions"].(list), record{"principal": op, "role": "Admin", "entity": "/"})
	}))
	var refs []ref
	for i := range 8 {
		refs = append(refs, p.moref(fmt.Sprintf("node-%d", i)))
	}
	boss := p.client()
	var watches []*watch
	for _, c := range []string{"", op} {
		client := boss
		if c != "" {
			client = p.client(c)
		}
		watches = append(watches, p.watch(client, client.ServiceContent.RootFolder, "VirtualMachine", "name", "runtime.powerState", "runtime.host", "config.hardware.device", "guest.hostName"))
	}
	volumes := p.storage(boss).create("c", "a", "b", "c", "d")

	var hands, eyes sync.WaitGroup
	stop := make(chan struct{})
	for _, w := range watches {
		eyes.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					w.once(1)
				}
			}
		})
	}
	for hand := range 4 {
		hands.Go(func() {
			rng, c, ctx := rand.New(rand.NewSource(int64(hand))), p.client(), deadline(t)
			store := p.storage(c)
			for range 25 {
				vm := object.NewVirtualMachine(c.Client, refs[rng.Intn(len(refs))])
				switch rng.Intn(4) {
				case 0:
					if task, err := vm.PowerOff(ctx); err == nil {
						_ = task.Wait(ctx)
					}
				case 1:
					if task, err := vm.PowerOn(ctx); err == nil {
						_ = task.Wait(ctx)
					}
				case 2:
					task, err := vm.Reconfigure(ctx, types.VirtualMachineConfigSpec{ExtraConfig: []types.BaseOptionValue{&types.OptionValue{Key: "n", Value: fmt.Sprint(rng.Int())}}})
					if err == nil {
						_ = task.Wait(ctx)
					}
				case 3:
					id := volumes[rng.Intn(len(volumes))]
					if _, fault := store.attach(id, vm.Reference()); fault == "" {
						store.detach(id, vm.Reference())
					}
				}
			}
		})
		hands.Go(func() {
			rng := rand.New(rand.NewSource(int64(100 + hand)))
			for range 25 {
				path := patchOf(fmt.Sprintf("/DC0/vm/k8s/node-%d", rng.Intn(8)))
				p.lever("PATCH", path, record{"host": fmt.Sprintf("esx-%d", 1+rng.Intn(2)), "hostName": fmt.Sprint("h", rng.Int())})
				p.lever("POST", "/permissions", record{"principal": op, "role": []string{"ReadOnly", "NoAccess"}[rng.Intn(2)], "entity": fmt.Sprintf("/DC0/vm/k8s/node-%d", rng.Intn(8))})
			}
		})
	}
	done := make(chan struct{})
	go func() { hands.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatal("it locked up")
	}
	for i := range 8 {
		p.lever("POST", "/permissions", record{"principal": op, "role": "ReadOnly", "entity": fmt.Sprintf("/DC0/vm/k8s/node-%d", i)})
	}
	close(stop)
	eyes.Wait()
	for _, w := range watches {
		w.until("the world as it is", func() bool {
			for _, v := range p.inventory().Datacenters[0].VMs {
				seen := w.named(v.Name)
				if seen == nil || seen["runtime.powerState"] != powerState[v.Power] || (v.Power == "on") != (seen["guest.hostName"] == *v.HostName) {
					return false
				}
				disks := 0
				for _, d := range seen["config.hardware.device"].(types.ArrayOfVirtualDevice).VirtualDevice {
					if _, ok := d.(*types.VirtualDisk); ok {
						disks++
					}
				}
				if disks != len(v.Disks) {
					return false
				}
			}
			return len(w.objects) == 8
		})
	}
}
