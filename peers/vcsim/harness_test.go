package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/progress"
	"github.com/vmware/govmomi/vim25/types"
)

// The tests run this program as a child process, like its users.
const asChild = "VDO_VCSIM_AS_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(asChild) != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func command(args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	c := exec.Command(self, args...)
	c.Env = append(os.Environ(), asChild+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

// peer is a running simulator.
type peer struct {
	t     *testing.T
	ready Ready
	url   *url.URL
	cmd   *exec.Cmd
}

type record = map[string]any
type list = []any

// launch starts a simulator with an inventory and ends it with the test.
func launch(t *testing.T, inventory any, args ...string) *peer {
	t.Helper()
	file := filepath.Join(t.TempDir(), "inventory.json")
	b, err := json.Marshal(inventory)
	if err == nil {
		err = os.WriteFile(file, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := command(append([]string{"-quiet", "-inventory", file}, args...)...)
	out, _ := c.StdoutPipe()
	var stderr bytes.Buffer
	c.Stderr = &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, cmd: c}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait()
		if t.Failed() && stderr.Len() > 0 {
			t.Logf("stderr of the simulator:\n%s", stderr.String())
		}
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil || json.Unmarshal(line, &p.ready) != nil {
		_ = c.Wait()
		t.Fatalf("no ready line but %q: %s", line, stderr.String())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	p.url, _ = url.Parse(p.ready.URL)
	return p
}

// lever calls the control port and fails the test on an error.
func (p *peer) lever(verb, path string, body any) []byte {
	p.t.Helper()
	status, answer := p.tryLever(verb, path, body)
	if status != http.StatusOK {
		p.t.Fatalf("%s %s: %d %s", verb, path, status, answer)
	}
	return answer
}

func (p *peer) tryLever(verb, path string, body any) (int, []byte) {
	p.t.Helper()
	b, _ := json.Marshal(body)
	req, _ := http.NewRequest(verb, p.ready.Control+path, bytes.NewReader(b))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, _ := io.ReadAll(res.Body)
	return res.StatusCode, answer
}

func (p *peer) inventory() (inv Inventory) {
	p.t.Helper()
	if err := json.Unmarshal(p.lever("GET", "/inventory", nil), &inv); err != nil {
		p.t.Fatal(err)
	}
	return inv
}

func (p *peer) calls(method string) int {
	p.t.Helper()
	var counts struct{ Total map[string]int }
	if err := json.Unmarshal(p.lever("GET", "/counts", nil), &counts); err != nil {
		p.t.Fatal(err)
	}
	return counts.Total[method]
}

const admin, adminPassword = "administrator@vsphere.local", "secret"

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// login is a client of that user.
func (p *peer) login(user, password string) (*govmomi.Client, error) {
	u := *p.url
	u.User = url.UserPassword(user, password)
	return govmomi.NewClient(deadline(p.t), &u, true)
}

func (p *peer) client(user ...string) *govmomi.Client {
	p.t.Helper()
	name, password := admin, adminPassword
	if len(user) > 0 {
		name, password = user[0], user[0]+"-password"
	}
	c, err := p.login(name, password)
	if err != nil {
		p.t.Fatalf("login of %s: %s", name, err)
	}
	return c
}

func (p *peer) vm(c *govmomi.Client, path string) *object.VirtualMachine {
	p.t.Helper()
	vm, err := find.NewFinder(c.Client).VirtualMachine(deadline(p.t), path)
	if err != nil {
		p.t.Fatal(err)
	}
	return vm
}

// world is the inventory most tests begin with: three nodes, an administrator and a restricted user.
func world(change ...func(record)) record {
	w := record{
		"datacenters": list{record{
			"name": "DC0",
			"clusters": list{record{"name": "C0", "resourcePools": list{"k8s"},
				"hosts": list{record{"name": "esx-1"}, record{"name": "esx-2"}}}},
			"datastores": list{record{"name": "shared-1"}, record{"name": "local-1", "hosts": list{"esx-1"}}},
			"networks":   list{"VM Network", "Backup"},
			"vms": list{
				record{"name": "node-1", "folder": "k8s", "resourcePool": "k8s", "nics": list{record{"addresses": list{"10.0.0.1/24", "fd00::1/64"}}}},
				record{"name": "node-2", "folder": "k8s", "resourcePool": "k8s"},
				record{"name": "other", "folder": "apps", "power": "off"},
			},
		}},
		"users": list{record{"name": admin, "password": adminPassword},
			record{"name": "op@vsphere.local", "password": "op@vsphere.local-password", "groups": list{"operators"}}},
		"roles": list{record{"name": "k8s", "privileges": list{"VirtualMachine.Interact.PowerOn"}}},
		"permissions": list{record{"principal": admin, "role": "Admin", "entity": "/"},
			record{"principal": "op@vsphere.local", "role": "k8s", "entity": "/DC0/vm/k8s"}},
	}
	for _, f := range change {
		f(w)
	}
	return w
}

const op = "op@vsphere.local"

// faultOf names the vSphere fault inside an error, "" if it is none.
func faultOf(err error) string {
	name := ""
	if err == nil {
		return name
	}
	fault.In(err, func(f types.BaseMethodFault, _ string, _ []types.LocalizableMessage) bool {
		name = strings.TrimPrefix(fmt.Sprintf("%T", f), "*types.")
		return true
	})
	if name == "" {
		return err.Error()
	}
	return name
}

func wantFault(t *testing.T, err error, name string) {
	t.Helper()
	if got := faultOf(err); got != name {
		t.Fatalf("want the fault %s, got %q (%v)", name, got, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// watch is a filter on a container view, with its reports.
type watch struct {
	t       *testing.T
	c       *govmomi.Client
	pc      ref
	version string
	objects map[ref]map[string]any
	updates []types.ObjectUpdate
}

func (p *peer) watch(c *govmomi.Client, container ref, kind string, paths ...string) *watch {
	p.t.Helper()
	ctx := deadline(p.t)
	view, err := methods.CreateContainerView(ctx, c, &types.CreateContainerView{This: *c.ServiceContent.ViewManager,
		Container: container, Type: []string{kind}, Recursive: true})
	must(p.t, err)
	pc, err := methods.CreatePropertyCollector(ctx, c, &types.CreatePropertyCollector{This: c.ServiceContent.PropertyCollector})
	must(p.t, err)
	_, err = methods.CreateFilter(ctx, c, &types.CreateFilter{This: pc.Returnval, Spec: types.PropertyFilterSpec{
		ObjectSet: []types.ObjectSpec{{Obj: view.Returnval, Skip: types.NewBool(true), SelectSet: []types.BaseSelectionSpec{
			&types.TraversalSpec{Type: "ContainerView", Path: "view"}}}},
		PropSet: []types.PropertySpec{{Type: kind, PathSet: paths}}}})
	must(p.t, err)
	w := &watch{t: p.t, c: c, pc: pc.Returnval, objects: map[ref]map[string]any{}}
	for more := true; more; {
		more = w.once(1)
	}
	return w
}

// until waits for updates until the condition holds.
func (w *watch) until(what string, holds func() bool) {
	w.t.Helper()
	end := time.Now().Add(10 * time.Second)
	for !holds() {
		if time.Now().After(end) {
			w.t.Fatalf("no update brought %s; last seen: %v", what, w.objects)
		}
		w.once(1)
	}
}

// ask makes one call with this timeout in seconds.
func (w *watch) ask(seconds int32) (*types.UpdateSet, error) {
	res, err := methods.WaitForUpdatesEx(deadline(w.t), w.c, &types.WaitForUpdatesEx{This: w.pc, Version: w.version,
		Options: &types.WaitOptions{MaxWaitSeconds: &seconds}})
	if err != nil {
		return nil, err
	}
	return res.Returnval, nil
}

// once processes one response and returns whether more is pending.
func (w *watch) once(seconds int32) (more bool) {
	w.t.Helper()
	set, err := w.ask(seconds)
	must(w.t, err)
	if set == nil {
		return false
	}
	w.version = set.Version
	for _, f := range set.FilterSet {
		for _, o := range f.ObjectSet {
			w.updates = append(w.updates, o)
			if o.Kind == types.ObjectUpdateKindLeave {
				delete(w.objects, o.Obj)
				continue
			}
			if w.objects[o.Obj] == nil {
				w.objects[o.Obj] = map[string]any{}
			}
			for _, c := range o.ChangeSet {
				w.objects[o.Obj][c.Name] = c.Val
			}
		}
	}
	return set.Truncated != nil && *set.Truncated
}

// named is the object with this name in the reports.
func (w *watch) named(name string) map[string]any {
	for _, o := range w.objects {
		if o["name"] == name {
			return o
		}
	}
	return nil
}

func isRefused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || (err != nil && strings.Contains(err.Error(), "503"))
}

func (p *peer) describe(name string) VM {
	p.t.Helper()
	for _, v := range p.inventory().Datacenters[0].VMs {
		if v.Name == name {
			return v
		}
	}
	p.t.Fatalf("no VM is named %s", name)
	return VM{}
}

func (p *peer) moref(name string) ref {
	p.t.Helper()
	return ref{Type: "VirtualMachine", Value: p.describe(name).Moref}
}

func (p *peer) decode(verb, path string, into any) {
	p.t.Helper()
	must(p.t, json.Unmarshal(p.lever(verb, path, nil), into))
}

func (p *peer) userinfo() *url.Userinfo { return url.UserPassword(admin, adminPassword) }

// seen processes the progress of a task.
type seen struct{}

func (*seen) Sink() chan<- progress.Report {
	ch := make(chan progress.Report)
	go func() {
		for range ch {
		}
	}()
	return ch
}
