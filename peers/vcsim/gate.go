package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// gate receives every request of a client. It counts calls and executes faults before govmomi sees the request, without
// govmomi's locks.
type gate struct {
	sim   *Sim
	inner http.Handler
	esxi  bool // a host has no REST, no storage services

	sync.Mutex
	down  time.Time     // 503 until then
	cut   chan struct{} // closed to drop everything in flight
	ahead time.Duration // how far the clock of responses is ahead of the computer's
}

func newGate(s *Sim) *gate { return &gate{sim: s, cut: make(chan struct{})} }

// call is a request with the fields for counters and faults.
type call struct {
	method  string // a SOAP method, or "GET /rest/..." with its action and {id} for ids
	exact   string // the same with the ids
	soap    bool
	this    ref
	session string
	user    string
	agent   string
	body    []byte
}

// restart answers 503 for a while and drops requests in flight, like a restart of vpxd.
func (g *gate) restart(down time.Duration) {
	g.Lock()
	defer g.Unlock()
	g.down = time.Now().Add(down)
	close(g.cut)
	g.cut = make(chan struct{})
}

func (g *gate) state() (cut chan struct{}, down bool) {
	g.Lock()
	defer g.Unlock()
	return g.cut, time.Now().Before(g.down)
}

// setClock sets the date of every response relative to the computer's clock.
func (g *gate) setClock(ahead time.Duration) {
	g.Lock()
	defer g.Unlock()
	g.ahead = ahead
}

func (g *gate) now() time.Time {
	g.Lock()
	defer g.Unlock()
	return time.Now().Add(g.ahead)
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", g.now().UTC().Format(http.TimeFormat))
	cut, down := g.state()
	if down {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "503 Service Unavailable (the service is starting)", http.StatusServiceUnavailable)
		return
	}
	if g.esxi && !strings.HasPrefix(r.URL.Path, "/sdk") && !strings.HasPrefix(r.URL.Path, "/about") {
		http.NotFound(w, r)
		return
	}
	c, err := g.identify(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if c.user == internalUser {
		g.inner.ServeHTTP(w, r)
		return
	}
	g.sim.counters.count(c.session, c.user, c.agent, c.method)

	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-cut:
			cancel()
		case <-stop:
		}
	}()
	r = r.WithContext(ctx)
	if f := g.sim.faults.take(c); f != nil && f.apply(g, w, r, c) {
		return
	}
	g.pass(w, r, c)
	select {
	case <-cut: // a restart came during the response
		panic(http.ErrAbortHandler)
	default:
	}
}

// pass forwards the request to govmomi, REST through our own handler.
func (g *gate) pass(w http.ResponseWriter, r *http.Request, c *call) {
	if c.soap {
		done := g.sim.watching(r.Context(), c)
		defer done()
		g.inner.ServeHTTP(w, r)
		switch {
		case c.method == "Logout":
			g.sim.journal.touch() // a wait of this session must notice
		case !reads(c.method):
			g.sim.journal.touch(c.this) // not all of govmomi's methods report their changes
		}
		return
	}
	g.sim.rest.serve(w, r, c)
}

func reads(method string) bool {
	for _, prefix := range []string{"Retrieve", "Wait", "Check", "Query", "Find", "Continue", "Has", "Fetch", "Current", "Log", "Cns", "Pbm", "Create"} {
		if strings.HasPrefix(method, prefix) {
			return true
		}
	}
	return false
}

// record runs the request and keeps the response.
func (g *gate) record(r *http.Request, c *call) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	g.pass(rec, r, c)
	return rec
}

// sleep waits, unless the client disconnects or the service restarts first.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (g *gate) identify(r *http.Request) (*call, error) {
	c := &call{agent: r.UserAgent(), session: "-"}
	if r.Method == http.MethodPost && (strings.Contains(r.Header.Get("Content-Type"), "xml") || strings.HasPrefix(r.URL.Path, "/sdk")) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		c.soap = true
		if cookie, err := r.Cookie("vmware_soap_session"); err == nil {
			c.session = cookie.Value
		}
		c.peek(body)
		if c.method == "CnsQueryVolume" { // without its type govmomi loses the filter
			body = bareFilter.ReplaceAll(body, []byte(`<${1}filter xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CnsQueryFilter">`))
		}
		c.body = body
		r.Body = io.NopCloser(bytes.NewReader(body))
		if c.user == "" {
			c.user = g.sim.sessionUser(c.session)
		}
	} else {
		c.method = r.Method + " " + r.URL.Path
		q := r.URL.Query()
		for _, key := range []string{"~action", "action"} {
			if a := q.Get(key); a != "" {
				c.method += "?" + key + "=" + a
			}
		}
		c.exact = c.method
		c.method = idInPath.ReplaceAllString(c.method, "{id}")
		id := r.Header.Get(restSession)
		if cookie, err := r.Cookie(restSession); id == "" && err == nil {
			id = cookie.Value
		}
		if id != "" {
			c.session, c.user = "rest:"+id, g.sim.rest.user(id)
		} else if u, _, ok := r.BasicAuth(); ok {
			c.user = u
		}
	}
	c.user = g.sim.accounts.name(c.user)
	return c, nil
}

var bareFilter = regexp.MustCompile(`<(\w+:)?filter>`)

// peek reads method, object, session and login name from a SOAP envelope.
func (c *call) peek(body []byte) {
	d := xml.NewDecoder(bytes.NewReader(body))
	inBody, depth, into := false, 0, (*string)(nil)
	for {
		tok, err := d.Token()
		if err != nil {
			return
		}
		switch t := tok.(type) {
		case xml.StartElement:
			into = nil
			switch {
			case t.Name.Local == "Body" && !inBody:
				inBody, depth = true, 0
				continue
			case t.Name.Local == "vcSessionCookie" && !inBody:
				into, c.session = &c.session, ""
			case inBody && depth == 0:
				c.method = t.Name.Local
			case inBody && depth == 1 && t.Name.Local == "_this":
				for _, a := range t.Attr {
					if a.Name.Local == "type" {
						c.this.Type = a.Value
					}
				}
				into = &c.this.Value
			case inBody && depth == 1 && t.Name.Local == "userName" && c.method == "Login":
				into = &c.user
			}
			depth++
		case xml.CharData:
			if into != nil {
				*into += strings.TrimSpace(string(t))
			}
		case xml.EndElement:
			into = nil
			depth--
			if inBody && depth == 1 && t.Name.Local == "_this" && c.method != "Login" {
				return
			}
		}
	}
}

// half sends the first half of a response and closes the connection.
func half(w http.ResponseWriter, rec *httptest.ResponseRecorder) {
	body := rec.Body.Bytes()
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(rec.Code)
	_, _ = w.Write(body[:len(body)/2])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}
