package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vim25/xml"
)

var cnsTasks = []string{"CnsCreateVolume", "CnsDeleteVolume", "CnsAttachVolume", "CnsDetachVolume", "CnsExtendVolume",
	"CnsUpdateVolumeMetadata", "CnsQueryVolumeInfo", "CnsQueryAsync", "CnsCreateSnapshots", "CnsDeleteSnapshots", "CnsQuerySnapshots",
	"CnsReconfigVolumePolicy"}

func answersWithTask(method string) bool {
	return strings.HasSuffix(method, "_Task") || slices.Contains(cnsTasks, method)
}

// pull executes a task fault: the call returns one of our tasks, which fails, or progresses slowly and then does the
// requested work, or never ends. Calls without a session are rejected as usual.
func (g *gate) pull(w http.ResponseWriter, r *http.Request, c *call, f *Fault) bool {
	s := g.sim
	if !s.sessionAlive(c.session) {
		return false
	}
	name := strings.TrimSuffix(c.method, "_Task")
	task := s.newTask(c.this, strings.ToLower(name[:1])+name[1:])

	delay := time.Duration(f.TaskDelayMs) * time.Millisecond
	switch f.Task {
	case "fail":
		go func() {
			s.crawl(task, delay)
			or(&f.TaskFault, "InvalidState")
			s.endTask(task, nil, makeFault(f.TaskFault, c.this), f.Message)
		}()
	case "slow":
		replay := r.Clone(context.Background())
		go func() {
			s.crawl(task, delay)
			replay.Body = io.NopCloser(bytes.NewReader(c.body))
			g.settle(task, g.record(replay, c).Body.Bytes())
		}()
	}
	namespace := "urn:vim25"
	if strings.HasPrefix(c.method, "Cns") {
		namespace = "urn:vsan"
	}
	writeEnvelope(w, http.StatusOK, fmt.Sprintf(`<%sResponse xmlns="%s"><returnval type="Task">%s</returnval></%sResponse>`,
		c.method, namespace, task.Self.Value, c.method))
	return true
}

// newTask is a running task of ours.
func (s *Sim) newTask(entity ref, name string) *simulator.Task {
	task := simulator.CreateTask(entity, name, nil)
	s.reg().Put(task)
	s.setTask(task, types.PropertyChange{Name: "info.key", Val: task.Self.Value}, types.PropertyChange{Name: "info.task", Val: task.Self},
		types.PropertyChange{Name: "info.cancelable", Val: false}, types.PropertyChange{Name: "info.startTime", Val: time.Now()},
		types.PropertyChange{Name: "info.state", Val: types.TaskInfoStateRunning})
	return task
}

func (s *Sim) setTask(t *simulator.Task, changes ...types.PropertyChange) {
	ctx := s.ctx()
	ctx.Map.AtomicUpdate(ctx, t, changes)
}

// crawl waits in ten steps of progress.
func (s *Sim) crawl(t *simulator.Task, d time.Duration) {
	for step := int32(1); step <= 10 && d > 0; step++ {
		time.Sleep(d / 10)
		s.setTask(t, types.PropertyChange{Name: "info.progress", Val: step * 9})
	}
}

func (s *Sim) endTask(t *simulator.Task, result any, fault types.BaseMethodFault, message string) {
	changes := []types.PropertyChange{{Name: "info.completeTime", Val: time.Now()}}
	if fault != nil {
		or(&message, fmt.Sprintf("%T", fault))
		changes = append(changes, types.PropertyChange{Name: "info.error", Val: &types.LocalizedMethodFault{Fault: fault, LocalizedMessage: message}},
			types.PropertyChange{Name: "info.state", Val: types.TaskInfoStateError})
	} else {
		if result != nil {
			changes = append(changes, types.PropertyChange{Name: "info.result", Val: result})
		}
		changes = append(changes, types.PropertyChange{Name: "info.state", Val: types.TaskInfoStateSuccess})
	}
	s.setTask(t, changes...)
}

// vCenter also forgets a task about ten minutes after its end.
const taskMemory = 10 * time.Minute

func (s *Sim) forgetTasks() {
	for range time.Tick(time.Minute) {
		for _, o := range s.reg().AllReference("Task") {
			t, ok := o.(*simulator.Task)
			if !ok {
				continue
			}
			old := false
			s.locked(t, func() { old = t.Info.CompleteTime != nil && time.Since(*t.Info.CompleteTime) > taskMemory })
			if old {
				s.reg().Remove(s.ctx(), t.Self)
			}
		}
	}
}

var taskReference = regexp.MustCompile(`type="Task"[^>]*>(task-[0-9]+)<`)

// settle ends our task with the result of the task of the real call.
func (g *gate) settle(t *simulator.Task, answer []byte) {
	if m := taskReference.FindSubmatch(answer); m != nil {
		if real, ok := g.sim.reg().Get(ref{Type: "Task", Value: string(m[1])}).(*simulator.Task); ok {
			g.sim.await(real)
			if real.Info.Error != nil {
				g.sim.endTask(t, nil, real.Info.Error.Fault, real.Info.Error.LocalizedMessage)
			} else {
				g.sim.endTask(t, real.Info.Result, nil, "")
			}
			return
		}
	}
	var body struct {
		Fault *soap.Fault `xml:"http://schemas.xmlsoap.org/soap/envelope/ Fault"`
	}
	env := soap.Envelope{Body: &body}
	d := xml.NewDecoder(bytes.NewReader(answer))
	d.TypeFunc = types.TypeFunc()
	fault := types.BaseMethodFault(&types.SystemError{Reason: "the call was refused"})
	if err := d.Decode(&env); err == nil && body.Fault != nil {
		if decoded := reflect.ValueOf(body.Fault.VimFault()); decoded.IsValid() { // a value: the methods are on its pointer
			pointer := reflect.New(decoded.Type())
			pointer.Elem().Set(decoded)
			if vim, ok := pointer.Interface().(types.BaseMethodFault); ok {
				fault = vim
			}
		}
	}
	g.sim.endTask(t, nil, fault, "")
}
