package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vapi/tags"
)

func tagged(version string) record {
	return world(func(w record) {
		w["about"] = record{"version": version}
		w["categories"] = list{record{"name": "k8s-zone", "types": list{"HostSystem", "ClusterComputeResource"},
			"tags": list{record{"name": "zone-a", "attached": list{"/DC0/host/C0"}}, record{"name": "zone-b"}}}}
	})
}

// trusting is a client that accepts any certificate.
func trusting() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
}

// rest makes one REST call and returns status and body.
func (p *peer) rest(session, verb, path string, body any, user ...string) (int, []byte) {
	p.t.Helper()
	b, _ := json.Marshal(body)
	req, _ := http.NewRequest(verb, "https://"+p.url.Host+path, bytes.NewReader(b))
	if session != "" {
		req.Header.Set("vmware-api-session-id", session)
	}
	if len(user) == 2 {
		req.SetBasicAuth(user[0], user[1])
	}
	res, err := trusting().Do(req)
	must(p.t, err)
	defer func() { _ = res.Body.Close() }()
	out, _ := io.ReadAll(res.Body)
	return res.StatusCode, out
}

func (p *peer) apiLogin(user, password string) string {
	p.t.Helper()
	status, body := p.rest("", "POST", "/api/session", nil, user, password)
	if status != http.StatusCreated {
		p.t.Fatalf("POST /api/session: %d %s", status, body)
	}
	return unquote(body)
}

func TestTheAPIFormOfTagsExistsFromSevenOnAndRESTAlways(t *testing.T) {
	for _, v := range []struct {
		version string
		api     bool
	}{{"6.7.3", false}, {"7.0.3", true}, {"8.0.3", true}, {"9.0.0", true}} {
		p := launch(t, tagged(v.version))
		c := p.client()
		if c.ServiceContent.About.Version != v.version || !strings.HasPrefix(c.ServiceContent.About.ApiVersion, v.version) {
			t.Fatalf("about: %+v", c.ServiceContent.About)
		}
		rc := rest.NewClient(c.Client)
		must(t, rc.Login(deadline(t), p.userinfo()))
		all, err := tags.NewManager(rc).GetCategories(deadline(t))
		if err != nil || len(all) != 1 || all[0].Name != "k8s-zone" {
			t.Fatalf("%s: %v %v", v.version, all, err)
		}
		status, _ := p.rest("", "POST", "/api/session", nil, admin, adminPassword)
		if (status == http.StatusCreated) != v.api || (!v.api && status != http.StatusNotFound) {
			t.Fatalf("%s: POST /api/session answers %d", v.version, status)
		}
	}
}

func TestTagsAreReadAndWrittenInTheAPIForm(t *testing.T) {
	p := launch(t, tagged("8.0.3"))
	if status, _ := p.rest("", "POST", "/api/session", nil, admin, "wrong"); status != http.StatusUnauthorized {
		t.Fatalf("a wrong password answers %d", status)
	}
	s := p.apiLogin(admin, adminPassword)
	if status, body := p.rest(s, "GET", "/api/session", nil); status != 200 || !strings.Contains(string(body), admin) {
		t.Fatalf("GET /api/session: %d %s", status, body)
	}
	get := func(into any, verb, path string, body any) {
		t.Helper()
		status, answer := p.rest(s, verb, path, body)
		if status >= 300 || (into != nil && json.Unmarshal(answer, into) != nil) {
			t.Fatalf("%s %s: %d %s", verb, path, status, answer)
		}
	}
	var categories, ids, none []string
	get(&categories, "GET", "/api/cis/tagging/category", nil)
	var category struct{ Name, Cardinality string }
	get(&category, "GET", "/api/cis/tagging/category/"+categories[0], nil)
	if category.Name != "k8s-zone" || category.Cardinality != "SINGLE" {
		t.Fatalf("%+v", category)
	}
	get(&ids, "POST", "/api/cis/tagging/tag?action=list-tags-for-category", record{"category_id": categories[0]})
	if len(ids) != 2 {
		t.Fatalf("tags of the category: %v", ids)
	}
	cluster := record{"type": "ClusterComputeResource", "id": p.inventory().Datacenters[0].Clusters[0].Moref}
	host := record{"type": "HostSystem", "id": p.inventory().Datacenters[0].Clusters[0].Hosts[0].Moref}
	var on []struct {
		ObjectID objectID `json:"object_id"`
		TagIDs   []string `json:"tag_ids"`
	}
	get(&on, "POST", "/api/cis/tagging/tag-association?action=list-attached-tags-on-objects", record{"object_ids": list{cluster, host}})
	if len(on) != 2 || len(on[0].TagIDs) != 1 || on[1].TagIDs == nil || len(on[1].TagIDs) != 0 {
		t.Fatalf("attached: %+v", on)
	}
	var made string
	get(&made, "POST", "/api/cis/tagging/tag", record{"category_id": categories[0], "name": "zone-c", "description": ""})
	get(nil, "POST", "/api/cis/tagging/tag-association/"+made+"?action=attach", record{"object_id": host})
	get(&ids, "POST", "/api/cis/tagging/tag-association?action=list-attached-tags", record{"object_id": host})
	if len(ids) != 1 || ids[0] != made {
		t.Fatalf("the host has %v", ids)
	}
	if status, body := p.rest(s, "POST", "/api/cis/tagging/tag-association/"+made+"?action=attach", record{"object_id": cluster}); status != 400 {
		t.Fatalf("a second tag of a SINGLE category: %d %s", status, body)
	}
	vm := record{"type": "VirtualMachine", "id": p.moref("node-1").Value}
	if status, body := p.rest(s, "POST", "/api/cis/tagging/tag-association/"+made+"?action=attach", record{"object_id": vm}); status != 400 {
		t.Fatalf("a tag on a type it is not for: %d %s", status, body)
	}
	get(&none, "POST", "/api/cis/tagging/tag-association?action=list-attached-tags", record{"object_id": vm})
	if none == nil || len(none) != 0 {
		t.Fatalf("want an empty list, got %v", none)
	}
	if status, body := p.rest(s, "GET", "/api/cis/tagging/tag/urn:none", nil); status != 404 || !strings.Contains(string(body), "NOT_FOUND") {
		t.Fatalf("an unknown tag: %d %s", status, body)
	}
	get(nil, "DELETE", "/api/cis/tagging/tag/"+made, nil)
	get(nil, "DELETE", "/api/session", nil)
	if status, _ := p.rest(s, "GET", "/api/cis/tagging/tag", nil); status != 401 {
		t.Fatalf("a closed session answers %d", status)
	}
}

func TestTagsNeedTheirPrivileges(t *testing.T) {
	p := launch(t, tagged("8.0.3"))
	s := p.apiLogin(op, op+"-password")
	var ids []string
	_, body := p.rest(s, "GET", "/api/cis/tagging/tag", nil)
	must(t, json.Unmarshal(body, &ids))
	attach := func() int {
		status, _ := p.rest(s, "POST", "/api/cis/tagging/tag-association?action=attach-multiple-tags-to-object",
			record{"object_id": record{"type": "HostSystem", "id": p.inventory().Datacenters[0].Clusters[0].Hosts[0].Moref}, "tag_ids": ids[:1]})
		return status
	}
	if status, _ := p.rest(s, "POST", "/api/cis/tagging/tag", record{"name": "x"}); status != 403 || attach() != 403 {
		t.Fatal("tags were changed without the privilege")
	}
	p.lever("POST", "/roles", record{"name": "tags", "privileges": list{"InventoryService.Tagging.AttachTag", "InventoryService.Tagging.ObjectAttachable"}})
	p.lever("POST", "/permissions", record{"principal": op, "role": "tags", "entity": "/"})
	if got := attach(); got != 200 {
		t.Fatalf("attach answers %d", got)
	}
	p.lever("DELETE", "/sessions?user="+op, nil)
	if got := attach(); got != 401 {
		t.Fatalf("an expired session answers %d", got)
	}
}

func TestTheControlPortTagsAndRenames(t *testing.T) {
	p := launch(t, tagged("8.0.3"))
	p.lever("POST", "/tags", record{"category": "k8s-region", "tag": "r1", "attach": list{"/DC0"}})
	p.lever("POST", "/tags", record{"category": "k8s-zone", "tag": "zone-b", "attach": list{"/DC0/host/C0/esx-2"}})
	p.lever("POST", "/tags", record{"category": "k8s-zone", "tag": "zone-a", "detach": list{"/DC0/host/C0"}})
	p.lever("PATCH", "/categories?name=k8s-zone", record{"name": "zone"})
	got, _ := json.Marshal(p.inventory().Categories)
	want := `[{"name":"k8s-region","cardinality":"SINGLE","tags":[{"name":"r1","attached":["/DC0"]}]},` +
		`{"name":"zone","cardinality":"SINGLE","types":["HostSystem","ClusterComputeResource"],"tags":[{"name":"zone-a"},{"name":"zone-b","attached":["/DC0/host/C0/esx-2"]}]}]`
	if string(got) != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
}
