package main

import (
	"slices"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// viewManager replaces govmomi's container views: ours are evaluated when they are read, for the user who reads them, so
// that moved and invisible objects leave them.
type viewManager struct{ *simulator.ViewManager }

type containerView struct {
	mo.ContainerView
	kinds map[string]bool // nil: all
}

// derived are the subtypes of a type.
var derived = map[string][]string{
	"ManagedEntity":            nil, // all of them, see entityTypes
	"Folder":                   {"StoragePod"},
	"ComputeResource":          {"ClusterComputeResource"},
	"ResourcePool":             {"VirtualApp"},
	"Network":                  {"DistributedVirtualPortgroup", "OpaqueNetwork"},
	"DistributedVirtualSwitch": {"VmwareDistributedVirtualSwitch"},
}

var entityTypes = []string{"ManagedEntity", "Folder", "StoragePod", "Datacenter", "ComputeResource", "ClusterComputeResource", "HostSystem",
	"ResourcePool", "VirtualApp", "VirtualMachine", "Datastore", "Network", "OpaqueNetwork", "DistributedVirtualPortgroup",
	"DistributedVirtualSwitch", "VmwareDistributedVirtualSwitch"}

var leafTypes = []string{"VirtualMachine", "Datastore", "Network", "OpaqueNetwork", "DistributedVirtualPortgroup",
	"DistributedVirtualSwitch", "VmwareDistributedVirtualSwitch"}

func (m *viewManager) CreateContainerView(ctx *simulator.Context, req *types.CreateContainerView) soap.HasFault {
	body := &methods.CreateContainerViewBody{}
	e, ok := ctx.Map.Get(req.Container).(mo.Entity)
	switch {
	case ctx.Map.Get(req.Container) == nil:
		body.Fault_ = simulator.Fault("", &types.ManagedObjectNotFound{Obj: req.Container})
	case !ok || slices.Contains(leafTypes, e.Reference().Type):
		body.Fault_ = simulator.Fault("", &types.InvalidArgument{InvalidProperty: "container"})
	}
	v := &containerView{}
	v.Self.Type = "ContainerView"
	v.Container, v.Recursive, v.Type = req.Container, req.Recursive, req.Type
	for _, kind := range req.Type {
		if !slices.Contains(entityTypes, kind) {
			body.Fault_ = simulator.Fault("", &types.InvalidArgument{InvalidProperty: "type"})
		}
		if kind == "ManagedEntity" {
			v.kinds = nil
			break
		}
		if v.kinds == nil {
			v.kinds = map[string]bool{}
		}
		v.kinds[kind] = true
		for _, d := range derived[kind] {
			v.kinds[d] = true
		}
	}
	if body.Fault_ != nil {
		return body
	}
	body.Res = &types.CreateContainerViewResponse{Returnval: ctx.Session.Put(v).Reference()}
	return body
}

func (v *containerView) DestroyView(ctx *simulator.Context, req *types.DestroyView) soap.HasFault {
	ctx.Session.Remove(ctx, req.This)
	simOf(ctx).journal.restructure(req.This)
	return &methods.DestroyViewBody{Res: &types.DestroyViewResponse{}}
}

// members lists the current objects in the view that the reader's user can see.
func (v *containerView) members(r *reader) (found []ref) {
	seen := map[ref]bool{}
	var walk func(ref)
	walk = func(parent ref) {
		for _, child := range r.contained(parent) {
			if seen[child] || r.sim.journal.isGone(child) {
				continue
			}
			seen[child] = true
			if (v.kinds == nil || v.kinds[child.Type]) && r.access.sees(child) {
				found = append(found, child)
			}
			if v.Recursive && !slices.Contains(leafTypes, child.Type) {
				walk(child)
			}
		}
	}
	walk(v.Container)
	return found
}

// contained lists the entities a container view finds in one entity.
func (r *reader) contained(parent ref) (in []ref) {
	o := r.sim.reg().Get(parent)
	if o == nil {
		return nil
	}
	r.ctx.Map.WithLock(r.ctx, parent, func() {
		switch e := o.(type) {
		case *simulator.HostSystem:
			in = slices.Clone(e.Vm)
		case *simulator.VirtualApp:
			in = append(slices.Clone(e.ResourcePool.ResourcePool), e.Vm...)
		default:
			in = slices.Clone(r.sim.children(o))
		}
	})
	return in
}
