package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
)

// computeResource is the cluster or the standalone host's resource behind a reference.
func (s *Sim) computeResource(r ref) *mo.ComputeResource {
	switch c := s.reg().Get(r).(type) {
	case *simulator.ClusterComputeResource:
		return &c.ComputeResource
	case *mo.ComputeResource:
		return c
	}
	return nil
}

// computeOf lists the clusters and standalone hosts of a datacenter, in the order of its folders.
func (s *Sim) computeOf(dc *simulator.Datacenter) (found []*mo.ComputeResource) {
	s.walkFolder(dc.HostFolder, func(r ref) {
		if c := s.computeResource(r); c != nil {
			found = append(found, c)
		}
	})
	return found
}

func (s *Sim) hostsOf(dc *simulator.Datacenter) (found []*simulator.HostSystem) {
	for _, c := range s.computeOf(dc) {
		for _, r := range c.Host {
			if h, ok := s.reg().Get(r).(*simulator.HostSystem); ok {
				found = append(found, h)
			}
		}
	}
	return found
}

// walkFolder visits everything below a folder that is not itself a folder.
func (s *Sim) walkFolder(folder ref, visit func(ref)) {
	f, ok := s.reg().Get(folder).(*simulator.Folder)
	if !ok {
		return
	}
	for _, child := range f.ChildEntity {
		if child.Type == "Folder" {
			s.walkFolder(child, visit)
		} else {
			visit(child)
		}
	}
}

func (s *Sim) datacenters() (found []*simulator.Datacenter) {
	s.walkFolder(s.root(), func(r ref) {
		if dc, ok := s.reg().Get(r).(*simulator.Datacenter); ok {
			found = append(found, dc)
		}
	})
	return found
}

func (s *Sim) datacenter(name string) (*simulator.Datacenter, error) {
	all := s.datacenters()
	if name == "" && len(all) == 1 {
		return all[0], nil
	}
	for _, dc := range all {
		if dc.Name == name {
			return dc, nil
		}
	}
	return nil, fmt.Errorf("datacenter: none is named %q", name)
}

// children lists the entities that an inventory path can name below an entity.
func (s *Sim) children(e mo.Reference) []ref {
	switch e := e.(type) {
	case *simulator.Datacenter:
		return []ref{e.VmFolder, e.HostFolder, e.DatastoreFolder, e.NetworkFolder}
	case *simulator.Folder:
		return e.ChildEntity
	case *simulator.StoragePod:
		return e.ChildEntity
	case *mo.ComputeResource:
		return append(slices.Clone(e.Host), *e.ResourcePool)
	case *simulator.ClusterComputeResource:
		return append(slices.Clone(e.Host), *e.ResourcePool)
	case *simulator.ResourcePool:
		return append(slices.Clone(e.ResourcePool.ResourcePool), e.Vm...)
	}
	return nil
}

// find is the entity at an inventory path; "/" is the root folder.
func (s *Sim) find(path string) (mo.Entity, error) {
	e, _ := s.reg().Get(s.root()).(mo.Entity)
	for _, name := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
		next := s.reg().FindByName(name, s.children(e))
		if next == nil {
			return nil, fmt.Errorf("nothing is at the inventory path %q (no %q)", path, name)
		}
		e = next
	}
	return e, nil
}

// path is the inventory path of an entity.
func (s *Sim) path(r ref) string {
	var names []string
	for {
		e, ok := s.reg().Get(r).(mo.Entity)
		if !ok {
			return ""
		}
		if e.Entity().Parent == nil {
			break
		}
		names = append(names, entityName(e))
		r = *e.Entity().Parent
	}
	slices.Reverse(names)
	return "/" + strings.Join(names, "/")
}

func entityName(e mo.Entity) string {
	if n, ok := e.(*mo.Network); ok {
		return n.Name
	}
	return e.Entity().Name
}

// below is the folder path of an entity under one of its datacenter's four folders.
func (s *Sim) below(r ref, top ref) string {
	var names []string
	for e, ok := s.reg().Get(r).(mo.Entity); ok && e.Entity().Parent != nil; e, ok = s.reg().Get(r).(mo.Entity) {
		r = *e.Entity().Parent
		if r == top {
			break
		}
		if p, ok := s.reg().Get(r).(mo.Entity); ok {
			names = append(names, p.Entity().Name)
		}
	}
	slices.Reverse(names)
	return strings.Join(names, "/")
}
