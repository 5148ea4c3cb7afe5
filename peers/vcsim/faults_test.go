package main

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vapi/tags"
	"github.com/vmware/govmomi/vim25/methods"
)

func TestEachFaultReachesAClient(t *testing.T) {
	p := launch(t, world())
	c := p.client()
	now := func() error { _, err := methods.GetCurrentTime(deadline(t), c); return err }
	pull := func(rule record) {
		t.Helper()
		rule["method"] = "CurrentTime"
		p.lever("DELETE", "/faults", nil)
		p.lever("POST", "/faults", rule)
	}
	pull(record{"fault": "NotAuthenticated", "count": 2, "skip": 1})
	must(t, now())
	wantFault(t, now(), "NotAuthenticated")
	wantFault(t, now(), "NotAuthenticated")
	must(t, now())

	pull(record{"status": 503})
	if err := now(); !isRefused(err) {
		t.Fatalf("want 503, got %v", err)
	}
	for _, cut := range []string{"drop", "truncate"} {
		pull(record{cut: true})
		if err := now(); err == nil {
			t.Fatalf("%s went unnoticed", cut)
		}
	}
	pull(record{"hang": true, "count": 1})
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := methods.GetCurrentTime(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("want no answer at all, got %v", err)
	}
	must(t, now()) // other calls are not blocked
	pull(record{"delayMs": 150})
	began := time.Now()
	must(t, now())
	if time.Since(began) < 150*time.Millisecond {
		t.Fatal("the answer came too early")
	}
	pull(record{"fault": "SystemError", "probability": 0.5, "seed": 7})
	failed := 0
	for range 40 {
		if now() != nil {
			failed++
		}
	}
	if failed < 8 || failed > 32 {
		t.Fatalf("of 40 calls %d failed, about half were to", failed)
	}
	pull(record{"fault": "SystemError", "user": op})
	must(t, now())
	_, err := methods.GetCurrentTime(deadline(t), p.client(op))
	wantFault(t, err, "SystemError")
}

func TestAFaultOnOneObjectLeavesOthersAlone(t *testing.T) {
	p := launch(t, world())
	c, ctx := p.client(), deadline(t)
	one, two := object.NewVirtualMachine(c.Client, p.moref("node-1")), object.NewVirtualMachine(c.Client, p.moref("node-2"))
	p.lever("POST", "/faults", record{"method": "PowerOffVM_Task", "object": one.Reference().Value, "fault": "InvalidState"})
	_, err := one.PowerOff(ctx)
	wantFault(t, err, "InvalidState")
	_, err = two.PowerOff(ctx)
	must(t, err)
}

func TestLoginAndRESTCanBeMadeToFail(t *testing.T) {
	p := launch(t, world())
	p.lever("POST", "/faults", list{
		record{"method": "Login", "user": op, "fault": "InvalidLogin", "count": 1},
		record{"method": "GET /rest/com/vmware/cis/tagging", "status": 500, "count": 1},
		record{"method": "GET /rest/com/vmware/cis/tagging", "fault": "NotAuthenticated", "count": 1}})
	_, err := p.login(op, op+"-password")
	wantFault(t, err, "InvalidLogin")
	c := p.client(op)
	rc := rest.NewClient(c.Client)
	must(t, rc.Login(deadline(t), p.userinfo()))
	m := tags.NewManager(rc)
	for _, status := range []int{500, 401} {
		if _, err := m.ListCategories(deadline(t)); !rest.IsStatusError(err, status) {
			t.Fatalf("want %d, got %v", status, err)
		}
	}
	_, err = m.ListCategories(deadline(t))
	must(t, err)
}

func TestTasksFailProgressSlowlyOrNeverEnd(t *testing.T) {
	p := launch(t, world())
	c, ctx := p.client(), deadline(t)
	vm := object.NewVirtualMachine(c.Client, p.moref("node-1"))

	p.lever("POST", "/faults", record{"method": "PowerOffVM_Task", "task": "fail", "taskFault": "InvalidPowerState", "count": 1})
	task, err := vm.PowerOff(ctx)
	must(t, err)
	wantFault(t, task.Wait(ctx), "InvalidPowerState")

	p.lever("POST", "/faults", record{"method": "PowerOffVM_Task", "task": "slow", "taskDelayMs": 300, "count": 1})
	began := time.Now()
	task, err = vm.PowerOff(ctx)
	must(t, err)
	_, err = task.WaitForResult(ctx, &seen{})
	must(t, err)
	if time.Since(began) < 300*time.Millisecond {
		t.Fatal("the task ended too early")
	}
	if p.describe("node-1").Power != "off" {
		t.Fatal("the slow task did nothing")
	}

	p.lever("POST", "/faults", record{"method": "PowerOnVM_Task", "task": "never"})
	task, err = vm.PowerOn(ctx)
	must(t, err)
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if err := task.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the task was never to end: %v", err)
	}
	p.lever("POST", "/faults", record{"method": "Rename_Task", "task": "slow", "taskDelayMs": 10})
	task, err = object.NewVirtualMachine(p.client(op).Client, p.moref("node-1")).Rename(ctx, "x")
	must(t, err)
	wantFault(t, task.Wait(ctx), "NoPermission")
}

func TestCallsAreCountedByMethodAndUser(t *testing.T) {
	p := launch(t, world())
	p.lever("DELETE", "/counts", nil)
	c := p.client(op)
	for range 3 {
		_, err := methods.GetCurrentTime(deadline(t), c)
		must(t, err)
	}
	w := p.watch(c, c.ServiceContent.RootFolder, "VirtualMachine", "name")
	before := p.calls("WaitForUpdatesEx")
	done := make(chan error, 1)
	go func() { _, err := w.ask(3); done <- err }()
	for p.calls("WaitForUpdatesEx") == before { // counted while it still waits
		select {
		case err := <-done:
			t.Fatalf("the wait ended early: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	if got := p.calls("CurrentTime"); got != 3 {
		t.Fatalf("3 calls were made, %d counted", got)
	}
	var counts struct {
		Sessions map[string]struct {
			User  string
			Agent string
			Calls map[string]int
		}
	}
	p.decode("GET", "/counts", &counts)
	for _, s := range counts.Sessions {
		if s.User == op && s.Calls["CurrentTime"] == 3 && s.Agent != "" {
			return
		}
	}
	t.Fatalf("no session of %s has 3 calls: %+v", op, counts)
}

func TestARestartEndsAllConnectionsAndSessions(t *testing.T) {
	p := launch(t, world())
	c := p.client()
	w := p.watch(c, c.ServiceContent.RootFolder, "VirtualMachine", "name")
	waiting := make(chan error, 1)
	before := p.calls("WaitForUpdatesEx")
	go func() { _, err := w.ask(20); waiting <- err }()
	for p.calls("WaitForUpdatesEx") == before {
		time.Sleep(5 * time.Millisecond)
	}
	p.lever("POST", "/restart", record{"downMs": 300})
	select {
	case err := <-waiting:
		if err == nil {
			t.Fatal("the wait survived the restart")
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the wait was not cut")
	}
	if _, err := methods.GetCurrentTime(deadline(t), c); !isRefused(err) {
		t.Fatalf("the service is down, but %v", err)
	}
	var err error
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, err = methods.GetCurrentTime(deadline(t), c); !isRefused(err) {
			break
		}
	}
	wantFault(t, err, "NotAuthenticated")
	p.client()
}

func TestTheClockOfEveryResponseIsSet(t *testing.T) {
	p := launch(t, world())
	ahead := func() time.Duration {
		answer, err := trusting().Get("https://" + p.url.Host + "/about")
		must(t, err)
		defer func() { _ = answer.Body.Close() }()
		date, err := http.ParseTime(answer.Header.Get("Date"))
		must(t, err)
		return time.Until(date)
	}
	for _, seconds := range []int{-600, 7200, 0} {
		p.lever("POST", "/clock", record{"aheadSeconds": seconds})
		if off := ahead() - time.Duration(seconds)*time.Second; off.Abs() > time.Minute {
			t.Fatalf("%d s asked for, the answer is %s off", seconds, off)
		}
	}
}

func TestAnExpiredSessionIsNotAuthenticated(t *testing.T) {
	p := launch(t, world())
	c, other := p.client(op), p.client()
	w := p.watch(c, c.ServiceContent.RootFolder, "VirtualMachine", "name")
	waiting := make(chan error, 1)
	go func() { _, err := w.ask(20); waiting <- err }()
	before := 1
	for p.calls("WaitForUpdatesEx") <= before {
		time.Sleep(5 * time.Millisecond)
	}
	p.lever("DELETE", "/sessions?user="+op, nil)
	select {
	case err := <-waiting:
		wantFault(t, err, "NotAuthenticated")
	case <-time.After(5 * time.Second):
		t.Fatal("the wait of an expired session goes on")
	}
	_, err := methods.GetCurrentTime(deadline(t), c)
	wantFault(t, err, "NotAuthenticated")
	_, err = methods.GetCurrentTime(deadline(t), other)
	must(t, err)
}

func TestTheControlPortNamesMistakes(t *testing.T) {
	p := launch(t, world())
	for _, m := range []struct {
		verb, path string
		body       any
		status     int
	}{
		{"GET", "/nothing", nil, http.StatusNotFound},
		{"PUT", "/vms", nil, http.StatusMethodNotAllowed},
		{"POST", "/faults", record{"method": "Login", "bogus": 1}, http.StatusBadRequest},
		{"POST", "/faults", record{"method": "Login", "fault": "NoSuchFault"}, http.StatusBadRequest},
		{"POST", "/faults", record{"method": "Login"}, http.StatusBadRequest},
		{"PATCH", "/vms?path=/DC0/vm/none", record{}, http.StatusBadRequest},
		{"PATCH", patchOf("/DC0/vm/k8s/node-1"), record{"host": "none"}, http.StatusBadRequest},
		{"PATCH", "/vms", record{}, http.StatusBadRequest},
		{"POST", "/vms", record{"name": "node-1", "folder": "k8s"}, http.StatusBadRequest},
		{"POST", "/roles", record{"name": "x", "privileges": list{"No.Such"}}, http.StatusBadRequest},
		{"POST", "/permissions", record{"principal": "x", "role": "none"}, http.StatusBadRequest},
	} {
		if status, answer := p.tryLever(m.verb, m.path, m.body); status != m.status {
			t.Errorf("%s %s: want %d, got %d %s", m.verb, m.path, m.status, status, answer)
		}
	}
	if len(p.inventory().Datacenters[0].VMs) != 3 {
		t.Error("a refused lever changed something")
	}
}
