package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"
)

func TestABadStartPrintsOneSentenceAndExitsWithTwo(t *testing.T) {
	for _, bad := range []struct{ inventory, says string }{
		{`{"datacenters":[{"nmae":"DC0"}]}`, `unknown field "nmae"`},
		{`{"datacenters":[{"name":7}]}`, "datacenters.name"},
		{`{"datacenters":[{"name":"DC0","vms":[{"name":"a","host":"none"}]}]}`, "datacenters[0].vms[0].host"},
		{`{"datacenters":[{"name":"DC0","vms":[{"name":"a","power":"maybe"}]}]}`, "datacenters[0].vms[0].power"},
		{`{"datacenters":[{"name":"DC0","vms":[{"name":"a","nics":[{"addresses":["10.0.0.1"]}]}]}]}`, "nics[0].addresses[0]"},
		{`{"datacenters":[{"name":"DC0","vms":[{"name":"a"},{"name":"a"}]}]}`, "datacenters[0].vms[1].name"},
		{`{"permissions":[{"principal":"x","role":"none"}]}`, "permissions[0]"},
		{`{"categories":[{"name":"z","tags":[{"name":"a","attached":["/none"]}]}]}`, "categories[0]"},
		{`{"users":[{"name":"x"}]}`, "users[0]"},
		{`{"about":`, "not JSON"},
	} {
		file := filepath.Join(t.TempDir(), "bad.json")
		must(t, os.WriteFile(file, []byte(bad.inventory), 0o600))
		stderr, code := refused(t, "-inventory", file)
		if code != 2 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, bad.says) {
			t.Errorf("%s: exit code %d, says %q; want 2 and %q", bad.inventory, code, stderr, bad.says)
		}
	}
	if stderr, code := refused(t, "-control", "0.0.0.0:0"); code != 2 || !strings.Contains(stderr, "loopback") {
		t.Errorf("an open control port: exit code %d, says %q", code, stderr)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = taken.Close() }()
	if stderr, code := refused(t, "-listen", taken.Addr().String()); code != 1 || !strings.Contains(stderr, "address already in use") {
		t.Errorf("a taken port: exit code %d, says %q", code, stderr)
	}
}

// refused runs the command and expects it to end by itself.
func refused(t *testing.T, args ...string) (string, int) {
	t.Helper()
	c := command(args...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	done := make(chan error, 1)
	must(t, c.Start())
	go func() { done <- c.Wait() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		_ = c.Process.Kill()
		t.Fatalf("%v started", args)
	}
	return stderr.String(), c.ProcessState.ExitCode()
}

func TestASignalEndsItAtOnceAndLeavesNothing(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		tmp := t.TempDir()
		t.Setenv("TMPDIR", tmp)
		p := launch(t, world())
		c := p.client()
		w := p.watch(c, c.ServiceContent.RootFolder, "VirtualMachine", "name")
		before := p.calls("WaitForUpdatesEx")
		go func() { _, _ = w.ask(30) }() // a call in flight must not delay the end
		for p.calls("WaitForUpdatesEx") == before {
			time.Sleep(5 * time.Millisecond)
		}
		must(t, p.cmd.Process.Signal(sig))
		done := make(chan error, 1)
		go func() { done <- p.cmd.Wait() }()
		select {
		case err := <-done:
			must(t, err)
		case <-time.After(5 * time.Second):
			t.Fatalf("%s did not end it", sig)
		}
		left, err := os.ReadDir(tmp)
		must(t, err)
		for _, e := range left {
			if strings.Contains(e.Name(), "vcsim") {
				t.Fatalf("%s is left behind", e.Name())
			}
		}
	}
}

func TestTheNextStartRemovesFilesOfAKilledOne(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	p := launch(t, world())
	must(t, p.cmd.Process.Kill())
	_ = p.cmd.Wait()
	launch(t, world())
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), "vdo-vcsim-*"))
	if len(left) != 1 {
		t.Fatalf("folders: %v", left)
	}
}

func TestItListensOnIPv6WithAGivenCertificate(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Fatalf("this host has no IPv6 loopback: %s", err)
	} else {
		_ = l.Close()
	}
	ready := filepath.Join(t.TempDir(), "ready")
	p := launch(t, world(), "-listen", "[::1]:0", "-control", "[::1]:0", "-ready-file", ready)
	if !strings.HasPrefix(p.ready.URL, "https://[::1]:") || !strings.HasSuffix(p.ready.URL, "/sdk") {
		t.Fatalf("url %s", p.ready.URL)
	}
	var again Ready
	b, err := os.ReadFile(ready)
	must(t, err)
	must(t, json.Unmarshal(b, &again))
	if again != p.ready {
		t.Fatalf("the file says %+v, the line %+v", again, p.ready)
	}
	p.client()
}

func TestItPosesAsAnESXiHost(t *testing.T) {
	p := launch(t, record{"about": record{"apiType": "HostAgent"}})
	about := p.client().ServiceContent.About
	if about.ApiType != "HostAgent" || about.ProductLineId != "embeddedEsx" {
		t.Fatalf("%+v", about)
	}
	if status, _ := p.rest("", "POST", "/rest/com/vmware/cis/session", nil, admin, adminPassword); status != 404 {
		t.Fatalf("a host has no REST: %d", status)
	}
}

func TestFiveThousandVMsLoadAndAreWatched(t *testing.T) {
	var vms list
	for i := range 5000 {
		vms = append(vms, record{"name": fmt.Sprintf("node-%d", i), "folder": "k8s", "nics": list{record{"addresses": list{fmt.Sprintf("10.%d.%d.1/8", i/250, i%250)}}}})
	}
	w := world(func(w record) { w["datacenters"].(list)[0].(record)["vms"] = vms })
	began := time.Now()
	p := launch(t, w)
	t.Logf("5,000 VMs: ready in %.2f s by its own count, %.2f s with the process", p.ready.Seconds, time.Since(began).Seconds())
	if p.ready.VMs != 5000 {
		t.Fatalf("%d VMs", p.ready.VMs)
	}
	c := p.client()
	began = time.Now()
	watch := p.watch(c, c.ServiceContent.RootFolder, "VirtualMachine", "name", "config.uuid", "guest.net", "guest.hostName", "runtime.powerState", "runtime.host")
	t.Logf("all reported in %.2f s", time.Since(began).Seconds())
	if len(watch.objects) != 5000 {
		t.Fatalf("%d VMs are reported", len(watch.objects))
	}
	began = time.Now()
	p.lever("PATCH", patchOf("/DC0/vm/k8s/node-4711"), record{"hostName": "changed"})
	watch.until("one change", func() bool { return watch.named("node-4711")["guest.hostName"] == "changed" })
	t.Logf("one change reported in %.3f s", time.Since(began).Seconds())
	began = time.Now()
	v := p.describe("node-4999")
	t.Logf("the inventory read in %.2f s", time.Since(began).Seconds())
	began = time.Now()
	for range 100 {
		found, err := methods.FindByUuid(deadline(t), c, &types.FindByUuid{This: *c.ServiceContent.SearchIndex, Uuid: strings.ToUpper(v.UUID), VmSearch: true})
		must(t, err)
		if found.Returnval == nil || found.Returnval.Value != v.Moref {
			t.Fatalf("found %v, want %s", found.Returnval, v.Moref)
		}
	}
	t.Logf("100 searches by uuid in %.3f s", time.Since(began).Seconds())
}
