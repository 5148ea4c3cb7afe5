package main

import (
	"sync"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// journal records which objects can have changed. govmomi notifies it of each object that is added, updated or removed; our
// own code notifies it of its changes. A note is only a hint: the reader compares the object, so an unneeded note costs
// little.
type journal struct {
	Self ref
	mu   sync.Mutex
	base uint64 // position of notes[0]
	log  []note
	gone map[ref]bool  // removed entities: references are never used again
	wake chan struct{} // closed at the next note

	// follow is called after govmomi changed a VM, while the VM is still locked.
	follow func(vm ref, changed map[string]bool)
}

type note struct {
	object      ref
	structure   bool // objects were added, removed or moved
	permissions bool // permissions changed: any object can have appeared or disappeared for a user
}

// A reader further behind than this compares all objects.
const keptNotes = 1 << 16

func newJournal() *journal {
	return &journal{Self: ref{Type: "Journal", Value: "journal"}, gone: map[ref]bool{}, wake: make(chan struct{})}
}

func (j *journal) Reference() ref { return j.Self }

func (j *journal) add(kind note, objects ...ref) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(objects) == 0 {
		objects = []ref{{}}
	}
	for _, o := range objects {
		kind.object = o
		j.log = append(j.log, kind)
	}
	if len(j.log) > keptNotes {
		drop := len(j.log) / 2
		j.base += uint64(drop)
		j.log = append([]note(nil), j.log[drop:]...)
	}
	close(j.wake)
	j.wake = make(chan struct{})
}

// touch notes that objects changed.
func (j *journal) touch(objects ...ref) { j.add(note{}, objects...) }

// restructure notes that the set of visible objects changed, and these objects with it.
func (j *journal) restructure(objects ...ref) { j.add(note{structure: true}, objects...) }

// reauthorize notes that permissions changed.
func (j *journal) reauthorize() { j.add(note{structure: true, permissions: true}) }

// changes are the objects that a reader at a position must compare.
type changes struct {
	everything  bool // the reader is too far behind, or new
	structure   bool
	permissions bool
	objects     map[ref]bool
	next        uint64
}

func (j *journal) since(position uint64) changes {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := changes{next: j.base + uint64(len(j.log)), objects: map[ref]bool{}}
	if position > c.next {
		position = c.next
	}
	if position < j.base {
		c.everything, c.structure, c.permissions = true, true, true
		return c
	}
	for _, n := range j.log[position-j.base:] {
		c.structure = c.structure || n.structure
		c.permissions = c.permissions || n.permissions
		c.objects[n.object] = true
	}
	return c
}

// end is the position of an up-to-date reader, and the channel that closes at the next note.
func (j *journal) end() (uint64, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.base + uint64(len(j.log)), j.wake
}

func (j *journal) isGone(r ref) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.gone[r]
}

// PutObject is called by govmomi with the object's lock held, also when an entity moves.
func (j *journal) PutObject(_ *simulator.Context, o mo.Reference) {
	e, entity := o.(mo.Entity)
	if !entity {
		j.touch(o.Reference())
		return
	}
	about := []ref{o.Reference()}
	if p := e.Entity().Parent; p != nil {
		about = append(about, *p)
	}
	j.restructure(about...)
}

// UpdateObject is called after a change. A task that ends can have changed its objects without notification.
func (j *journal) UpdateObject(_ *simulator.Context, o mo.Reference, set []types.PropertyChange) {
	j.touch(o.Reference())
	switch x := o.(type) {
	case *mo.Task:
		if x.Info.Entity != nil {
			j.touch(*x.Info.Entity)
		}
	case *mo.VirtualMachine:
		changed := map[string]bool{}
		for _, c := range set {
			changed[c.Name] = true
		}
		if j.follow != nil {
			j.follow(x.Self, changed)
		}
	}
}

// RemoveObject is called before the object is removed.
func (j *journal) RemoveObject(ctx *simulator.Context, r ref) {
	about := []ref{r}
	if e, ok := ctx.Map.Get(r).(mo.Entity); ok {
		j.mu.Lock()
		j.gone[r] = true
		j.mu.Unlock()
		if p := e.Entity().Parent; p != nil {
			about = append(about, *p)
		}
		if vm, ok := e.(*simulator.VirtualMachine); ok {
			about = append(about, vm.Datastore...)
			if vm.Runtime.Host != nil {
				about = append(about, *vm.Runtime.Host)
			}
			if vm.ResourcePool != nil {
				about = append(about, *vm.ResourcePool)
			}
		}
		j.restructure(about...)
		return
	}
	j.touch(about...)
}
