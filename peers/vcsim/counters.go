package main

import "sync"

// counters count calls when they arrive, by method and by session.
type counters struct {
	sync.Mutex
	total    map[string]int
	sessions map[string]*sessionCount
}

type sessionCount struct {
	User  string         `json:"user"`
	Agent string         `json:"agent"`
	Calls map[string]int `json:"calls"`
}

func newCounters() *counters {
	return &counters{total: map[string]int{}, sessions: map[string]*sessionCount{}}
}

func (c *counters) count(session, user, agent, method string) {
	c.Lock()
	defer c.Unlock()
	c.total[method]++
	s := c.sessions[session]
	if s == nil {
		s = &sessionCount{Calls: map[string]int{}}
		c.sessions[session] = s
	}
	if user != "" {
		s.User = user
	}
	s.Agent = agent
	s.Calls[method]++
}

func (c *counters) reset() {
	c.Lock()
	defer c.Unlock()
	c.total, c.sessions = map[string]int{}, map[string]*sessionCount{}
}

// view calls f with the counts while the lock is held.
func (c *counters) view(f func(total map[string]int, sessions map[string]*sessionCount)) {
	c.Lock()
	defer c.Unlock()
	f(c.total, c.sessions)
}
