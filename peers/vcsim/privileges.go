package main

import (
	"reflect"
	"strings"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// need is a privilege and the object it is checked on. An object that is not an inventory entity stands for the root
// folder.
type need struct {
	privilege string
	on        ref
}

// onThis is the table of methods that need privileges on the object they are called on.
var onThis = map[string][]string{
	"PowerOnVM_Task":               {"VirtualMachine.Interact.PowerOn"},
	"PowerOffVM_Task":              {"VirtualMachine.Interact.PowerOff"},
	"ShutdownGuest":                {"VirtualMachine.Interact.PowerOff"},
	"SuspendVM_Task":               {"VirtualMachine.Interact.Suspend"},
	"StandbyGuest":                 {"VirtualMachine.Interact.Suspend"},
	"ResetVM_Task":                 {"VirtualMachine.Interact.Reset"},
	"RebootGuest":                  {"VirtualMachine.Interact.Reset"},
	"CreateSnapshot_Task":          {"VirtualMachine.State.CreateSnapshot"},
	"CreateSnapshotEx_Task":        {"VirtualMachine.State.CreateSnapshot"},
	"RemoveAllSnapshots_Task":      {"VirtualMachine.State.RemoveSnapshot"},
	"RevertToCurrentSnapshot_Task": {"VirtualMachine.State.RevertToSnapshot"},
	"UpgradeVM_Task":               {"VirtualMachine.Config.UpgradeVirtualHardware"},
	"UnregisterVM":                 {"VirtualMachine.Inventory.Unregister"},
	"CloneVM_Task":                 {"VirtualMachine.Provisioning.Clone"},
	"MarkAsTemplate":               {"VirtualMachine.Provisioning.MarkAsTemplate"},
	"MarkAsVirtualMachine":         {"VirtualMachine.Provisioning.MarkAsVM"},
	"CustomizeVM_Task":             {"VirtualMachine.Provisioning.Customize"},
	"AttachDisk_Task":              {"VirtualMachine.Config.AddExistingDisk"},
	"DetachDisk_Task":              {"VirtualMachine.Config.RemoveDisk"},
	"CreateVM_Task":                {"VirtualMachine.Inventory.Create"},
	"RegisterVM_Task":              {"VirtualMachine.Inventory.Register"},
	"CreateFolder":                 {"Folder.Create"},
	"CreateDatacenter":             {"Datacenter.Create"},
	"CreateClusterEx":              {"Host.Inventory.CreateCluster"},
	"AddHost_Task":                 {"Host.Inventory.AddHostToCluster"},
	"AddStandaloneHost_Task":       {"Host.Inventory.AddStandaloneHost"},
	"EnterMaintenanceMode_Task":    {"Host.Config.Maintenance"},
	"ExitMaintenanceMode_Task":     {"Host.Config.Maintenance"},
	"DisconnectHost_Task":          {"Host.Config.Connection"},
	"ReconnectHost_Task":           {"Host.Config.Connection"},
	"CreateResourcePool":           {"Resource.CreatePool"},
	"AddAuthorizationRole":         {"Authorization.ModifyRoles"},
	"UpdateAuthorizationRole":      {"Authorization.ModifyRoles"},
	"RemoveAuthorizationRole":      {"Authorization.ModifyRoles"},
	"TerminateSession":             {"Sessions.TerminateSession"},
	"SessionIsActive":              {"Sessions.ValidateSession"},
	"ImpersonateUser":              {"Sessions.ImpersonateUser"},
	"UpdateOptions":                {"Global.Settings"},
	"CnsQueryVolume":               {"Cns.Searchable"},
	"CnsQueryAllVolume":            {"Cns.Searchable"},
	"CnsQueryAsync":                {"Cns.Searchable"},
	"CnsQueryVolumeInfo":           {"Cns.Searchable"},
	"CnsQuerySnapshots":            {"Cns.Searchable"},
	"CnsUpdateVolumeMetadata":      {"Cns.Searchable"},
	"PbmCreate":                    {"StorageProfile.Update"},
	"PbmDelete":                    {"StorageProfile.Update"},
	"PbmUpdate":                    {"StorageProfile.Update"},
}

// byType has methods whose privilege depends on the type of the object.
var byType = map[string]map[string]string{
	"Destroy_Task": {"VirtualMachine": "VirtualMachine.Inventory.Delete", "Folder": "Folder.Delete", "Datastore": "Datastore.Delete",
		"HostSystem": "Host.Inventory.RemoveHostFromCluster", "ClusterComputeResource": "Host.Inventory.DeleteCluster",
		"ResourcePool": "Resource.DeletePool", "Datacenter": "Datacenter.Delete", "Network": "Network.Delete"},
	"Rename_Task": {"VirtualMachine": "VirtualMachine.Config.Rename", "Folder": "Folder.Rename", "Datastore": "Datastore.Rename",
		"ClusterComputeResource": "Host.Inventory.RenameCluster", "ResourcePool": "Resource.RenamePool", "Datacenter": "Datacenter.Rename"},
}

// otherTasks has a privilege for tasks in no table: every change of an entity needs one.
var otherTasks = map[string]string{"VirtualMachine": "VirtualMachine.Config.Settings", "HostSystem": "Host.Config.Settings", "Datastore": "Datastore.Config",
	"ClusterComputeResource": "Host.Inventory.EditCluster", "ComputeResource": "Host.Inventory.EditCluster", "Folder": "Folder.Create",
	"ResourcePool": "Resource.EditPool", "Datacenter": "Datacenter.Reconfigure", "Task": "Global.CancelTask"}

// ownRules are the tasks that needs checks by their arguments.
var ownRules = map[string]bool{"ReconfigVM_Task": true, "RelocateVM_Task": true, "MoveIntoFolder_Task": true}

// enforce is called by govmomi for each decoded SOAP call; a fault ends the call.
func (s *Sim) enforce(ctx *simulator.Context, m *simulator.Method) (mo.Reference, types.BaseMethodFault) {
	if l, ok := m.Body.(*types.Login); ok && l.UserName != internalUser {
		l.UserName = displayName(s.accounts.name(l.UserName)) // the spelling in the session
	}
	if _, ok := m.Body.(*types.LoginByToken); ok && !s.knownSubject(ctx) {
		return nil, &types.InvalidLogin{}
	}
	if ctx.Session != nil {
		if c := s.auth.accessOf(ctx.Session.UserName); c != nil {
			if !c.sees(m.This) {
				return nil, &types.NoPermission{Object: &m.This, PrivilegeId: "System.View"}
			}
			for _, n := range s.needs(m) {
				if !c.may(n.on, n.privilege) {
					return nil, &types.NoPermission{Object: &n.on, PrivilegeId: n.privilege}
				}
			}
		}
	}
	if _, adds := m.Body.(*types.AddHost_Task); adds {
		return nil, &types.NotSupported{} // govmomi panics on the versions our hosts have
	}
	s.prepare(m)
	if m.This == *s.model.ServiceContent.SearchIndex && ctx.Session != nil {
		m.This = searchRef // govmomi requires its own index
	}
	return nil, nil
}

// knownSubject says whether a token was issued to one of the users; the signature is not verified.
func (s *Sim) knownSubject(ctx *simulator.Context) bool {
	var subject struct {
		ID string `xml:"Assertion>Subject>NameID"`
	}
	if e, ok := ctx.Header.Security.(*simulator.Element); ok {
		_ = e.Decode(&subject)
	}
	return !s.accounts.restricted() || s.accounts.knows(subject.ID)
}

// needs are the privileges for a call; none for the many that only read.
func (s *Sim) needs(m *simulator.Method) (all []need) {
	for _, p := range onThis[m.Name] {
		all = append(all, need{p, m.This})
	}
	if p := byType[m.Name][m.This.Type]; p != "" {
		all = append(all, need{p, m.This})
	}
	if len(all) == 0 && strings.HasSuffix(m.Name, "_Task") && !ownRules[m.Name] && otherTasks[m.This.Type] != "" {
		all = append(all, need{otherTasks[m.This.Type], m.This})
	}
	if strings.HasPrefix(m.Name, "Pbm") && m.Name != "PbmRetrieveServiceContent" {
		all = append(all, need{"StorageProfile.View", m.This})
	}
	const files = "Datastore.FileManagement"
	switch b := m.Body.(type) {
	case *types.ReconfigVM_Task:
		for _, p := range reconfigureNeeds(&b.Spec) {
			all = append(all, need{p, m.This})
		}
	case *types.RelocateVM_Task:
		p := "Resource.ColdMigrate"
		if vm, ok := s.reg().Get(m.This).(*simulator.VirtualMachine); ok && vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn {
			p = "Resource.HotMigrate"
		}
		all = append(all, need{p, m.This})
	case *types.MoveIntoFolder_Task:
		for _, r := range b.List {
			if r.Type == "VirtualMachine" {
				all = append(all, need{"VirtualMachine.Inventory.Move", r})
			}
		}
	case *types.RemoveSnapshot_Task:
		all = append(all, s.onSnapshot(m.This, "VirtualMachine.State.RemoveSnapshot")...)
	case *types.RevertToSnapshot_Task:
		all = append(all, s.onSnapshot(m.This, "VirtualMachine.State.RevertToSnapshot")...)
	case *types.SetEntityPermissions:
		all = append(all, need{"Authorization.ModifyPermissions", b.Entity})
	case *types.ResetEntityPermissions:
		all = append(all, need{"Authorization.ModifyPermissions", b.Entity})
	case *types.RemoveEntityPermission:
		all = append(all, need{"Authorization.ModifyPermissions", b.Entity})
	case *types.CreateDisk_Task:
		all = append(all, need{files, b.Spec.BackingSpec.GetVslmCreateSpecBackingSpec().Datastore})
	case *types.ExtendDisk_Task:
		all = append(all, need{files, b.Datastore})
	case *types.DeleteVStorageObject_Task:
		all = append(all, need{files, b.Datastore})
	default:
		all = append(all, s.cnsNeeds(m)...)
	}
	return all
}

func (s *Sim) onSnapshot(snapshot ref, privilege string) []need {
	if o, ok := s.reg().Get(snapshot).(*simulator.VirtualMachineSnapshot); ok {
		return []need{{privilege, o.Vm}}
	}
	return nil
}

// cnsNeeds: every CNS call needs Cns.Searchable on the root; a call that writes a volume needs file management on its
// datastore, and one that attaches it needs privileges on the VM.
func (s *Sim) cnsNeeds(m *simulator.Method) (all []need) {
	const files, searchable = "Datastore.FileManagement", "Cns.Searchable"
	var volumes []cnstypes.CnsVolumeId
	switch b := m.Body.(type) {
	case *cnstypes.CnsCreateVolume:
		all = append(all, need{searchable, m.This})
		for _, spec := range b.CreateSpecs {
			for _, ds := range spec.Datastores {
				all = append(all, need{files, ds})
			}
		}
		return all
	case *cnstypes.CnsAttachVolume:
		all = append(all, need{searchable, m.This})
		for _, spec := range b.AttachSpecs {
			all = append(all, need{"VirtualMachine.Config.AddExistingDisk", spec.Vm}, need{"VirtualMachine.Config.AddRemoveDevice", spec.Vm})
		}
		return all
	case *cnstypes.CnsDetachVolume:
		all = append(all, need{searchable, m.This})
		for _, spec := range b.DetachSpecs {
			all = append(all, need{"VirtualMachine.Config.AddRemoveDevice", spec.Vm})
		}
		return all
	case *cnstypes.CnsDeleteVolume:
		volumes = b.VolumeIds
	case *cnstypes.CnsExtendVolume:
		for _, spec := range b.ExtendSpecs {
			volumes = append(volumes, spec.VolumeId)
		}
	case *cnstypes.CnsReconfigVolumePolicy:
		for _, spec := range b.VolumePolicyReconfigSpecs {
			volumes = append(volumes, spec.VolumeId)
		}
	case *cnstypes.CnsCreateSnapshots:
		for _, spec := range b.SnapshotSpecs {
			volumes = append(volumes, spec.VolumeId)
		}
	case *cnstypes.CnsDeleteSnapshots:
		for _, spec := range b.SnapshotDeleteSpecs {
			volumes = append(volumes, spec.VolumeId)
		}
	default:
		return nil
	}
	all = append(all, need{searchable, m.This})
	s.catalog(func(catalog diskCatalog) {
		for _, v := range volumes {
			for ds, objects := range catalog {
				if _, here := objects[types.ID{Id: v.Id}]; here {
					all = append(all, need{files, ds})
				}
			}
		}
	})
	return all
}

// reconfigureNeeds are the privileges for a reconfiguration of a VM by this spec.
func reconfigureNeeds(spec *types.VirtualMachineConfigSpec) (p []string) {
	const config = "VirtualMachine.Config."
	add := func(name string) { p = append(p, config+name) }
	for _, change := range spec.DeviceChange {
		add(deviceNeed(change.GetVirtualDeviceConfigSpec()))
	}
	var rest types.VirtualMachineConfigSpec
	rest = *spec
	for _, part := range []struct {
		name string
		set  any
	}{
		{"AdvancedConfig", spec.ExtraConfig}, {"Rename", spec.Name}, {"Annotation", spec.Annotation},
		{"CPUCount", spec.NumCPUs}, {"Memory", spec.MemoryMB}, {"ChangeTracking", spec.ChangeTrackingEnabled},
		{"Resource", spec.CpuAllocation}, {"Resource", spec.MemoryAllocation}, {"UpgradeVirtualHardware", spec.Version},
		{"ManagedBy", spec.ManagedBy}, {"SwapPlacement", spec.SwapPlacement},
	} {
		if !reflect.ValueOf(&part.set).Elem().Elem().IsZero() {
			add(part.name)
		}
	}
	rest.DeviceChange, rest.ExtraConfig, rest.Name, rest.Annotation, rest.NumCPUs, rest.MemoryMB = nil, nil, "", "", 0, 0
	rest.ChangeTrackingEnabled, rest.CpuAllocation, rest.MemoryAllocation, rest.Version, rest.ManagedBy, rest.SwapPlacement = nil, nil, nil, "", nil, ""
	rest.ChangeVersion = ""
	if !reflect.ValueOf(rest).IsZero() { // flags, uuids, guest, boot, tools, power and all the rest
		add("Settings")
	}
	return p
}

func deviceNeed(change *types.VirtualDeviceConfigSpec) string {
	_, disk := change.Device.(*types.VirtualDisk)
	switch {
	case change.Operation == types.VirtualDeviceConfigSpecOperationEdit && disk:
		return "DiskExtend"
	case change.Operation == types.VirtualDeviceConfigSpecOperationEdit:
		return "EditDevice"
	case !disk:
		return "AddRemoveDevice"
	case change.Operation == types.VirtualDeviceConfigSpecOperationRemove:
		return "RemoveDisk"
	case change.FileOperation == types.VirtualDeviceConfigSpecFileOperationCreate:
		return "AddNewDisk"
	}
	return "AddExistingDisk"
}

// prepare adapts a call for govmomi, after the privileges were checked.
func (s *Sim) prepare(m *simulator.Method) {
	b, ok := m.Body.(*types.ReconfigVM_Task)
	if !ok {
		return
	}
	vm, ok := s.reg().Get(m.This).(*simulator.VirtualMachine)
	if !ok {
		return
	}
	// The flag and the key of the extra configuration are the same setting.
	for _, o := range b.Spec.ExtraConfig {
		v := o.GetOptionValue()
		if text, ok := v.Value.(string); ok && strings.EqualFold(v.Key, diskUUIDKey) {
			if b.Spec.Flags == nil {
				flags := vm.Config.Flags
				b.Spec.Flags = &flags
			}
			b.Spec.Flags.DiskUuidEnabled = types.NewBool(strings.EqualFold(text, "true"))
			return
		}
	}
	if b.Spec.Flags != nil {
		merged := vm.Config.Flags // govmomi replaces all flags; vCenter changes those given
		mergeSet(&merged, b.Spec.Flags)
		b.Spec.Flags = &merged
		if on := merged.DiskUuidEnabled; on != nil {
			key := diskUUIDKey
			for _, o := range vm.Config.ExtraConfig {
				if strings.EqualFold(o.GetOptionValue().Key, key) {
					key = o.GetOptionValue().Key
				}
			}
			value := "FALSE"
			if *on {
				value = "TRUE"
			}
			b.Spec.ExtraConfig = append(b.Spec.ExtraConfig, &types.OptionValue{Key: key, Value: value})
		}
	}
}

// mergeSet overwrites every field of into that from has set.
func mergeSet[T any](into, from *T) {
	dst, src := reflect.ValueOf(into).Elem(), reflect.ValueOf(from).Elem()
	for i := range src.NumField() {
		if !src.Field(i).IsZero() {
			dst.Field(i).Set(src.Field(i))
		}
	}
}
