package main

import (
	"reflect"
	"slices"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// reader reads objects for one request, as far as the session's user can see them.
type reader struct {
	sim    *Sim
	ctx    *simulator.Context
	access *access // nil: unrestricted
}

func (s *Sim) reader(ctx *simulator.Context) *reader {
	return &reader{sim: s, ctx: ctx, access: s.auth.accessOf(ctx.Session.UserName)}
}

func (r *reader) get(o ref) mo.Reference {
	if r.sim.journal.isGone(o) {
		return nil
	}
	return r.ctx.Session.Get(o)
}

// value reads one property of an object that the caller has locked.
func (r *reader) value(o mo.Reference, v reflect.Value, name string) (any, error) {
	if view, ok := o.(*containerView); ok && name == "view" {
		return &types.ArrayOfManagedObjectReference{ManagedObjectReference: view.members(r)}, nil
	}
	return property(v, name)
}

// viewable are the properties that need only System.View.
var viewable = []string{"name", "parent", "childEntity", "childType", "effectiveRole"}

// refused returns the privilege that the user lacks to read a property.
func (r *reader) refused(o ref, held privileges, name string) string {
	switch {
	case r.access == nil:
		return ""
	case o.Type == "SessionManager" && name == "sessionList":
		if !r.access.may(o, "Sessions.TerminateSession") {
			return "Sessions.TerminateSession"
		}
	case held == nil || held["System.Read"]:
	case !slices.Contains(viewable, name):
		return "System.Read"
	}
	return ""
}

// read collects the requested properties of one object; nil if the specs do not include its type.
func (r *reader) read(o ref, specs []types.PropertySpec) *types.ObjectContent {
	obj := r.get(o)
	if obj == nil {
		return nil
	}
	var out *types.ObjectContent
	r.ctx.Map.WithLock(r.ctx, o, func() { out = r.readLocked(o, obj, specs) })
	return out
}

func (r *reader) readLocked(o ref, obj mo.Reference, specs []types.PropertySpec) *types.ObjectContent {
	v := managed(obj)
	if !v.IsValid() {
		return nil
	}
	var held privileges
	if _, entity := obj.(mo.Entity); entity && r.access != nil {
		if held = r.access.on(o); held == nil {
			held = privileges{}
		}
	}
	var content *types.ObjectContent
	seen := map[string]bool{}
	for _, spec := range specs {
		if !isKind(v, o, spec.Type) {
			continue
		}
		if content == nil {
			content = &types.ObjectContent{Obj: o}
		}
		names := spec.PathSet
		if spec.All != nil && *spec.All {
			names = allProperties(v)
		}
		for _, name := range names {
			if seen[name] {
				continue
			}
			seen[name] = true
			if lacks := r.refused(o, held, name); lacks != "" {
				content.MissingSet = append(content.MissingSet, missing(name, &types.NoPermission{Object: &o, PrivilegeId: lacks}))
				continue
			}
			value, err := r.value(obj, v, name)
			if err != nil {
				content.MissingSet = append(content.MissingSet, missing(name, &types.InvalidProperty{Name: name}))
			} else if value != nil {
				content.PropSet = append(content.PropSet, types.DynamicProperty{Name: name, Val: value})
			}
		}
	}
	return content
}

func missing(name string, fault types.BaseMethodFault) types.MissingProperty {
	return types.MissingProperty{Path: name, Fault: types.LocalizedMethodFault{Fault: fault,
		LocalizedMessage: faultText[reflect.TypeOf(fault).Elem().Name()]}}
}

// denied is the response of a read by reference for an object that the user cannot see.
func denied(o ref, specs []types.PropertySpec) types.ObjectContent {
	out := types.ObjectContent{Obj: o}
	for _, spec := range specs {
		names := spec.PathSet
		if len(names) == 0 {
			names = []string{"name"}
		}
		for _, name := range names {
			out.MissingSet = append(out.MissingSet, missing(name, &types.NoPermission{Object: &o, PrivilegeId: "System.View"}))
		}
	}
	return out
}

// selection are the objects of a filter spec: those to report, and those on the way to them.
type selection struct {
	*reader
	objects []ref
	denied  []ref        // named directly and not visible
	sources map[ref]bool // traversed: if one changes, the selection can change

	named    map[string]*types.TraversalSpec
	reported map[ref]bool
	walked   map[walk]bool
}

type walk struct {
	object ref
	spec   *types.TraversalSpec
}

// pick follows a filter spec from its objects along its traversals. It traverses invisible objects but does not report
// them. A fault means that the spec is invalid.
func (r *reader) pick(spec *types.PropertyFilterSpec) (*selection, types.BaseMethodFault) {
	s := &selection{reader: r, sources: map[ref]bool{}, named: map[string]*types.TraversalSpec{}, reported: map[ref]bool{}, walked: map[walk]bool{}}
	for _, o := range spec.ObjectSet {
		if r.get(o.Obj) == nil {
			if !isTrue(spec.ReportMissingObjectsInResults) {
				return s, &types.ManagedObjectNotFound{Obj: o.Obj}
			}
			continue
		}
		if len(o.SelectSet) == 0 || !isTrue(o.Skip) {
			s.report(o.Obj, len(o.SelectSet) == 0)
		}
		if fault := s.follow(o.Obj, o.SelectSet); fault != nil {
			return s, fault
		}
	}
	return s, nil
}

func isTrue(b *bool) bool { return b != nil && *b }

func (s *selection) report(o ref, direct bool) {
	if s.reported[o] || s.get(o) == nil {
		return
	}
	s.reported[o] = true
	switch {
	case s.access.sees(o):
		s.objects = append(s.objects, o)
	case direct:
		s.denied = append(s.denied, o)
	}
}

// follow applies the traversals of a set to one object. A set can name traversals of another, or itself: each is applied
// once to each object.
func (s *selection) follow(from ref, set []types.BaseSelectionSpec) types.BaseMethodFault {
	for _, spec := range set {
		if t, ok := spec.(*types.TraversalSpec); ok && t.Name != "" {
			s.named[t.Name] = t
		}
	}
	for _, spec := range set {
		t, ok := spec.(*types.TraversalSpec)
		if !ok {
			if t = s.named[spec.GetSelectionSpec().Name]; t == nil {
				return &types.InvalidArgument{InvalidProperty: "selectSet.name"}
			}
		}
		if s.walked[walk{from, t}] {
			continue
		}
		s.walked[walk{from, t}], s.sources[from] = true, true
		for _, to := range s.edge(from, t) {
			if !isTrue(t.Skip) {
				s.report(to, false)
			}
			if fault := s.follow(to, t.SelectSet); fault != nil {
				return fault
			}
		}
	}
	return nil
}

// edge is the target of one traversal from one object.
func (r *reader) edge(from ref, t *types.TraversalSpec) (to []ref) {
	obj := r.get(from)
	if obj == nil {
		return nil
	}
	r.ctx.Map.WithLock(r.ctx, from, func() {
		v := managed(obj)
		if !v.IsValid() || (t.Type != "" && !isKind(v, from, t.Type)) {
			return
		}
		if value, err := r.value(obj, v, t.Path); err == nil {
			to = references(value)
		}
	})
	return to
}
