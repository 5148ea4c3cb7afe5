package main

import (
	"reflect"
	"strconv"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// filter is a PropertyFilter of a collector with its last report of each object.
type filter struct {
	mo.PropertyFilter
	owner    *collector
	fresh    bool // has been evaluated
	position uint64
	members  map[ref]map[string]any
	sources  map[ref]bool
}

func (f *filter) DestroyPropertyFilter(ctx *simulator.Context, req *types.DestroyPropertyFilter) soap.HasFault {
	f.owner.mu.Lock()
	setMember(&f.owner.Filter, req.This, false)
	f.owner.mu.Unlock()
	ctx.Session.Remove(ctx, req.This)
	return &methods.DestroyPropertyFilterBody{Res: &types.DestroyPropertyFilterResponse{}}
}

// reset forgets the reports: the next evaluation reports everything.
func (f *filter) reset() { f.fresh, f.members, f.sources = false, nil, nil }

// evaluate compares the current selection of the filter with its last report, only for objects that the journal names.
func (f *filter) evaluate(r *reader) []types.ObjectUpdate {
	news := r.sim.journal.since(f.position)
	if !f.fresh {
		news.everything, news.structure = true, true
	}
	for o := range news.objects {
		news.structure = news.structure || f.sources[o]
	}
	f.position, f.fresh = news.next, true

	var out []types.ObjectUpdate
	entered := map[ref]bool{}
	if news.structure {
		sel, _ := r.pick(&f.Spec)
		f.sources = sel.sources
		now := make(map[ref]map[string]any, len(sel.objects))
		for _, o := range sel.objects {
			if values, had := f.members[o]; had {
				now[o] = values
				continue
			}
			if content := r.read(o, f.Spec.PropSet); content != nil {
				now[o] = valuesOf(content)
				entered[o] = true
				out = append(out, enter(content))
			}
		}
		for o := range f.members {
			if _, still := now[o]; !still {
				out = append(out, types.ObjectUpdate{Kind: types.ObjectUpdateKindLeave, Obj: o})
			}
		}
		f.members = now
	}
	if news.everything || (news.permissions && r.access != nil) {
		for o := range f.members {
			news.objects[o] = true
		}
	}
	for o := range news.objects {
		if _, member := f.members[o]; member && !entered[o] {
			if u, changed := f.compare(r, o); changed {
				out = append(out, u)
			}
		}
	}
	return out
}

// compare returns the differences of one object from the last report.
func (f *filter) compare(r *reader, o ref) (types.ObjectUpdate, bool) {
	u := types.ObjectUpdate{Kind: types.ObjectUpdateKindModify, Obj: o}
	content := r.read(o, f.Spec.PropSet)
	if content == nil {
		return u, false // it is being removed
	}
	before, now := f.members[o], valuesOf(content)
	for _, p := range content.PropSet {
		if old, had := before[p.Name]; !had || !reflect.DeepEqual(old, p.Val) {
			u.ChangeSet = append(u.ChangeSet, types.PropertyChange{Name: p.Name, Op: types.PropertyChangeOpAssign, Val: p.Val})
		}
	}
	for name, old := range before {
		if _, still := now[name]; !still && old != nil {
			u.ChangeSet = append(u.ChangeSet, types.PropertyChange{Name: name, Op: types.PropertyChangeOpAssign})
		}
	}
	for _, m := range content.MissingSet {
		if _, was := before[missingKey+m.Path]; !was {
			u.MissingSet = append(u.MissingSet, m)
		}
	}
	f.members[o] = now
	return u, len(u.ChangeSet)+len(u.MissingSet) > 0
}

const missingKey = "\x00missing:"

func valuesOf(content *types.ObjectContent) map[string]any {
	values := make(map[string]any, len(content.PropSet))
	for _, p := range content.PropSet {
		values[p.Name] = p.Val
	}
	for _, m := range content.MissingSet {
		values[missingKey+m.Path] = nil
	}
	return values
}

func enter(content *types.ObjectContent) types.ObjectUpdate {
	u := types.ObjectUpdate{Kind: types.ObjectUpdateKindEnter, Obj: content.Obj, MissingSet: content.MissingSet}
	for _, p := range content.PropSet {
		u.ChangeSet = append(u.ChangeSet, types.PropertyChange{Name: p.Name, Op: types.PropertyChangeOpAssign, Val: p.Val})
	}
	return u
}

// waiter is a wait for updates in progress.
type waiter struct {
	done  chan struct{}
	fault types.BaseMethodFault
}

// stop ends the waits in progress with a fault.
func (c *collector) stop(fault types.BaseMethodFault) {
	c.waiting.Lock()
	defer c.waiting.Unlock()
	for w := range c.cancel {
		w.fault = fault
		close(w.done)
	}
	c.cancel = nil
}

func (c *collector) begin() *waiter {
	c.waiting.Lock()
	defer c.waiting.Unlock()
	w := &waiter{done: make(chan struct{})}
	if c.cancel == nil {
		c.cancel = map[*waiter]bool{}
	}
	c.cancel[w] = true
	return w
}

func (c *collector) end(w *waiter) {
	c.waiting.Lock()
	defer c.waiting.Unlock()
	delete(c.cancel, w)
}

func (c *collector) CancelWaitForUpdates(*types.CancelWaitForUpdates) soap.HasFault {
	c.stop(&types.RequestCanceled{})
	return &methods.CancelWaitForUpdatesBody{Res: &types.CancelWaitForUpdatesResponse{}}
}

// Object updates per response if the client sets no lower limit: vCenter's value.
const mostUpdates = 100

// Notes that arrive together are reported together.
const settleTime = 5 * time.Millisecond

func (c *collector) WaitForUpdatesEx(ctx *simulator.Context, req *types.WaitForUpdatesEx) soap.HasFault {
	body := &methods.WaitForUpdatesExBody{}
	limit, wait := mostUpdates, time.Duration(-1)
	if o := req.Options; o != nil {
		if o.MaxObjectUpdates > 0 && o.MaxObjectUpdates < mostUpdates {
			limit = int(o.MaxObjectUpdates)
		}
		if o.MaxWaitSeconds != nil {
			wait = time.Duration(*o.MaxWaitSeconds) * time.Second
		}
	}
	set, fault := c.wait(ctx, req, limit, wait)
	if fault != nil {
		body.Fault_ = simulator.Fault("", fault)
		return body
	}
	body.Res = &types.WaitForUpdatesExResponse{Returnval: set}
	return body
}

func (c *collector) wait(ctx *simulator.Context, req *types.WaitForUpdatesEx, limit int, wait time.Duration) (*types.UpdateSet, types.BaseMethodFault) {
	s := simOf(ctx)
	client := s.waits.context(ctx.Session.Key, req.This)
	w := c.begin()
	defer c.end(w)
	if set, fault, decided := c.resume(ctx, req.Version); decided {
		return set, fault
	}
	var timeout <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		timeout = t.C
	}
	for {
		_, wake := s.journal.end()
		if ctx.Session.UserName != "" && !s.sessionAlive(ctx.Session.Key) {
			return nil, &types.NotAuthenticated{NoPermission: types.NoPermission{Object: &req.This, PrivilegeId: "System.View"}}
		}
		if set := c.next(ctx, s, limit, req.Version == ""); set != nil {
			return set, nil
		}
		if wait == 0 {
			return nil, nil
		}
		select {
		case <-wake:
			sleep(client, settleTime)
		case <-timeout:
			return nil, nil
		case <-w.done:
			return nil, w.fault
		case <-client.Done():
			return nil, &types.RequestCanceled{}
		}
	}
}

// resume continues from the version of the client. "" starts from the beginning; the latest continues; the previous one gets
// the latest response again, which was lost; any other is unknown.
func (c *collector) resume(ctx *simulator.Context, version string) (*types.UpdateSet, types.BaseMethodFault, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch version {
	case "":
		c.pending, c.last = nil, nil
		for _, r := range c.Filter {
			if f, ok := ctx.Session.Get(r).(*filter); ok {
				f.reset()
			}
		}
		return nil, nil, false
	case strconv.FormatUint(c.version, 10):
		return nil, nil, false
	case strconv.FormatUint(c.version-1, 10):
		if c.last != nil {
			return c.last, nil, true
		}
	}
	return nil, &types.InvalidCollectorVersion{}, true
}

// next is the next response, nil if there is nothing to report; the first response is always sent. Each increments the
// version of the collector.
func (c *collector) next(ctx *simulator.Context, s *Sim, limit int, first bool) *types.UpdateSet {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 {
		r := s.reader(ctx)
		for _, ref := range c.Filter {
			f, ok := ctx.Session.Get(ref).(*filter)
			if !ok {
				continue
			}
			if news := f.evaluate(r); len(news) > 0 {
				c.pending = append(c.pending, types.PropertyFilterUpdate{Filter: ref, ObjectSet: news})
			}
		}
	}
	if len(c.pending) == 0 && !first {
		return nil
	}
	set := &types.UpdateSet{}
	for limit > 0 && len(c.pending) > 0 {
		first := &c.pending[0]
		n := min(limit, len(first.ObjectSet))
		set.FilterSet = append(set.FilterSet, types.PropertyFilterUpdate{Filter: first.Filter, ObjectSet: first.ObjectSet[:n]})
		limit -= n
		if first.ObjectSet = first.ObjectSet[n:]; len(first.ObjectSet) == 0 {
			c.pending = c.pending[1:]
		}
	}
	if len(c.pending) > 0 {
		set.Truncated = types.NewBool(true)
	}
	c.version++
	set.Version = strconv.FormatUint(c.version, 10)
	c.last = set
	return set
}

func (c *collector) WaitForUpdates(ctx *simulator.Context, req *types.WaitForUpdates) soap.HasFault {
	body := &methods.WaitForUpdatesBody{}
	set, fault := c.wait(ctx, &types.WaitForUpdatesEx{This: req.This, Version: req.Version}, mostUpdates, -1)
	if fault != nil {
		body.Fault_ = simulator.Fault("", fault)
		return body
	}
	body.Res = &types.WaitForUpdatesResponse{Returnval: *set}
	return body
}

func (c *collector) CheckForUpdates(ctx *simulator.Context, req *types.CheckForUpdates) soap.HasFault {
	body := &methods.CheckForUpdatesBody{}
	set, fault := c.wait(ctx, &types.WaitForUpdatesEx{This: req.This, Version: req.Version}, mostUpdates, 0)
	if fault != nil {
		body.Fault_ = simulator.Fault("", fault)
		return body
	}
	body.Res = &types.CheckForUpdatesResponse{Returnval: set}
	return body
}
