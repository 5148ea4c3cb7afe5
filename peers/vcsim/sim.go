package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/vmware/govmomi/cns"
	_ "github.com/vmware/govmomi/cns/simulator"
	_ "github.com/vmware/govmomi/lookup/simulator"
	"github.com/vmware/govmomi/pbm"
	_ "github.com/vmware/govmomi/pbm/simulator"
	"github.com/vmware/govmomi/simulator"
	_ "github.com/vmware/govmomi/sts/simulator"
	_ "github.com/vmware/govmomi/vapi/simulator"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vsan"
	vsansim "github.com/vmware/govmomi/vsan/simulator"
	vsantypes "github.com/vmware/govmomi/vsan/types"
	"github.com/vmware/govmomi/vslm"
	_ "github.com/vmware/govmomi/vslm/simulator"
)

// Sim is a simulated vCenter: govmomi's simulator with our extensions.
type Sim struct {
	inv   Inventory // the initial state
	model *simulator.Model
	svc   *simulator.Service
	url   *url.URL

	accounts *accounts
	auth     *authorization
	counters *counters
	faults   *faults
	guests   *guests
	journal  *journal
	rest     *restServer
	volumes  *volumes
	gate     *gate
	waits    waits

	fileService map[ref]*bool // by cluster
}

func (s *Sim) reg() *simulator.Registry { return s.model.Map() }
func (s *Sim) root() ref                { return s.model.ServiceContent.RootFolder }

// ctx is a new caller: callers with the same context share govmomi's object locks.
func (s *Sim) ctx() *simulator.Context {
	c := *s.model.Service.Context
	return &c
}

// start builds the inventory and serves it. Then only the methods of the returned Sim can change it.
func start(inv Inventory, listen string, cert *tls.Certificate) (*Sim, error) {
	s := &Sim{
		inv: inv, model: simulator.VPX(),
		accounts: newAccounts(inv.Users), counters: newCounters(), faults: &faults{},
		guests: &guests{known: map[ref]VM{}}, journal: newJournal(), waits: waits{clients: map[waitKey]context.Context{}}, fileService: map[ref]*bool{},
	}
	s.gate = newGate(s)
	m := s.model
	m.Datacenter, m.Cluster, m.ClusterHost, m.Host, m.Machine, m.Datastore, m.Portgroup = 0, 0, 0, 0, 0, 0, 0
	about := &m.ServiceContent.About
	about.LicenseProductVersion = strings.Split(inv.About.Version, ".")[0] + ".0"
	about.Name, about.FullName, about.Version = inv.About.Name, inv.About.FullName, inv.About.Version
	about.ApiVersion, about.Build, about.InstanceUuid = inv.About.APIVersion, inv.About.Build, inv.About.InstanceUUID
	if err := m.Create(); err != nil {
		return nil, err
	}
	s.svc = m.Service
	s.auth = newAuthorization(s)
	s.replaceManagers()
	if err := s.build(&inv); err != nil {
		return nil, err
	}
	for _, r := range inv.Roles {
		if err := s.auth.setRole(r); err != nil {
			return nil, err
		}
	}
	if len(inv.Permissions) == 0 {
		for _, u := range inv.Users {
			inv.Permissions = append(inv.Permissions, Permission{Principal: u.Name, Role: "Admin", Entity: "/"})
		}
	}
	for i, p := range inv.Permissions {
		if err := s.auth.grant(p); err != nil {
			return nil, fmt.Errorf("permissions[%d]: %w", i, err)
		}
	}
	s.serve(listen, cert)
	for i, c := range inv.Categories {
		if err := s.rest.addCategory(c); err != nil {
			return nil, fmt.Errorf("categories[%d]: %w", i, err)
		}
	}
	if inv.About.APIType == "HostAgent" {
		s.poseAsESXi()
	}
	s.journal.follow = s.follow
	go s.forgetTasks()
	s.reg().AddHandler(s.journal)
	return s, nil
}

// replaceManagers replaces govmomi's property collector and view manager with ours.
func (s *Sim) replaceManagers() {
	sims.Store(s.reg(), s)
	content := s.model.ServiceContent
	pc := &collector{}
	pc.Self = content.PropertyCollector
	s.reg().Put(pc)
	s.reg().Put(newSearch(s))
	s.reg().Put(&viewManager{s.reg().Get(*content.ViewManager).(*simulator.ViewManager)})
}

// endpoints has the Sim for the one callback that govmomi allows us to register.
var endpoints *Sim

func init() {
	simulator.RegisterEndpoint(func(svc *simulator.Service, r *simulator.Registry) {
		if endpoints != nil {
			endpoints.wrap(svc, r)
		}
	})
}

func (s *Sim) serve(listen string, cert *tls.Certificate) {
	svc := s.svc
	svc.RegisterEndpoints = true
	svc.TLS = new(tls.Config)
	if cert != nil {
		svc.TLS.Certificates = []tls.Certificate{*cert}
	}
	svc.Listen = &url.URL{Host: listen, User: s.accounts.internal()}
	endpoints = s
	server := svc.NewServer()
	endpoints = nil
	s.gate.inner, server.Config.Handler = server.Config.Handler, s.gate
	s.url = server.URL
}

// wrap runs after every endpoint of govmomi is registered and before the first request.
func (s *Sim) wrap(svc *simulator.Service, r *simulator.Registry) {
	r.SessionManager().ValidLogin = s.accounts.login
	for _, p := range []string{vim25.Path, cns.Path, pbm.Path, vslm.Path} {
		svc.Context.For(p).Map.Handler = s.enforce
	}
	wrapCNS(s, svc.Context.For(cns.Path).Map)
	s.setFileService(svc.Context.For(cns.Path).Map)
	s.rest = newRestServer(s, svc)
}

// setFileService makes VsanClusterGetConfig report the clusters with the vSAN file service.
func (s *Sim) setFileService(reg *simulator.Registry) {
	system := reg.Get(vsan.VsanVcClusterConfigSystemInstance).(*vsansim.ClusterConfigSystem)
	system.Config = map[ref]*vsantypes.VsanConfigInfoEx{}
	for cluster, on := range s.fileService {
		if on != nil {
			info := &vsantypes.VsanConfigInfoEx{FileServiceConfig: &vsantypes.VsanFileServiceConfig{Enabled: *on}}
			info.Enabled = types.NewBool(true)
			info.DefaultConfig = &types.VsanClusterConfigInfoHostDefaultInfo{Uuid: stableUUID("vsan", cluster.Value)}
			system.Config[cluster] = info
		}
	}
}

// poseAsESXi makes the service report that it is a host. It runs last: govmomi omits parts on a host.
func (s *Sim) poseAsESXi() {
	si := s.reg().Get(vim25.ServiceInstance).(*simulator.ServiceInstance)
	si.Content.About.ApiType, si.Content.About.ProductLineId = "HostAgent", "embeddedEsx"
	s.gate.esxi = true
}

// workFolder creates the folder for the files of datastores and changes into it. It removes the folders of simulators that
// were killed.
func workFolder() (string, error) {
	prefix := filepath.Join(os.TempDir(), "vdo-vcsim-")
	old, _ := filepath.Glob(prefix + "*")
	for _, dir := range old {
		pid, err := strconv.Atoi(strings.TrimPrefix(dir, prefix))
		if err == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
			_ = os.RemoveAll(dir)
		}
	}
	dir := prefix + strconv.Itoa(os.Getpid())
	_ = os.RemoveAll(dir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	if err := os.Setenv("TMPDIR", dir); err != nil {
		return "", err
	}
	return dir, os.Chdir(dir)
}
