package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/vmware/govmomi/vapi/tags"
)

const restTagging, apiTagging = "/rest/com/vmware/cis/tagging/", "/api/cis/tagging/"

// serve handles REST. govmomi has only the /rest form; this translates the /api form to it, if the version has it. It
// checks privileges on tags for both.
func (r *restServer) serve(w http.ResponseWriter, req *http.Request, c *call) {
	path := req.URL.Path
	api := strings.HasPrefix(path, apiTagging) || path == "/api/session"
	if api && !apiVersionAtLeast(r.sim.inv.About.APIVersion, 7, 0, 2) {
		http.NotFound(w, req)
		return
	}
	switch {
	case path == "/api/session":
		r.apiSession(w, req)
	case api:
		r.apiTagging(w, req, c)
	case strings.HasPrefix(path, restTagging):
		answer := r.tagging(req, c)
		answer.body = withoutNulls(answer.body)
		answer.write(w)
	default:
		r.sim.gate.inner.ServeHTTP(w, req)
	}
}

func apiVersionAtLeast(version string, want ...int) bool {
	parts := strings.Split(version, ".")
	for i, w := range want {
		have := 0
		if i < len(parts) {
			have, _ = strconv.Atoi(parts[i])
		}
		if have != w {
			return have > w
		}
	}
	return true
}

// restAnswer is a response that can still be rewritten.
type restAnswer struct {
	status int
	header http.Header
	body   []byte
}

func (a *restAnswer) write(w http.ResponseWriter) {
	for k, v := range a.header {
		w.Header()[k] = v
	}
	w.Header().Del("Content-Length")
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body)
}

func (r *restServer) inner(req *http.Request) *restAnswer {
	rec := httptest.NewRecorder()
	r.sim.gate.inner.ServeHTTP(rec, req)
	return &restAnswer{rec.Code, rec.Header(), rec.Body.Bytes()}
}

// apiSession is /api/session: the id is a plain JSON string.
func (r *restServer) apiSession(w http.ResponseWriter, req *http.Request) {
	on := req.Clone(req.Context())
	on.URL.Path = "/rest/com/vmware/cis/session"
	if req.Method == http.MethodGet {
		id := req.Header.Get(restSession)
		if cookie, err := req.Cookie(restSession); id == "" && err == nil {
			id = cookie.Value
		}
		user, since, seen, ok := r.session(id)
		if !ok {
			apiError(w, http.StatusUnauthorized, "")
			return
		}
		writeJSON(w, http.StatusOK, map[string]any{"user": user, "created_time": since, "last_accessed_time": seen})
		return
	}
	got := r.inner(on)
	if got.status != http.StatusOK {
		apiError(w, got.status, "")
		return
	}
	if req.Method == http.MethodDelete {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set(restSession, unquote(unwrap(got.body)))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(unwrap(got.body))
}

func (r *restServer) session(id string) (user string, since, seen time.Time, ok bool) {
	r.handler.Lock()
	defer r.handler.Unlock()
	s := r.sessions()[id]
	if s == nil {
		return "", since, seen, false
	}
	return s.User, s.Created, s.LastAccessed, true
}

// apiTagging translates an /api request to the equivalent /rest request, and its response back.
func (r *restServer) apiTagging(w http.ResponseWriter, req *http.Request, c *call) {
	kind, id, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, apiTagging), "/")
	action := req.URL.Query().Get("action")
	body, err := io.ReadAll(req.Body)
	if err != nil {
		apiError(w, http.StatusBadRequest, err.Error())
		return
	}
	if id == "" && kind == "tag" && action == "list-tags-for-category" {
		var in struct {
			CategoryID string `json:"category_id"`
		}
		decodeLoose(body, &in)
		id = in.CategoryID
	}
	wrap := map[string]string{http.MethodPost: "create_spec", http.MethodPatch: "update_spec"}[req.Method]
	if action == "" && wrap != "" && kind != "tag-association" {
		if body, err = json.Marshal(map[string]json.RawMessage{wrap: body}); err != nil {
			apiError(w, http.StatusBadRequest, "the body is not JSON")
			return
		}
	}
	if len(bytes.TrimSpace(body)) == 0 {
		body = []byte("{}")
	}
	on := req.Clone(req.Context())
	on.URL.Path = restTagging + kind
	if id != "" {
		on.URL.Path += "/id:" + id
	}
	q := url.Values{}
	if action != "" {
		q.Set("~action", action)
	}
	on.URL.RawQuery = q.Encode()
	on.Body = io.NopCloser(bytes.NewReader(body))
	got := r.tagging(on, c)
	switch value := unwrap(withoutNulls(got.body)); {
	case got.status >= 300:
		apiError(w, got.status, errorKind(got.body))
	case value == nil:
		w.WriteHeader(http.StatusNoContent)
	case req.Method == http.MethodPost && action == "":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(value)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(value)
	}
}

// tagging checks a /rest tagging request and lets govmomi handle it.
func (r *restServer) tagging(req *http.Request, c *call) *restAnswer {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return restError(http.StatusBadRequest, "invalid_argument", err.Error())
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	kind, id, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, restTagging), "/")
	id = strings.TrimPrefix(id, "id:")
	action := req.URL.Query().Get("~action")
	var in association
	decodeLoose(body, &in)
	if c.user != "" { // without a session govmomi rejects the request
		access := r.sim.auth.accessOf(c.user)
		for _, n := range tagNeeds(req.Method, kind, action, in.refs()) {
			if n.on == (ref{}) {
				n.on = r.sim.root()
			}
			if !access.may(n.on, n.privilege) {
				return restError(http.StatusForbidden, "unauthorized", "the user lacks "+n.privilege)
			}
		}
		if strings.HasPrefix(action, "attach") {
			if wrong := r.misfit(append(in.TagIDs, id), in.refs()); wrong != "" {
				return restError(http.StatusBadRequest, "invalid_argument", wrong)
			}
		}
	}
	return r.inner(req)
}

// association is the union of the requests of tag-association.
type association struct {
	ObjectID  *objectID  `json:"object_id"`
	ObjectIDs []objectID `json:"object_ids"`
	TagIDs    []string   `json:"tag_ids"`
}

type objectID struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

func (a association) refs() (out []ref) {
	if a.ObjectID != nil {
		a.ObjectIDs = append(a.ObjectIDs, *a.ObjectID)
	}
	for _, o := range a.ObjectIDs {
		out = append(out, ref{Type: o.Type, Value: o.ID})
	}
	return out
}

// tagNeeds: an empty reference is the root folder.
func tagNeeds(verb, kind, action string, objects []ref) (all []need) {
	const tagging = "InventoryService.Tagging."
	what := map[string]string{"tag": "Tag", "category": "Category"}[kind]
	switch {
	case kind == "tag-association" && (strings.HasPrefix(action, "attach") || strings.HasPrefix(action, "detach")):
		all = append(all, need{tagging + "AttachTag", ref{}})
		for _, o := range objects {
			all = append(all, need{tagging + "ObjectAttachable", o})
		}
	case what != "" && verb == http.MethodPost && action == "":
		all = append(all, need{tagging + "Create" + what, ref{}})
	case what != "" && verb == http.MethodPatch:
		all = append(all, need{tagging + "Edit" + what, ref{}})
	case what != "" && verb == http.MethodDelete:
		all = append(all, need{tagging + "Delete" + what, ref{}})
	}
	return all
}

// misfit says why a tag cannot be attached: its category is for other types, or allows one tag for each object.
func (r *restServer) misfit(ids []string, objects []ref) string {
	r.handler.Lock()
	defer r.handler.Unlock()
	all, categories := field[map[string]*tags.Tag](r, "Tag"), field[map[string]*tags.Category](r, "Category")
	for _, id := range ids {
		t := all[id]
		if t == nil || categories[t.CategoryID] == nil {
			continue
		}
		category := categories[t.CategoryID]
		for _, o := range objects {
			if len(category.AssociableTypes) > 0 && !fits(category.AssociableTypes, o.Type) {
				return fmt.Sprintf("tags of %s are not for a %s", category.Name, o.Type)
			}
			if category.Cardinality != "SINGLE" {
				continue
			}
			for other, had := range all {
				if other == id || had.CategoryID != t.CategoryID {
					continue
				}
				on, _ := r.handler.AttachedObjects(other)
				for _, x := range on {
					if x.Type == o.Type && x.Value == o.Value {
						return fmt.Sprintf("%s already has a tag of %s", o.Value, category.Name)
					}
				}
			}
		}
	}
	return ""
}

func fits(kinds []string, kind string) bool {
	for _, k := range kinds {
		if k == kind || strings.EqualFold(k, "all") {
			return true
		}
	}
	return false
}

func restError(status int, kind, message string) *restAnswer {
	body, _ := json.Marshal(map[string]any{"type": "com.vmware.vapi.std.errors." + kind,
		"value": map[string]any{"messages": []any{map[string]any{"args": []string{}, "default_message": message, "id": "vcsim." + kind}}}})
	return &restAnswer{status, http.Header{"Content-Type": {"application/json"}}, append(body, '\n')}
}

// errorKind is the last part of the error type in a /rest response.
func errorKind(body []byte) string {
	var e struct{ Type string }
	decodeLoose(body, &e)
	return e.Type[strings.LastIndex(e.Type, ".")+1:]
}

func apiError(w http.ResponseWriter, status int, kind string) {
	if kind == "" {
		kind = map[int]string{http.StatusUnauthorized: "unauthenticated", http.StatusForbidden: "unauthorized", http.StatusNotFound: "not_found",
			http.StatusBadRequest: "invalid_argument"}[status]
	}
	or(&kind, "error")
	writeJSON(w, status, map[string]any{"error_type": strings.ToUpper(kind), "messages": []any{}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// unwrap returns the value of a /rest response, nil if it has none.
func unwrap(body []byte) []byte {
	var e struct {
		Value json.RawMessage `json:"value"`
	}
	decodeLoose(body, &e)
	return e.Value
}

func unquote(b []byte) (s string) {
	decodeLoose(b, &s)
	return s
}

var nullList = regexp.MustCompile(`("(?:value|tag_ids|object_ids)":)null`)

// withoutNulls replaces null with an empty list, as vCenter writes it.
func withoutNulls(body []byte) []byte { return nullList.ReplaceAll(body, []byte("${1}[]")) }

// idInPath matches the id in a path.
var idInPath = regexp.MustCompile(`id:[^/?]+|urn:[^/?]+`)
