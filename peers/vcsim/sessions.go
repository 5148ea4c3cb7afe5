package main

import (
	"context"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
)

// sessions lists the SOAP sessions that are open, govmomi's own left out.
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

// sessionUser is who opened a session, "" if it is not open.
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

// expire ends the sessions of a user, of everyone for "": their next call is NotAuthenticated.
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
	s.journal.restructure()
	return n
}

// restart is what clients see of a restart of vpxd: no service for a while, then no session is left.
func (s *Sim) restart(down time.Duration) {
	s.gate.restart(down)
	s.expire("")
}

// watching notes the client behind a call that waits, so that the wait ends with the client.
func (s *Sim) watching(context.Context, *call) (done func()) { return func() {} }
