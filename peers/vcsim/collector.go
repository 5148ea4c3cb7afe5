package main

import (
	"sync"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// collector replaces govmomi's PropertyCollector. It shows each user only visible objects, finds changes by comparison
// with its last report, has a cost proportional to the change, and counts its versions.
//
// govmomi creates one for each session by reflection, from the zero value.
type collector struct {
	simulator.PropertyCollector

	mu      sync.Mutex // one evaluation at a time
	pages   map[string][]types.ObjectContent
	version uint64
	last    *types.UpdateSet // the latest response, to be repeated if it was lost
	pending []types.PropertyFilterUpdate

	waiting sync.Mutex
	cancel  map[*waiter]bool
}

// sims finds the simulator of a registry: govmomi passes nothing else to its objects.
var sims sync.Map

func simOf(ctx *simulator.Context) *Sim {
	s, _ := sims.Load(ctx.Map)
	return s.(*Sim)
}

func (c *collector) CreatePropertyCollector(ctx *simulator.Context, _ *types.CreatePropertyCollector) soap.HasFault {
	n := &collector{}
	n.Self.Type = "PropertyCollector"
	return &methods.CreatePropertyCollectorBody{Res: &types.CreatePropertyCollectorResponse{Returnval: ctx.Session.Put(n).Reference()}}
}

func (c *collector) DestroyPropertyCollector(ctx *simulator.Context, req *types.DestroyPropertyCollector) soap.HasFault {
	c.stop(&types.RequestCanceled{})
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.Filter {
		ctx.Session.Remove(ctx, f)
	}
	c.Filter = nil
	ctx.Session.Remove(ctx, req.This)
	return &methods.DestroyPropertyCollectorBody{Res: &types.DestroyPropertyCollectorResponse{}}
}

func (c *collector) CreateFilter(ctx *simulator.Context, req *types.CreateFilter) soap.HasFault {
	body := &methods.CreateFilterBody{}
	if _, fault := simOf(ctx).reader(ctx).pick(&req.Spec); fault != nil {
		body.Fault_ = simulator.Fault("", fault)
		return body
	}
	f := &filter{owner: c}
	f.Self.Type = "PropertyFilter"
	f.Spec, f.PartialUpdates = req.Spec, req.PartialUpdates
	body.Res = &types.CreateFilterResponse{Returnval: ctx.Session.Put(f).Reference()}
	c.mu.Lock()
	c.Filter = append(c.Filter, f.Self)
	c.mu.Unlock()
	simOf(ctx).journal.touch() // a wait in progress must evaluate it
	return body
}

func (c *collector) RetrievePropertiesEx(ctx *simulator.Context, req *types.RetrievePropertiesEx) soap.HasFault {
	body := &methods.RetrievePropertiesExBody{}
	if ctx.Session == nil {
		if fault := checkReadWithoutSession(req.This, req.SpecSet); fault != nil {
			body.Fault_ = simulator.Fault(faultMessage(fault), fault)
			return body
		}
		return c.PropertyCollector.RetrievePropertiesEx(ctx, req)
	}
	objects, fault := c.retrieve(ctx, req.SpecSet)
	if fault != nil {
		body.Fault_ = simulator.Fault(faultMessage(fault), fault)
		return body
	}
	result := &types.RetrieveResult{}
	result.Objects, result.Token = c.page(objects, int(req.Options.MaxObjects))
	body.Res = &types.RetrievePropertiesExResponse{}
	if len(objects) > 0 {
		body.Res.Returnval = result
	}
	return body
}

func (c *collector) RetrieveProperties(ctx *simulator.Context, req *types.RetrieveProperties) soap.HasFault {
	body := &methods.RetrievePropertiesBody{}
	if ctx.Session == nil {
		if fault := checkReadWithoutSession(req.This, req.SpecSet); fault != nil {
			body.Fault_ = simulator.Fault(faultMessage(fault), fault)
			return body
		}
		return c.PropertyCollector.RetrieveProperties(ctx, req)
	}
	objects, fault := c.retrieve(ctx, req.SpecSet)
	if fault != nil {
		body.Fault_ = simulator.Fault(faultMessage(fault), fault)
		return body
	}
	body.Res = &types.RetrievePropertiesResponse{Returnval: objects}
	return body
}

func (c *collector) retrieve(ctx *simulator.Context, specs []types.PropertyFilterSpec) (objects []types.ObjectContent, fault types.BaseMethodFault) {
	r := simOf(ctx).reader(ctx)
	for i := range specs {
		sel, fault := r.pick(&specs[i])
		if fault != nil {
			return nil, fault
		}
		for _, o := range sel.denied {
			objects = append(objects, denied(o, specs[i].PropSet))
		}
		for _, o := range sel.objects {
			if content := r.read(o, specs[i].PropSet); content != nil {
				objects = append(objects, *content)
			}
		}
	}
	return objects, nil
}

// page keeps the objects beyond the requested number for the next call.
func (c *collector) page(objects []types.ObjectContent, limit int) ([]types.ObjectContent, string) {
	if limit <= 0 || len(objects) <= limit {
		return objects, ""
	}
	token := newToken()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pages == nil {
		c.pages = map[string][]types.ObjectContent{}
	}
	c.pages[token] = objects[limit:]
	return objects[:limit], token
}

func (c *collector) ContinueRetrievePropertiesEx(_ *simulator.Context, req *types.ContinueRetrievePropertiesEx) soap.HasFault {
	body := &methods.ContinueRetrievePropertiesExBody{}
	c.mu.Lock()
	rest, ok := c.pages[req.Token]
	delete(c.pages, req.Token)
	c.mu.Unlock()
	if !ok {
		body.Fault_ = simulator.Fault("", &types.InvalidProperty{Name: "token"})
		return body
	}
	limit := min(len(rest), 100)
	body.Res = &types.ContinueRetrievePropertiesExResponse{}
	body.Res.Returnval.Objects, body.Res.Returnval.Token = c.page(rest, limit)
	return body
}

func (c *collector) CancelRetrievePropertiesEx(_ *simulator.Context, req *types.CancelRetrievePropertiesEx) soap.HasFault {
	c.mu.Lock()
	delete(c.pages, req.Token)
	c.mu.Unlock()
	return &methods.CancelRetrievePropertiesExBody{Res: &types.CancelRetrievePropertiesExResponse{}}
}

func faultMessage(fault types.BaseMethodFault) string {
	if _, ok := fault.(*types.ManagedObjectNotFound); ok {
		return faultText["ManagedObjectNotFound"]
	}
	return ""
}

// checkReadWithoutSession lets clients without a session read only what they need for a login. govmomi would return everything,
// and would report a destroyed VM as gone.
func checkReadWithoutSession(this ref, specs []types.PropertyFilterSpec) types.BaseMethodFault {
	for _, spec := range specs {
		for _, object := range spec.ObjectSet {
			if object.Obj.Type != "ServiceInstance" && object.Obj.Type != "SessionManager" {
				return &types.NotAuthenticated{NoPermission: types.NoPermission{Object: &this, PrivilegeId: "System.View"}}
			}
		}
	}
	return nil
}
