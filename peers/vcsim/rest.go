package main

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vapi/tags"
	"github.com/vmware/govmomi/vim25/types"
)

const restSession = "vmware-api-session-id"

// restServer is govmomi's REST simulator. Its type is private: reflection accesses its public fields and methods, always
// under its own lock.
type restServer struct {
	sim     *Sim
	handler interface {
		http.Handler
		sync.Locker
		AttachedObjects(tag string) ([]ref, types.BaseMethodFault)
		AttachTag(object ref, tag string) types.BaseMethodFault
		DetachTag(object ref, tag string) types.BaseMethodFault
	}
}

func newRestServer(s *Sim, svc *simulator.Service) *restServer {
	r := &restServer{sim: s}
	probe, _ := http.NewRequest(http.MethodGet, rest.Path+"/", nil)
	h, _ := svc.ServeMux.Handler(probe)
	reflect.ValueOf(&r.handler).Elem().Set(reflect.ValueOf(h))
	return r
}

func field[T any](r *restServer, name string) T {
	return reflect.ValueOf(r.handler).Elem().FieldByName(name).Interface().(T)
}

func (r *restServer) sessions() map[string]*rest.Session {
	return field[map[string]*rest.Session](r, "Session")
}

func (r *restServer) user(id string) string {
	r.handler.Lock()
	defer r.handler.Unlock()
	if s := r.sessions()[id]; s != nil {
		return s.User
	}
	return ""
}

func (r *restServer) expire(user string) (n int) {
	r.handler.Lock()
	defer r.handler.Unlock()
	for id, s := range r.sessions() {
		if user == "" || sameAccount(user) == sameAccount(s.User) {
			delete(r.sessions(), id)
			n++
		}
	}
	return n
}

// addCategory creates a category with its tags and attaches them.
func (r *restServer) addCategory(c Category) error {
	id := r.category(c.Name, c.Cardinality, c.Types)
	for i, t := range c.Tags {
		if err := r.attach(id, t.Name, t.Attached, nil); err != nil {
			return fmt.Errorf("tags[%d]: %w", i, err)
		}
	}
	return nil
}

// category is the id of the category with that name, which is created if it is missing.
func (r *restServer) category(name, cardinality string, kinds []string) string {
	r.handler.Lock()
	defer r.handler.Unlock()
	all := field[map[string]*tags.Category](r, "Category")
	for id, c := range all {
		if c.Name == name {
			return id
		}
	}
	id := "urn:vmomi:InventoryServiceCategory:" + stableUUID("category", name) + ":GLOBAL"
	all[id] = &tags.Category{ID: id, Name: name, Cardinality: cardinality, AssociableTypes: slices.Clone(kinds)}
	return id
}

// tag is the id of a tag of a category, which is created if it is missing. The caller holds the handler's lock.
func (r *restServer) tag(category, name string) string {
	all := field[map[string]*tags.Tag](r, "Tag")
	for id, t := range all {
		if t.Name == name && t.CategoryID == category {
			return id
		}
	}
	id := "urn:vmomi:InventoryServiceTag:" + stableUUID("tag", category, name) + ":GLOBAL"
	all[id] = &tags.Tag{ID: id, Name: name, CategoryID: category}
	associations := reflect.ValueOf(r.handler).Elem().FieldByName("Association")
	associations.SetMapIndex(reflect.ValueOf(id), reflect.MakeMap(associations.Type().Elem()))
	return id
}

// attach attaches a tag to the entities at some paths and detaches it from others.
func (r *restServer) attach(category, name string, on, off []string) error {
	refs := map[bool][]ref{}
	for attach, paths := range map[bool][]string{true: on, false: off} {
		for _, p := range paths {
			e, err := r.sim.find(p)
			if err != nil {
				return err
			}
			refs[attach] = append(refs[attach], e.Reference())
		}
	}
	r.handler.Lock()
	defer r.handler.Unlock()
	id := r.tag(category, name)
	for _, e := range refs[true] {
		r.handler.AttachTag(e, id)
	}
	for _, e := range refs[false] {
		r.handler.DetachTag(e, id)
	}
	return nil
}

func (r *restServer) renameCategory(name, to string) error {
	r.handler.Lock()
	defer r.handler.Unlock()
	for _, c := range field[map[string]*tags.Category](r, "Category") {
		if c.Name == name {
			c.Name = to
			return nil
		}
	}
	return fmt.Errorf("no category is named %q", name)
}

// list returns categories, tags and attachments in the format of the inventory.
func (r *restServer) list() []Category {
	r.handler.Lock()
	defer r.handler.Unlock()
	out := []Category{}
	for id, c := range field[map[string]*tags.Category](r, "Category") {
		shown := Category{Name: c.Name, Cardinality: c.Cardinality, Types: c.AssociableTypes}
		for tid, t := range field[map[string]*tags.Tag](r, "Tag") {
			if t.CategoryID != id {
				continue
			}
			on := Tag{Name: t.Name}
			objects, _ := r.handler.AttachedObjects(tid)
			for _, o := range objects {
				if p := r.sim.path(o); p != "" {
					on.Attached = append(on.Attached, p)
				}
			}
			slices.Sort(on.Attached)
			shown.Tags = append(shown.Tags, on)
		}
		slices.SortFunc(shown.Tags, func(x, y Tag) int { return compare(x.Name, y.Name) })
		out = append(out, shown)
	}
	slices.SortFunc(out, func(x, y Category) int { return compare(x.Name, y.Name) })
	return out
}

func (r *restServer) each(f func(id, user string, since time.Time)) {
	r.handler.Lock()
	defer r.handler.Unlock()
	for id, s := range r.sessions() {
		f(id, s.User, s.Created)
	}
}
