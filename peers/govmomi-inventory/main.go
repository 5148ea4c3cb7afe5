// Reads an inventory with govmomi, as the Go programs do, to compare it with our client.
//
//	govmomi-inventory -url https://USER:PASSWORD@HOST/sdk retrieve|find
//
// It prints one line of JSON after the login and one when it is done, and ends when its standard input closes: the bench
// measures the process in between.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/view"
	"github.com/vmware/govmomi/vim25/mo"
)

// The properties of a VM that a cloud controller reads.
var properties = []string{
	"name", "config.uuid", "config.instanceUuid", "config.version", "config.guestId",
	"config.hardware.numCPU", "config.hardware.memoryMB", "guest.hostName", "guest.net",
	"guest.toolsRunningStatus", "runtime.host", "runtime.powerState",
}

func main() {
	address := flag.String("url", "", "the vCenter, with user and password")
	lookups := flag.Int("lookups", 1000, "how many VMs to find by uuid")
	flag.Parse()
	if err := run(context.Background(), *address, flag.Arg(0), *lookups); err != nil {
		fmt.Fprintln(os.Stderr, "govmomi-inventory:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, address, work string, lookups int) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	client, err := govmomi.NewClient(ctx, u, true)
	if err != nil {
		return err
	}
	defer func() { _ = client.Logout(ctx) }()

	var uuids []string
	if work == "find" {
		vms, err := retrieve(ctx, client, []string{"config.uuid"})
		if err != nil {
			return err
		}
		for i := 0; i < lookups && i < len(vms); i++ {
			uuids = append(uuids, vms[i].Config.Uuid)
		}
	}
	wait := bufio.NewReader(os.Stdin)
	say(map[string]any{"ready": true})
	if _, err := wait.ReadString('\n'); err != nil {
		return err
	}

	start := time.Now()
	var found int
	switch work {
	case "retrieve":
		vms, err := retrieve(ctx, client, properties)
		if err != nil {
			return err
		}
		found = len(vms)
	case "find":
		index := object.NewSearchIndex(client.Client)
		for _, uuid := range uuids {
			ref, err := index.FindByUuid(ctx, nil, uuid, true, nil)
			if err != nil {
				return err
			}
			if ref != nil {
				found++
			}
		}
	default:
		return fmt.Errorf("nothing to do: say retrieve or find")
	}
	say(map[string]any{"found": found, "seconds": time.Since(start).Seconds()})
	_, _ = wait.ReadString('\n')
	return nil
}

func retrieve(ctx context.Context, client *govmomi.Client, properties []string) ([]mo.VirtualMachine, error) {
	manager := view.NewManager(client.Client)
	v, err := manager.CreateContainerView(ctx, client.ServiceContent.RootFolder, []string{"VirtualMachine"}, true)
	if err != nil {
		return nil, err
	}
	defer func() { _ = v.Destroy(ctx) }()
	var vms []mo.VirtualMachine
	err = v.Retrieve(ctx, []string{"VirtualMachine"}, properties, &vms)
	return vms, err
}

func say(line map[string]any) {
	text, _ := json.Marshal(line)
	fmt.Println(string(text))
}
