package main

import (
	"context"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
)

// sessions lists the open SOAP sessions, without govmomi's own.
func (s *Sim) sessions() (open []types.UserSession) {
	for _, u := range s.allSessions() {
		if u.UserName != internalUser {
			open = append(open, u)
		}
	}
	return open
}

func (s *Sim) allSessions() []types.UserSession {
	ctx := s.ctx()
	sm := ctx.Session.Get(*s.model.ServiceContent.SessionManager).(*simulator.SessionManager)
	return sm.SessionList
}

// sessionUser is the user of a session, "" if it is not open.
func (s *Sim) sessionUser(key string) string {
	if key == "" || key == "-" {
		return ""
	}
	for _, u := range s.allSessions() {
		if u.Key == key {
			return u.UserName
		}
	}
	return ""
}

func (s *Sim) sessionAlive(key string) bool { return s.sessionUser(key) != "" }

// expire ends the sessions of a user, of all users for "": their next call is NotAuthenticated.
func (s *Sim) expire(user string) int {
	n := 0
	sm := s.reg().SessionManager()
	for _, u := range s.sessions() {
		if user == "" || sameAccount(user) == sameAccount(u.UserName) {
			sm.TerminateSession(s.ctx(), &types.TerminateSession{SessionId: []string{u.Key}})
			n++
		}
	}
	n += s.rest.expire(user)
	s.journal.touch()
	return n
}

// restart simulates a restart of vpxd: no service for a while, then no sessions.
func (s *Sim) restart(down time.Duration) {
	s.gate.restart(down)
	s.expire("")
}

// waits maps each call that waits for updates to its client, so that the wait ends with the client. govmomi does not pass
// the request to its objects.
type waits struct {
	sync.Mutex
	clients map[waitKey]context.Context
}

type waitKey struct {
	session string
	object  ref
}

func (w *waits) context(session string, object ref) context.Context {
	w.Lock()
	defer w.Unlock()
	if c := w.clients[waitKey{session, object}]; c != nil {
		return c
	}
	return context.Background()
}

// watching records the client of a call; the latest one counts.
func (s *Sim) watching(ctx context.Context, c *call) (done func()) {
	if c.this.Type != "PropertyCollector" {
		return func() {}
	}
	key := waitKey{c.session, c.this}
	w := &s.waits
	w.Lock()
	w.clients[key] = ctx
	w.Unlock()
	return func() {
		w.Lock()
		defer w.Unlock()
		if w.clients[key] == ctx {
			delete(w.clients, key)
		}
	}
}
