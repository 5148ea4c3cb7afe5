package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vim25/xml"
)

// Fault is a rule: the calls it hits, and their outcome.
type Fault struct {
	Method      string   `json:"method"`                // "Login", "GET /rest/..." (a prefix), "*" for every call
	User        string   `json:"user,omitempty"`        // only calls of this user
	Object      string   `json:"object,omitempty"`      // only calls on, or naming, this moref
	Skip        int      `json:"skip,omitempty"`        // this many calls pass first
	Count       int      `json:"count,omitempty"`       // this many calls are hit; 0 for no limit
	Probability *float64 `json:"probability,omitempty"` // of hitting a call that matches; absent is always
	Seed        int64    `json:"seed,omitempty"`

	DelayMs  int    `json:"delayMs,omitempty"`
	Fault    string `json:"fault,omitempty"` // name of a vSphere fault type
	Message  string `json:"message,omitempty"`
	Status   int    `json:"status,omitempty"`
	Drop     bool   `json:"drop,omitempty"`
	Hang     bool   `json:"hang,omitempty"`
	Truncate bool   `json:"truncate,omitempty"`

	Task        string `json:"task,omitempty"` // "fail", "slow", "never": for calls that answer with a task
	TaskFault   string `json:"taskFault,omitempty"`
	TaskDelayMs int    `json:"taskDelayMs,omitempty"`

	Hits int `json:"hits"` // output only
	rng  *rand.Rand
}

type faults struct {
	sync.Mutex
	rules []*Fault
}

func (f *Fault) check() error {
	if f.Method == "" {
		return fmt.Errorf("method is empty")
	}
	if f.Task != "" {
		if err := oneOf("task", f.Task, "fail", "slow", "never"); err != nil {
			return err
		}
	}
	for field, name := range map[string]string{"fault": f.Fault, "taskFault": f.TaskFault} {
		if name != "" && newFault(name) == nil {
			return fmt.Errorf("%s: no fault type is named %q", field, name)
		}
	}
	if f.Fault == "" && f.Status == 0 && f.DelayMs == 0 && f.Task == "" && !f.Drop && !f.Hang && !f.Truncate {
		return fmt.Errorf("the rule does nothing: give one of fault, status, delayMs, drop, hang, truncate, task")
	}
	return nil
}

// add appends rules; the first that matches a call hits it.
func (f *faults) add(rules []*Fault) error {
	for i, r := range rules {
		if err := r.check(); err != nil {
			return fmt.Errorf("faults[%d].%w", i, err)
		}
		r.Hits = 0
		r.rng = rand.New(rand.NewSource(r.Seed))
	}
	f.Lock()
	defer f.Unlock()
	f.rules = append(f.rules, rules...)
	return nil
}

func (f *faults) clear() {
	f.Lock()
	defer f.Unlock()
	f.rules = nil
}

func (f *faults) MarshalJSON() ([]byte, error) {
	f.Lock()
	defer f.Unlock()
	if f.rules == nil {
		return []byte("[]"), nil
	}
	return json.Marshal(f.rules)
}

// take returns a copy of the rule that hits a call, and counts the hit.
func (f *faults) take(c *call) *Fault {
	f.Lock()
	defer f.Unlock()
	for _, r := range f.rules {
		if !r.matches(c) || (r.Count > 0 && r.Hits >= r.Count) {
			continue
		}
		if r.Skip > 0 {
			r.Skip--
			continue
		}
		if r.Probability != nil && r.rng.Float64() >= *r.Probability {
			continue
		}
		r.Hits++
		hit := *r
		return &hit
	}
	return nil
}

func (f *Fault) matches(c *call) bool {
	switch {
	case f.Method != "*" && f.Method != c.method && (c.soap || !(strings.HasPrefix(c.method, f.Method) || strings.HasPrefix(c.exact, f.Method))):
		return false
	case f.User != "" && sameAccount(f.User) != sameAccount(c.user):
		return false
	case f.Object != "" && f.Object != c.this.Value && !strings.Contains(string(c.body), ">"+f.Object+"<"):
		return false
	case f.Task != "" && !answersWithTask(c.method):
		return false
	}
	return true
}

// apply executes the fault; false lets the call continue.
func (f *Fault) apply(g *gate, w http.ResponseWriter, r *http.Request, c *call) bool {
	if f.DelayMs > 0 {
		sleep(r.Context(), time.Duration(f.DelayMs)*time.Millisecond)
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler)
		}
	}
	switch {
	case f.Hang:
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case f.Drop:
		panic(http.ErrAbortHandler)
	case f.Truncate:
		half(w, g.record(r, c))
	case f.Fault != "" && c.soap:
		writeFault(w, makeFault(f.Fault, c.this), f.Message)
	case f.Fault != "":
		writeRestFault(w, f.Fault, f.Message, f.Status)
	case f.Status != 0:
		http.Error(w, f.Message, f.Status)
	case f.Task != "":
		return g.pull(w, r, c, f)
	default:
		return false
	}
	return true
}

var typeFunc = types.TypeFunc()

// newFault is an empty fault of the named type, or nil.
func newFault(name string) types.BaseMethodFault {
	for _, prefix := range []string{"", "vsan:", "pbm:"} {
		if t, ok := typeFunc(prefix + name); ok {
			if f, ok := reflect.New(t).Interface().(types.BaseMethodFault); ok {
				return f
			}
		}
	}
	return nil
}

func makeFault(name string, this ref) types.BaseMethodFault {
	switch name {
	case "NotAuthenticated":
		return &types.NotAuthenticated{NoPermission: types.NoPermission{Object: &this, PrivilegeId: "System.View"}}
	case "NoPermission":
		return &types.NoPermission{Object: &this, PrivilegeId: "System.Read"}
	case "ManagedObjectNotFound":
		return &types.ManagedObjectNotFound{Obj: this}
	}
	return newFault(name)
}

var faultText = map[string]string{
	"InvalidLogin":          "Cannot complete login due to an incorrect user name or password.",
	"NotAuthenticated":      "The session is not authenticated.",
	"NoPermission":          "Permission to perform this operation was denied.",
	"ManagedObjectNotFound": "The object has already been deleted or has not been completely created",
}

// faultDetail encodes a fault like vCenter: an element with the name and the type of the fault.
type faultDetail struct{ fault types.BaseMethodFault }

func (d *faultDetail) MarshalXML(e *xml.Encoder, start xml.StartElement) error {
	kind := reflect.TypeOf(d.fault).Elem().Name()
	start.Name.Local = kind + "Fault"
	start.Attr = append(start.Attr, xml.Attr{Name: xml.Name{Local: "xmlns"}, Value: "urn:vim25"},
		xml.Attr{Name: xml.Name{Local: "xsi:type"}, Value: kind})
	return e.EncodeElement(d.fault, start)
}

func writeFault(w http.ResponseWriter, fault types.BaseMethodFault, message string) {
	if message == "" {
		message = faultText[reflect.TypeOf(fault).Elem().Name()]
	}
	var text, detail strings.Builder
	_ = xml.EscapeText(&text, []byte(message))
	if err := xml.NewEncoder(&detail).Encode(&faultDetail{fault}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeEnvelope(w, http.StatusInternalServerError, "<soapenv:Fault><faultcode>ServerFaultCode</faultcode><faultstring>"+
		text.String()+"</faultstring><detail>"+detail.String()+"</detail></soapenv:Fault>")
}

func writeEnvelope(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/xml; charset=utf-8")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?>
<soapenv:Envelope xmlns:soapenc="http://schemas.xmlsoap.org/soap/encoding/" xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"`+
		` xmlns:xsd="http://www.w3.org/2001/XMLSchema" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><soapenv:Body>%s</soapenv:Body></soapenv:Envelope>`, body)
}

// writeRestFault writes the REST form of a SOAP fault.
func writeRestFault(w http.ResponseWriter, name, message string, status int) {
	kind := map[string]struct {
		status int
		name   string
	}{
		"NotAuthenticated": {http.StatusUnauthorized, "unauthenticated"}, "InvalidLogin": {http.StatusUnauthorized, "unauthenticated"},
		"NoPermission": {http.StatusForbidden, "unauthorized"}, "NotFound": {http.StatusNotFound, "not_found"},
	}[name]
	or(&kind.status, http.StatusInternalServerError)
	or(&kind.name, "error")
	if status != 0 {
		kind.status = status
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(kind.status)
	_ = json.NewEncoder(w).Encode(map[string]any{"type": "com.vmware.vapi.std.errors." + kind.name, "error_type": strings.ToUpper(kind.name),
		"value": map[string]any{"messages": []any{map[string]any{"default_message": message, "id": "vcsim." + name}}}})
}
