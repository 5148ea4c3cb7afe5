package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
)

// Inventory is the initial inventory of a simulator, and the response of GET /inventory. Every field is optional;
// withDefaults has the defaults.
type Inventory struct {
	About       About        `json:"about"`
	Datacenters []Datacenter `json:"datacenters"`
	Categories  []Category   `json:"categories,omitempty"`
	Users       []User       `json:"users,omitempty"`
	Roles       []Role       `json:"roles,omitempty"`
	Permissions []Permission `json:"permissions,omitempty"`
}

// About is the AboutInfo of the service, which needs no login.
type About struct {
	Name         string `json:"name,omitempty"`
	FullName     string `json:"fullName,omitempty"`
	Version      string `json:"version,omitempty"`
	APIVersion   string `json:"apiVersion,omitempty"`
	APIType      string `json:"apiType,omitempty"`
	Build        string `json:"build,omitempty"`
	InstanceUUID string `json:"instanceUuid,omitempty"`
}

type Datacenter struct {
	Name       string      `json:"name"`
	Moref      string      `json:"moref,omitempty"`
	Folder     string      `json:"folder,omitempty"`
	Clusters   []Cluster   `json:"clusters,omitempty"`
	Hosts      []Host      `json:"hosts,omitempty"`
	Datastores []Datastore `json:"datastores,omitempty"`
	Networks   []string    `json:"networks,omitempty"`
	Folders    []string    `json:"folders,omitempty"`
	VMs        []VM        `json:"vms,omitempty"`
}

type Cluster struct {
	Name          string   `json:"name"`
	Moref         string   `json:"moref,omitempty"`
	Folder        string   `json:"folder,omitempty"`
	Hosts         []Host   `json:"hosts,omitempty"`
	ResourcePools []string `json:"resourcePools,omitempty"`
	FileService   *bool    `json:"fileService,omitempty"`
}

type Host struct {
	Name        string `json:"name"`
	Moref       string `json:"moref,omitempty"`
	Folder      string `json:"folder,omitempty"` // standalone hosts only
	Version     string `json:"version,omitempty"`
	Build       string `json:"build,omitempty"`
	Maintenance bool   `json:"maintenance"`
	Connection  string `json:"connection,omitempty"`
}

type Datastore struct {
	Name        string    `json:"name"`
	Moref       string    `json:"moref,omitempty"`
	Type        string    `json:"type,omitempty"`
	URL         string    `json:"url,omitempty"`
	CapacityGiB *float64  `json:"capacityGiB,omitempty"`
	FreeGiB     *float64  `json:"freeGiB,omitempty"`
	Hosts       *[]string `json:"hosts,omitempty"` // absent: every host of the datacenter
	Accessible  *bool     `json:"accessible,omitempty"`
	Maintenance string    `json:"maintenance,omitempty"`
}

// VM is a virtual machine. Its tools report the guest facts (hostName, nics[].addresses) while it runs; the simulator keeps
// them while it is off.
type VM struct {
	Name         string            `json:"name"`
	Moref        string            `json:"moref,omitempty"`      // output only
	Path         string            `json:"path,omitempty"`       // output only
	Datacenter   string            `json:"datacenter,omitempty"` // POST /vms only
	Folder       string            `json:"folder,omitempty"`
	Cluster      string            `json:"cluster,omitempty"`
	Host         string            `json:"host,omitempty"`
	ResourcePool string            `json:"resourcePool,omitempty"`
	Datastore    string            `json:"datastore,omitempty"`
	UUID         string            `json:"uuid,omitempty"`
	InstanceUUID string            `json:"instanceUuid,omitempty"`
	HostName     *string           `json:"hostName,omitempty"`
	GuestID      string            `json:"guestId,omitempty"`
	Version      string            `json:"version,omitempty"`
	CPUs         int32             `json:"cpus,omitempty"`
	MemoryMiB    int32             `json:"memoryMiB,omitempty"`
	DiskUUID     *bool             `json:"diskUuid,omitempty"`
	Tools        string            `json:"tools,omitempty"`
	Power        string            `json:"power,omitempty"`
	NICs         *[]NIC            `json:"nics,omitempty"`
	SCSI         *[]string         `json:"scsi,omitempty"`
	ExtraDisks   int               `json:"extraDisks,omitempty"` // besides the boot disk and volumes
	Snapshots    []string          `json:"snapshots,omitempty"`
	ExtraConfig  map[string]string `json:"extraConfig,omitempty"`
	Template     bool              `json:"template,omitempty"`
	Disks        []Disk            `json:"disks,omitempty"` // output only
}

type NIC struct {
	Network   string   `json:"network,omitempty"`
	MAC       string   `json:"mac,omitempty"`
	Connected *bool    `json:"connected,omitempty"`
	Addresses []string `json:"addresses,omitempty"` // with prefix length: "10.0.0.1/24", "fd00::1/64"
}

// Disk is a virtual disk of a VM in GET /inventory.
type Disk struct {
	UUID       string `json:"uuid"`
	VolumeID   string `json:"volumeId,omitempty"`
	File       string `json:"file"`
	CapacityMB int64  `json:"capacityMB"`
	Controller int32  `json:"controller"`
	Unit       int32  `json:"unit"`
}

type Category struct {
	Name        string   `json:"name"`
	Cardinality string   `json:"cardinality,omitempty"`
	Types       []string `json:"types,omitempty"`
	Tags        []Tag    `json:"tags,omitempty"`
}

type Tag struct {
	Name     string   `json:"name"`
	Attached []string `json:"attached,omitempty"`
}

type User struct {
	Name      string   `json:"name"`
	Password  string   `json:"password,omitempty"`
	Groups    []string `json:"groups,omitempty"`
	LockAfter int      `json:"lockAfter,omitempty"`
}

type Role struct {
	Name       string   `json:"name"`
	Privileges []string `json:"privileges"`
}

type Permission struct {
	Principal string `json:"principal"`
	Group     bool   `json:"group,omitempty"`
	Role      string `json:"role"`
	Entity    string `json:"entity"`
	Propagate *bool  `json:"propagate,omitempty"`
}

// readInventory reads, checks and completes the inventory file; an empty path is an empty inventory.
func readInventory(path string) (Inventory, error) {
	var inv Inventory
	if path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return inv, err
		}
		if err := decodeStrict(b, &inv); err != nil {
			return inv, fmt.Errorf("inventory %s: %w", path, err)
		}
	}
	inv.withDefaults()
	if err := inv.check(); err != nil {
		return inv, fmt.Errorf("inventory %s: %w", path, err)
	}
	return inv, nil
}

// decodeStrict decodes JSON and names the field that is unknown or of the wrong type.
func decodeStrict(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	var wrong *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		if d.More() {
			return errors.New("more than one JSON value")
		}
		return nil
	case errors.As(err, &wrong):
		return fmt.Errorf("field %q is a %s where a %s is wanted", wrong.Field, wrong.Value, wrong.Type)
	case errors.As(err, &syntax):
		return fmt.Errorf("not JSON at byte %d: %s", syntax.Offset, syntax)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return errors.New("not JSON: it ends too early")
	default:
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
}

func decodeLoose(b []byte, into any) { _ = json.Unmarshal(b, into) }

func or[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

func orNew[T any](v **T, otherwise T) {
	if *v == nil {
		*v = &otherwise
	}
}

func (inv *Inventory) withDefaults() {
	inv.About.withDefaults()
	if inv.Datacenters == nil {
		inv.Datacenters = []Datacenter{{Name: "DC0"}}
	}
	for i := range inv.Datacenters {
		inv.Datacenters[i].withDefaults(inv.About.Version)
	}
	for i := range inv.Categories {
		or(&inv.Categories[i].Cardinality, "SINGLE")
	}
	for i := range inv.Permissions {
		or(&inv.Permissions[i].Entity, "/")
		orNew(&inv.Permissions[i].Propagate, true)
	}
}

func (a *About) withDefaults() {
	or(&a.APIType, "VirtualCenter")
	or(&a.Version, "8.0.3")
	if strings.HasPrefix(a.Version, "6.") {
		or(&a.APIVersion, a.Version) // four numbers since 7.0
	}
	or(&a.APIVersion, a.Version+".0")
	or(&a.Build, "24022515")
	if a.APIType == "HostAgent" {
		or(&a.Name, "VMware ESXi")
	}
	or(&a.Name, "VMware vCenter Server")
	or(&a.FullName, fmt.Sprintf("%s %s build-%s", a.Name, a.Version, a.Build))
	or(&a.InstanceUUID, stableUUID("vcenter", a.FullName))
}

func (dc *Datacenter) withDefaults(version string) {
	if dc.Clusters == nil && dc.Hosts == nil {
		dc.Clusters = []Cluster{{Name: "C0"}}
	}
	for i := range dc.Clusters {
		c := &dc.Clusters[i]
		if c.Hosts == nil {
			c.Hosts = []Host{{Name: c.Name + "-esx-1"}}
		}
		for j := range c.Hosts {
			c.Hosts[j].withDefaults(version)
		}
	}
	for i := range dc.Hosts {
		dc.Hosts[i].withDefaults(version)
	}
	if dc.Datastores == nil {
		dc.Datastores = []Datastore{{Name: "shared-1"}}
	}
	for i := range dc.Datastores {
		dc.Datastores[i].withDefaults(dc.Name)
	}
	if len(dc.Networks) == 0 {
		dc.Networks = []string{"VM Network"}
	}
	for i := range dc.VMs {
		dc.VMs[i].withDefaults(dc, i)
	}
}

func (h *Host) withDefaults(version string) {
	or(&h.Version, version)
	or(&h.Build, "24022510")
	or(&h.Connection, "connected")
}

func (d *Datastore) withDefaults(dc string) {
	or(&d.Type, "VMFS")
	or(&d.URL, "ds:///vmfs/volumes/"+stableUUID("datastore", dc, d.Name)+"/")
	orNew(&d.CapacityGiB, 1024)
	orNew(&d.FreeGiB, *d.CapacityGiB/2)
	orNew(&d.Accessible, true)
	or(&d.Maintenance, "normal")
}

// withDefaults completes a VM to a healthy Kubernetes node: powered on, tools running, disk uuids visible, one paravirtual
// controller. n distributes VMs over the hosts.
func (v *VM) withDefaults(dc *Datacenter, n int) {
	if v.Host == "" {
		v.Host = dc.pickHost(v.Cluster, n)
	}
	if len(dc.Datastores) > 0 {
		or(&v.Datastore, dc.pickDatastore(v.Host))
	}
	or(&v.UUID, stableUUID("bios", dc.Name, v.Folder, v.Name))
	or(&v.InstanceUUID, stableUUID("instance", dc.Name, v.Folder, v.Name))
	v.UUID, v.InstanceUUID = strings.ToLower(v.UUID), strings.ToLower(v.InstanceUUID)
	orNew(&v.HostName, v.Name)
	or(&v.GuestID, "ubuntu64Guest")
	or(&v.Version, "vmx-19")
	or(&v.CPUs, 4)
	or(&v.MemoryMiB, 8192)
	orNew(&v.DiskUUID, true)
	or(&v.Tools, "running")
	if v.Template {
		or(&v.Power, "off")
	}
	or(&v.Power, "on")
	orNew(&v.SCSI, []string{"pvscsi"})
	orNew(&v.NICs, []NIC{{}})
	for i := range *v.NICs {
		nic := &(*v.NICs)[i]
		if len(dc.Networks) > 0 {
			or(&nic.Network, dc.Networks[0])
		}
		or(&nic.MAC, stableMAC(v.UUID, i))
		orNew(&nic.Connected, true)
	}
}

func (dc *Datacenter) pickHost(cluster string, n int) string {
	var names []string
	for _, c := range dc.Clusters {
		if cluster == "" || cluster == c.Name {
			for _, h := range c.Hosts {
				names = append(names, h.Name)
			}
		}
	}
	if len(names) == 0 && cluster == "" {
		for _, h := range dc.Hosts {
			names = append(names, h.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return names[n%len(names)]
}

func (dc *Datacenter) pickDatastore(host string) string {
	for _, d := range dc.Datastores {
		if d.Hosts == nil || slices.Contains(*d.Hosts, host) {
			return d.Name
		}
	}
	return dc.Datastores[0].Name
}

// check finds mistakes that would otherwise appear later as a strange object: each message names the field.
func (inv *Inventory) check() error {
	if err := oneOf("about.apiType", inv.About.APIType, "VirtualCenter", "HostAgent"); err != nil {
		return err
	}
	seen := map[string]bool{}
	for i := range inv.Datacenters {
		dc := &inv.Datacenters[i]
		at := fmt.Sprintf("datacenters[%d]", i)
		if dc.Name == "" {
			return fmt.Errorf("%s.name is empty", at)
		}
		if seen[dc.Folder+"/"+dc.Name] {
			return fmt.Errorf("%s.name %q is used twice", at, dc.Name)
		}
		seen[dc.Folder+"/"+dc.Name] = true
		if err := dc.check(at); err != nil {
			return err
		}
	}
	for i, c := range inv.Categories {
		if err := oneOf(fmt.Sprintf("categories[%d].cardinality", i), c.Cardinality, "SINGLE", "MULTIPLE"); err != nil {
			return err
		}
	}
	for i, u := range inv.Users {
		if u.Name == "" || u.Password == "" {
			return fmt.Errorf("users[%d] needs a name and a password", i)
		}
	}
	return nil
}

func (dc *Datacenter) check(at string) error {
	hosts := map[string]bool{}
	for i, c := range dc.Clusters {
		for j, h := range c.Hosts {
			if err := h.check(fmt.Sprintf("%s.clusters[%d].hosts[%d]", at, i, j), hosts); err != nil {
				return err
			}
		}
	}
	for i, h := range dc.Hosts {
		if err := h.check(fmt.Sprintf("%s.hosts[%d]", at, i), hosts); err != nil {
			return err
		}
	}
	stores := map[string]bool{}
	for i, d := range dc.Datastores {
		if d.Name == "" || stores[d.Name] {
			return fmt.Errorf("%s.datastores[%d].name %q is empty or used twice", at, i, d.Name)
		}
		stores[d.Name] = true
		if d.Hosts == nil {
			continue
		}
		for j, h := range *d.Hosts {
			if !hosts[h] {
				return fmt.Errorf("%s.datastores[%d].hosts[%d]: no host named %q", at, i, j, h)
			}
		}
	}
	names := map[string]bool{}
	for i := range dc.VMs {
		v, at := &dc.VMs[i], fmt.Sprintf("%s.vms[%d]", at, i)
		if v.Name == "" || names[v.Folder+"/"+v.Name] {
			return fmt.Errorf("%s.name %q is empty or used twice in its folder", at, v.Name)
		}
		names[v.Folder+"/"+v.Name] = true
		if !hosts[v.Host] {
			return fmt.Errorf("%s.host: no host named %q", at, v.Host)
		}
		if !stores[v.Datastore] {
			return fmt.Errorf("%s.datastore: no datastore named %q", at, v.Datastore)
		}
		if err := v.check(at, dc.Networks); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) check(at string, seen map[string]bool) error {
	if h.Name == "" || seen[h.Name] {
		return fmt.Errorf("%s.name %q is empty or used twice", at, h.Name)
	}
	seen[h.Name] = true
	return oneOf(at+".connection", h.Connection, "connected", "disconnected", "notResponding")
}

func (v *VM) check(at string, networks []string) error {
	for field, id := range map[string]string{"uuid": v.UUID, "instanceUuid": v.InstanceUUID} {
		if !isUUID(id) {
			return fmt.Errorf("%s.%s %q is not a uuid", at, field, id)
		}
	}
	if err := oneOf(at+".tools", v.Tools, "running", "notRunning", "notInstalled"); err != nil {
		return err
	}
	if err := oneOf(at+".power", v.Power, "on", "off", "suspended"); err != nil {
		return err
	}
	if v.ExtraDisks < 0 {
		return fmt.Errorf("%s.extraDisks is negative", at)
	}
	for i, kind := range *v.SCSI {
		if err := oneOf(fmt.Sprintf("%s.scsi[%d]", at, i), kind, "pvscsi", "lsilogic", "lsilogic-sas", "buslogic"); err != nil {
			return err
		}
	}
	for i, nic := range *v.NICs {
		if !slices.Contains(networks, nic.Network) {
			return fmt.Errorf("%s.nics[%d].network: no network named %q", at, i, nic.Network)
		}
		for j, a := range nic.Addresses {
			if _, _, err := net.ParseCIDR(a); err != nil {
				return fmt.Errorf("%s.nics[%d].addresses[%d]: %q is not an address with prefix length", at, i, j, a)
			}
		}
	}
	return nil
}

func oneOf(field, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("%s is %q, not one of %s", field, value, strings.Join(allowed, ", "))
}
