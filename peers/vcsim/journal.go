package main

import (
	"sync"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// journal hears of every object that is put, updated or removed, and of what we change ourselves.
type journal struct {
	Self ref
	sync.Mutex
}

func newJournal() *journal {
	return &journal{Self: ref{Type: "Journal", Value: "journal"}}
}

func (j *journal) Reference() ref { return j.Self }

func (j *journal) touch(...ref) {}

func (j *journal) PutObject(*simulator.Context, mo.Reference) {}

func (j *journal) UpdateObject(_ *simulator.Context, _ mo.Reference, _ []types.PropertyChange) {}

func (j *journal) RemoveObject(*simulator.Context, ref) {}

func (j *journal) restructure(...ref) {}
