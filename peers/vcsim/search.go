package main

import (
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// search replaces govmomi's SearchIndex for clients: it finds uuids in any case through an index, respects the given
// datacenter, and shows only objects that the user can see.
type search struct {
	*simulator.SearchIndex
	sim *Sim

	mu       sync.Mutex
	built    bool
	position uint64
	keys     map[ref]keys
	vms      map[string][]ref // by "bios:uuid" and "instance:uuid"
}

type keys struct{ bios, instance string }

var searchRef = ref{Type: "SearchIndex", Value: "SearchIndex-of-vcsim"}

func newSearch(s *Sim) *search {
	base := *s.reg().Get(*s.model.ServiceContent.SearchIndex).(*simulator.SearchIndex)
	base.Self = searchRef
	return &search{SearchIndex: &base, sim: s, keys: map[ref]keys{}, vms: map[string][]ref{}}
}

// Lock and Unlock opt out of the lock per object of govmomi: searches run in parallel.
func (x *search) Lock()   {}
func (x *search) Unlock() {}

// lookup updates the index and searches in it.
func (x *search) lookup(key string) []ref {
	x.mu.Lock()
	defer x.mu.Unlock()
	news := x.sim.journal.since(x.position)
	look := []ref{}
	if !x.built || news.everything {
		clear(x.keys)
		clear(x.vms)
		for _, e := range x.sim.reg().All("VirtualMachine") {
			look = append(look, e.Reference())
		}
	} else {
		for o := range news.objects {
			if o.Type == "VirtualMachine" {
				look = append(look, o)
			}
		}
	}
	x.built, x.position = true, news.next
	for _, o := range look {
		x.index(o)
	}
	return slices.Clone(x.vms[key])
}

func (x *search) index(o ref) {
	var now keys
	if vm, ok := x.sim.reg().Get(o).(*simulator.VirtualMachine); ok && !x.sim.journal.isGone(o) {
		x.sim.locked(vm, func() {
			now = keys{"bios:" + strings.ToLower(vm.Config.Uuid), "instance:" + strings.ToLower(vm.Config.InstanceUuid)}
		})
	}
	before := x.keys[o]
	if before == now {
		return
	}
	for _, k := range []string{before.bios, before.instance} {
		list := x.vms[k]
		setMember(&list, o, false)
		x.vms[k] = list
	}
	delete(x.keys, o)
	if now != (keys{}) {
		x.keys[o] = now
		x.vms[now.bios] = append(x.vms[now.bios], o)
		x.vms[now.instance] = append(x.vms[now.instance], o)
	}
}

// shown keeps the visible objects in the given datacenter.
func (x *search) shown(ctx *simulator.Context, found []ref, in *ref) (out []ref) {
	access := x.sim.auth.accessOf(ctx.Session.UserName)
	for _, o := range found {
		e, ok := x.sim.reg().Get(o).(mo.Entity)
		if !ok || !access.sees(o) {
			continue
		}
		if in != nil {
			if dc := x.sim.datacenterOf(e); dc == nil || dc.Self != *in {
				continue
			}
		}
		out = append(out, o)
	}
	return out
}

func first(found []ref) *ref {
	if len(found) == 0 {
		return nil
	}
	return &found[0]
}

func (x *search) byUUID(ctx *simulator.Context, uuid string, vm bool, instance *bool, in *ref) []ref {
	if !vm {
		var found []ref
		for _, e := range x.sim.reg().All("HostSystem") {
			if h, ok := e.(*simulator.HostSystem); ok && strings.EqualFold(h.Hardware.SystemInfo.Uuid, uuid) {
				found = append(found, h.Self)
			}
		}
		return x.shown(ctx, found, in)
	}
	kind := "bios:"
	if instance != nil && *instance {
		kind = "instance:"
	}
	return x.shown(ctx, x.lookup(kind+strings.ToLower(uuid)), in)
}

func (x *search) FindByUuid(ctx *simulator.Context, r *types.FindByUuid) soap.HasFault {
	return &methods.FindByUuidBody{Res: &types.FindByUuidResponse{
		Returnval: first(x.byUUID(ctx, r.Uuid, r.VmSearch, r.InstanceUuid, r.Datacenter))}}
}

func (x *search) FindAllByUuid(ctx *simulator.Context, r *types.FindAllByUuid) soap.HasFault {
	return &methods.FindAllByUuidBody{Res: &types.FindAllByUuidResponse{
		Returnval: x.byUUID(ctx, r.Uuid, r.VmSearch, r.InstanceUuid, r.Datacenter)}}
}

// guestsWhere finds VMs by the reports of their guests.
func (x *search) guestsWhere(want func(*types.GuestInfo) bool) (found []ref) {
	for _, e := range x.sim.reg().All("VirtualMachine") {
		if vm, ok := e.(*simulator.VirtualMachine); ok {
			x.sim.locked(vm, func() {
				if vm.Guest != nil && want(vm.Guest) {
					found = append(found, vm.Self)
				}
			})
		}
	}
	return found
}

func (x *search) FindAllByDnsName(ctx *simulator.Context, r *types.FindAllByDnsName) soap.HasFault {
	var found []ref
	if r.VmSearch {
		found = x.guestsWhere(func(g *types.GuestInfo) bool { return strings.EqualFold(g.HostName, r.DnsName) })
	} else {
		for _, e := range x.sim.reg().All("HostSystem") {
			if strings.EqualFold(e.Entity().Name, r.DnsName) {
				found = append(found, e.Reference())
			}
		}
	}
	return &methods.FindAllByDnsNameBody{Res: &types.FindAllByDnsNameResponse{Returnval: x.shown(ctx, found, r.Datacenter)}}
}

func (x *search) FindByDnsName(ctx *simulator.Context, r *types.FindByDnsName) soap.HasFault {
	all := types.FindAllByDnsName(*r)
	found := x.FindAllByDnsName(ctx, &all).(*methods.FindAllByDnsNameBody).Res.Returnval
	return &methods.FindByDnsNameBody{Res: &types.FindByDnsNameResponse{Returnval: first(found)}}
}

func (x *search) FindAllByIp(ctx *simulator.Context, r *types.FindAllByIp) soap.HasFault {
	var found []ref
	if want := net.ParseIP(r.Ip); r.VmSearch && want != nil {
		found = x.guestsWhere(func(g *types.GuestInfo) bool {
			return slices.ContainsFunc(g.Net, func(n types.GuestNicInfo) bool {
				return slices.ContainsFunc(n.IpAddress, func(a string) bool { return want.Equal(net.ParseIP(a)) })
			})
		})
	}
	return &methods.FindAllByIpBody{Res: &types.FindAllByIpResponse{Returnval: x.shown(ctx, found, r.Datacenter)}}
}

func (x *search) FindByIp(ctx *simulator.Context, r *types.FindByIp) soap.HasFault {
	all := types.FindAllByIp(*r)
	found := x.FindAllByIp(ctx, &all).(*methods.FindAllByIpBody).Res.Returnval
	return &methods.FindByIpBody{Res: &types.FindByIpResponse{Returnval: first(found)}}
}

func (x *search) FindByInventoryPath(ctx *simulator.Context, r *types.FindByInventoryPath) soap.HasFault {
	body := &methods.FindByInventoryPathBody{Res: &types.FindByInventoryPathResponse{}}
	if e, err := x.sim.find(r.InventoryPath); err == nil {
		body.Res.Returnval = first(x.shown(ctx, []ref{e.Reference()}, nil))
	}
	return body
}

func (x *search) FindChild(ctx *simulator.Context, r *types.FindChild) soap.HasFault {
	body := x.SearchIndex.FindChild(ctx, r).(*methods.FindChildBody)
	if body.Res != nil && body.Res.Returnval != nil {
		body.Res.Returnval = first(x.shown(ctx, []ref{*body.Res.Returnval}, nil))
	}
	return body
}

func (x *search) FindByDatastorePath(ctx *simulator.Context, r *types.FindByDatastorePath) soap.HasFault {
	body := x.SearchIndex.FindByDatastorePath(ctx, r).(*methods.FindByDatastorePathBody)
	if body.Res != nil && body.Res.Returnval != nil {
		body.Res.Returnval = first(x.shown(ctx, []ref{*body.Res.Returnval}, nil))
	}
	return body
}
