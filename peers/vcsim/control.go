package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// control is the control port on loopback: JSON in, JSON out, and one sentence for an error.
type control struct {
	sim   *Sim
	ready Ready
	turns sync.RWMutex // requests that change the inventory run one after the other
}

// Ready is the line that is printed when the simulator is ready, and the response of GET /ready.
type Ready struct {
	URL     string  `json:"url"`
	Control string  `json:"control"`
	VMs     int     `json:"vms"`
	Seconds float64 `json:"seconds"`
}

// lever handles a verb on a path: it reads the body and returns a value or an error.
type lever func(r *http.Request, body []byte) (any, error)

func (c *control) routes() map[string]map[string]lever {
	s := c.sim
	return map[string]map[string]lever{
		"/ready":          {"GET": func(*http.Request, []byte) (any, error) { return c.ready, nil }},
		"/counts":         {"GET": c.counts, "DELETE": c.resetCounts},
		"/faults":         {"GET": c.listFaults, "POST": c.addFaults, "DELETE": c.clearFaults},
		"/inventory":      {"GET": func(*http.Request, []byte) (any, error) { return s.describe(), nil }},
		"/vms":            {"POST": c.addVMs, "PATCH": c.patchVM, "DELETE": c.destroyVM},
		"/vms/reregister": {"POST": c.reregister},
		"/hosts":          {"PATCH": c.patchHost, "DELETE": c.removeHost},
		"/datastores":     {"PATCH": c.patchDatastore, "DELETE": c.removeDatastore},
		"/permissions":    {"GET": c.listPermissions, "POST": c.grant, "DELETE": c.revoke},
		"/roles":          {"POST": c.setRole},
		"/tags":           {"POST": c.tag},
		"/categories":     {"PATCH": c.renameCategory},
		"/sessions":       {"GET": c.listSessions, "DELETE": c.expire},
		"/users":          {"GET": c.listUsers, "POST": c.setUser},
		"/restart":        {"POST": c.restart},
		"/clock":          {"POST": c.setClock},
		"/disk-agent":     {"PUT": c.setDiskAgent},
		"/volumes":        {"POST": c.addVolumes, "PATCH": c.moveVolume},
	}
}

func (c *control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	verbs := c.routes()[r.URL.Path]
	do := verbs[r.Method]
	if do == nil {
		if verbs == nil {
			answer(w, http.StatusNotFound, fmt.Sprintf("no lever is at %s", r.URL.Path))
		} else {
			answer(w, http.StatusMethodNotAllowed, fmt.Sprintf("%s has no %s", r.URL.Path, r.Method))
		}
		return
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		var v any
		if v, err = c.turn(do, r, body); err == nil {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v)
			return
		}
	}
	answer(w, http.StatusBadRequest, err.Error())
}

func (c *control) turn(do lever, r *http.Request, body []byte) (any, error) {
	if r.Method == http.MethodGet {
		c.turns.RLock()
		defer c.turns.RUnlock()
	} else {
		c.turns.Lock()
		defer c.turns.Unlock()
	}
	return do(r, body)
}

func answer(w http.ResponseWriter, status int, sentence string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": sentence})
}

// loopback rejects an address that other computers can reach.
func loopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); host == "localhost" || (ip != nil && ip.IsLoopback()) {
		return nil
	}
	return fmt.Errorf("-control %s is not a loopback address: the control port obeys anyone", address)
}

// query is a required parameter of the request.
func query(r *http.Request, name string) (string, error) {
	v := r.URL.Query().Get(name)
	if v == "" {
		return "", fmt.Errorf("%s %s needs ?%s=", r.Method, r.URL.Path, name)
	}
	return v, nil
}

// oneOrMany decodes a value or a list of them.
func oneOrMany[T any](body []byte) ([]T, error) {
	if strings.HasPrefix(strings.TrimSpace(string(body)), "[") {
		var many []T
		return many, decodeStrict(body, &many)
	}
	var one T
	err := decodeStrict(body, &one)
	return []T{one}, err
}

func (c *control) counts(*http.Request, []byte) (any, error) {
	var out []byte
	var err error
	c.sim.counters.view(func(total map[string]int, sessions map[string]*sessionCount) {
		out, err = json.Marshal(map[string]any{"total": total, "sessions": sessions})
	})
	return json.RawMessage(out), err
}

func (c *control) resetCounts(r *http.Request, b []byte) (any, error) {
	out, err := c.counts(r, b)
	c.sim.counters.reset()
	return out, err
}

func (c *control) listFaults(*http.Request, []byte) (any, error) { return c.sim.faults, nil }

func (c *control) addFaults(_ *http.Request, b []byte) (any, error) {
	rules, err := oneOrMany[*Fault](b)
	if err == nil {
		err = c.sim.faults.add(rules)
	}
	return c.sim.faults, err
}

func (c *control) clearFaults(*http.Request, []byte) (any, error) {
	c.sim.faults.clear()
	return c.sim.faults, nil
}

func (c *control) addVMs(_ *http.Request, b []byte) (any, error) {
	vms, err := oneOrMany[VM](b)
	if err != nil {
		return nil, err
	}
	out := []VM{}
	for i, v := range vms {
		made, err := c.sim.addVM(v)
		if err != nil {
			return nil, fmt.Errorf("[%d] %w", i, err)
		}
		out = append(out, made)
	}
	return out, nil
}

func (c *control) patchVM(r *http.Request, b []byte) (any, error) {
	path, err := query(r, "path")
	if err != nil {
		return nil, err
	}
	return c.sim.patchVM(path, b)
}

func (c *control) destroyVM(r *http.Request, _ []byte) (any, error) {
	return removed(r, c.sim.destroyVM)
}

func (c *control) reregister(r *http.Request, _ []byte) (any, error) {
	path, err := query(r, "path")
	if err != nil {
		return nil, err
	}
	return c.sim.reregister(path)
}

func (c *control) patchHost(r *http.Request, b []byte) (any, error) {
	path, err := query(r, "path")
	if err != nil {
		return nil, err
	}
	return c.sim.patchHost(path, b)
}

func (c *control) removeHost(r *http.Request, _ []byte) (any, error) {
	return removed(r, c.sim.removeHost)
}

func (c *control) patchDatastore(r *http.Request, b []byte) (any, error) {
	path, err := query(r, "path")
	if err != nil {
		return nil, err
	}
	return c.sim.patchDatastore(path, b)
}

func (c *control) removeDatastore(r *http.Request, _ []byte) (any, error) {
	return removed(r, c.sim.removeDatastore)
}

func removed(r *http.Request, remove func(path string) error) (any, error) {
	path, err := query(r, "path")
	if err == nil {
		err = remove(path)
	}
	return map[string]string{"removed": path}, err
}

func (c *control) listPermissions(*http.Request, []byte) (any, error) {
	roles, permissions := c.sim.auth.list()
	return map[string]any{"roles": roles, "permissions": permissions}, nil
}

func (c *control) grant(r *http.Request, b []byte) (any, error) {
	list, err := oneOrMany[Permission](b)
	if err != nil {
		return nil, err
	}
	for i, p := range list {
		or(&p.Entity, "/")
		if err := c.sim.auth.grant(p); err != nil {
			return nil, fmt.Errorf("[%d] %w", i, err)
		}
	}
	return c.listPermissions(r, b)
}

func (c *control) revoke(r *http.Request, b []byte) (any, error) {
	entity, err := query(r, "entity")
	if err != nil {
		return nil, err
	}
	principal, err := query(r, "principal")
	if err == nil {
		err = c.sim.auth.revoke(entity, principal)
	}
	if err != nil {
		return nil, err
	}
	return c.listPermissions(r, b)
}

func (c *control) setRole(r *http.Request, b []byte) (any, error) {
	list, err := oneOrMany[Role](b)
	if err != nil {
		return nil, err
	}
	for _, role := range list {
		if err := c.sim.auth.setRole(role); err != nil {
			return nil, err
		}
	}
	return c.listPermissions(r, b)
}

func (c *control) tag(_ *http.Request, b []byte) (any, error) {
	var t struct {
		Category, Tag, Cardinality string
		Types, Attach, Detach      []string
	}
	if err := decodeStrict(b, &t); err != nil {
		return nil, err
	}
	if t.Category == "" || t.Tag == "" {
		return nil, fmt.Errorf("category and tag must be given")
	}
	or(&t.Cardinality, "SINGLE")
	err := c.sim.rest.attach(c.sim.rest.category(t.Category, t.Cardinality, t.Types), t.Tag, t.Attach, t.Detach)
	return c.sim.rest.list(), err
}

func (c *control) renameCategory(r *http.Request, b []byte) (any, error) {
	name, err := query(r, "name")
	if err != nil {
		return nil, err
	}
	var to struct{ Name string }
	if err := decodeStrict(b, &to); err != nil {
		return nil, err
	}
	if to.Name == "" {
		return nil, fmt.Errorf("name must be given")
	}
	return c.sim.rest.list(), c.sim.rest.renameCategory(name, to.Name)
}

func (c *control) listSessions(*http.Request, []byte) (any, error) {
	type session struct {
		Key   string    `json:"key"`
		User  string    `json:"user"`
		Agent string    `json:"agent,omitempty"`
		Kind  string    `json:"kind"`
		Login time.Time `json:"login"`
	}
	out := []session{}
	for _, u := range c.sim.sessions() {
		out = append(out, session{u.Key, c.sim.accounts.name(u.UserName), u.UserAgent, "soap", u.LoginTime})
	}
	c.sim.rest.each(func(id, user string, since time.Time) {
		out = append(out, session{id, c.sim.accounts.name(user), "", "rest", since})
	})
	slices.SortFunc(out, func(x, y session) int { return x.Login.Compare(y.Login) })
	return out, nil
}

func (c *control) expire(r *http.Request, _ []byte) (any, error) {
	return map[string]int{"expired": c.sim.expire(r.URL.Query().Get("user"))}, nil
}

func (c *control) listUsers(*http.Request, []byte) (any, error) { return c.sim.accounts.list(), nil }

func (c *control) setUser(r *http.Request, b []byte) (any, error) {
	list, err := oneOrMany[User](b)
	if err != nil {
		return nil, err
	}
	for _, u := range list {
		if u.Name == "" || u.Password == "" {
			return nil, fmt.Errorf("a user needs a name and a password")
		}
		c.sim.accounts.set(u)
	}
	return c.listUsers(r, b)
}

func (c *control) restart(_ *http.Request, b []byte) (any, error) {
	var how struct {
		DownMs      int  `json:"downMs"`
		ForgetTasks bool `json:"forgetTasks"` // the work of running tasks goes on, but nobody can follow it
	}
	if len(strings.TrimSpace(string(b))) > 0 {
		if err := decodeStrict(b, &how); err != nil {
			return nil, err
		}
	}
	if how.ForgetTasks {
		for _, task := range c.sim.reg().AllReference("Task") {
			c.sim.reg().Remove(c.sim.ctx(), task.Reference())
		}
	}
	c.sim.restart(time.Duration(how.DownMs) * time.Millisecond)
	return how, nil
}

func (c *control) setClock(_ *http.Request, b []byte) (any, error) {
	var clock struct {
		AheadSeconds int `json:"aheadSeconds"`
	}
	if err := decodeStrict(b, &clock); err != nil {
		return nil, err
	}
	c.sim.gate.setClock(time.Duration(clock.AheadSeconds) * time.Second)
	return clock, nil
}
