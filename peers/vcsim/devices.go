package main

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
)

const pciController, firstSCSI, firstDisk, firstNIC = 100, 1000, 2000, 4000

func device[T any](vm *simulator.VirtualMachine) (found []T) {
	for _, d := range vm.Config.Hardware.Device {
		if t, ok := d.(T); ok {
			found = append(found, t)
		}
	}
	return found
}

// setControllers sets the SCSI controllers of a VM. It never removes one with disks.
func (s *Sim) setControllers(vm *simulator.VirtualMachine, kinds []string) {
	devices := slices.DeleteFunc(slices.Clone(vm.Config.Hardware.Device), func(d types.BaseVirtualDevice) bool {
		c, ok := d.(types.BaseVirtualSCSIController)
		return ok && len(c.GetVirtualSCSIController().Device) == 0
	})
	vm.Config.Hardware.Device = devices
	taken := map[int32]bool{}
	for _, c := range device[types.BaseVirtualSCSIController](vm) {
		taken[c.GetVirtualSCSIController().BusNumber] = true
	}
	for bus, kind := range kinds {
		if taken[int32(bus)] {
			continue
		}
		vm.Config.Hardware.Device = append(vm.Config.Hardware.Device, newController(kind, int32(bus)))
	}
}

func newController(kind string, bus int32) types.BaseVirtualDevice {
	base := types.VirtualSCSIController{SharedBus: types.VirtualSCSISharingNoSharing, ScsiCtlrUnitNumber: reservedUnit,
		HotAddRemove: types.NewBool(true)}
	base.Key, base.ControllerKey, base.UnitNumber = firstSCSI+bus, pciController, types.NewInt32(3+bus)
	base.BusNumber = bus
	base.DeviceInfo = &types.Description{Label: fmt.Sprintf("SCSI controller %d", bus), Summary: kind}
	switch kind {
	case "lsilogic":
		return &types.VirtualLsiLogicController{VirtualSCSIController: base}
	case "lsilogic-sas":
		return &types.VirtualLsiLogicSASController{VirtualSCSIController: base}
	case "buslogic":
		return &types.VirtualBusLogicController{VirtualSCSIController: base}
	}
	return &types.ParaVirtualSCSIController{VirtualSCSIController: base}
}

func controllerKinds(vm *simulator.VirtualMachine) (kinds []string) {
	for _, d := range vm.Config.Hardware.Device {
		switch d.(type) {
		case *types.ParaVirtualSCSIController:
			kinds = append(kinds, "pvscsi")
		case *types.VirtualLsiLogicController:
			kinds = append(kinds, "lsilogic")
		case *types.VirtualLsiLogicSASController:
			kinds = append(kinds, "lsilogic-sas")
		case *types.VirtualBusLogicController:
			kinds = append(kinds, "buslogic")
		}
	}
	return kinds
}

// addSystemDisk adds the boot disk of a VM, on its first SCSI controller, else on IDE.
func (s *Sim) addSystemDisk(vm *simulator.VirtualMachine, ds *simulator.Datastore, dir string) {
	disk := &types.VirtualDisk{CapacityInKB: 20 << 20, CapacityInBytes: 20 * gib}
	disk.Key, disk.UnitNumber = firstDisk, types.NewInt32(0)
	disk.DeviceInfo = &types.Description{Label: "Hard disk 1", Summary: "20,971,520 KB"}
	backing := &types.VirtualDiskFlatVer2BackingInfo{DiskMode: string(types.VirtualDiskModePersistent),
		ThinProvisioned: types.NewBool(true), Uuid: diskUUID(ds.Summary.Url + dir)}
	backing.FileName, backing.Datastore = dir+"/disk.vmdk", &ds.Self
	disk.Backing = backing
	disk.ControllerKey = 200
	if c := device[types.BaseVirtualSCSIController](vm); len(c) > 0 {
		base := c[0].GetVirtualSCSIController()
		disk.ControllerKey, base.Device = base.Key, append(base.Device, disk.Key)
	}
	vm.Config.Hardware.Device = append(vm.Config.Hardware.Device, disk)
	vm.Summary.Config.NumVirtualDisks = 1
}

// extraDisks are the disks that are neither the boot disk nor a volume.
func extraDisks(vm *simulator.VirtualMachine) (found []*types.VirtualDisk) {
	for _, d := range device[*types.VirtualDisk](vm) {
		if d.VDiskId == nil && d.Key != firstDisk {
			found = append(found, d)
		}
	}
	return found
}

// setExtraDisks adds or removes such disks, as an administrator does by hand.
func (s *Sim) setExtraDisks(vm *simulator.VirtualMachine, n int) error {
	for _, d := range extraDisks(vm) {
		if n--; n < 0 {
			removeDisk(vm, d.Key)
		}
	}
	for range max(n, 0) {
		controller, unit := s.freeUnit(vm)
		if controller == nil {
			return fmt.Errorf("extraDisks: the VM %s has no free slot", vm.Name)
		}
		disk := &types.VirtualDisk{CapacityInKB: 1 << 20, CapacityInBytes: gib}
		disk.Key, disk.ControllerKey, disk.UnitNumber = freeKey(vm, firstDisk), controller.Key, &unit
		disk.DeviceInfo = &types.Description{Label: fmt.Sprintf("Hard disk %d", disk.Key-firstDisk+1), Summary: "1,048,576 KB"}
		backing := &types.VirtualDiskFlatVer2BackingInfo{DiskMode: string(types.VirtualDiskModePersistent), Uuid: diskUUID(newToken())}
		backing.FileName = fmt.Sprintf("%s/extra-%d.vmdk", vm.Name, disk.Key)
		if len(vm.Datastore) > 0 {
			backing.Datastore = &vm.Datastore[0]
		}
		disk.Backing = backing
		addDevice(vm, controller, disk)
	}
	return nil
}

// addDevice adds a disk on a controller.
func addDevice(vm *simulator.VirtualMachine, controller *types.VirtualSCSIController, disk *types.VirtualDisk) {
	controller.Device = append(slices.Clone(controller.Device), disk.Key)
	vm.Config.Hardware.Device = append(slices.Clone(vm.Config.Hardware.Device), disk)
	vm.Summary.Config.NumVirtualDisks++
}

// removeDisk removes a disk and its place on the controller.
func removeDisk(vm *simulator.VirtualMachine, key int32) {
	vm.Config.Hardware.Device = slices.DeleteFunc(slices.Clone(vm.Config.Hardware.Device), func(d types.BaseVirtualDevice) bool {
		return d.GetVirtualDevice().Key == key
	})
	for _, d := range device[types.BaseVirtualController](vm) {
		base := d.GetVirtualController()
		base.Device = slices.DeleteFunc(slices.Clone(base.Device), func(k int32) bool { return k == key })
	}
	vm.Summary.Config.NumVirtualDisks--
}

// setNICs replaces the VM's network cards.
func (s *Sim) setNICs(vm *simulator.VirtualMachine, p *places, nics []NIC) {
	devices := slices.DeleteFunc(slices.Clone(vm.Config.Hardware.Device), func(d types.BaseVirtualDevice) bool {
		_, is := d.(types.BaseVirtualEthernetCard)
		return is
	})
	vm.Network = nil
	for i, nic := range nics {
		network := p.nets[nic.Network]
		card := &types.VirtualVmxnet3{}
		card.Key, card.ControllerKey, card.UnitNumber = firstNIC+int32(i), pciController, types.NewInt32(int32(7+i))
		card.DeviceInfo = &types.Description{Label: fmt.Sprintf("Network adapter %d", i+1), Summary: nic.Network}
		card.AddressType, card.MacAddress = string(types.VirtualEthernetCardMacTypeManual), nic.MAC
		card.Backing = &types.VirtualEthernetCardNetworkBackingInfo{Network: &network,
			VirtualDeviceDeviceBackingInfo: types.VirtualDeviceDeviceBackingInfo{DeviceName: nic.Network}}
		card.Connectable = &types.VirtualDeviceConnectInfo{Connected: *nic.Connected, StartConnected: *nic.Connected, AllowGuestControl: true, Status: "ok"}
		devices = append(devices, card)
		setMember(&vm.Network, network, true)
	}
	vm.Config.Hardware.Device = devices
	vm.Summary.Config.NumEthernetCards = int32(len(nics))
}

// guests has the reports of the tools of each VM, also while it is off.
type guests struct {
	sync.Mutex
	known map[ref]VM
}

func (g *guests) put(r ref, v VM) {
	g.Lock()
	defer g.Unlock()
	g.known[r] = v
}

func (g *guests) get(r ref) (VM, bool) {
	g.Lock()
	defer g.Unlock()
	v, ok := g.known[r]
	return v, ok
}

func (g *guests) drop(r ref) {
	g.Lock()
	defer g.Unlock()
	delete(g.known, r)
}

// setGuest writes the report of VMware Tools: everything while they run, otherwise only their state.
func (s *Sim) setGuest(vm *simulator.VirtualMachine, v VM) {
	on := vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn
	g := &types.GuestInfo{ToolsVersion: "12389", GuestState: string(types.VirtualMachineGuestStateNotRunning),
		ToolsStatus: types.VirtualMachineToolsStatusToolsNotRunning, ToolsVersionStatus: "guestToolsUnmanaged",
		ToolsVersionStatus2: "guestToolsUnmanaged", ToolsRunningStatus: string(types.VirtualMachineToolsRunningStatusGuestToolsNotRunning),
		GuestOperationsReady: types.NewBool(false), InteractiveGuestOperationsReady: types.NewBool(false)}
	switch {
	case v.Tools == "notInstalled":
		g.ToolsVersion, g.ToolsStatus = "0", types.VirtualMachineToolsStatusToolsNotInstalled
		g.ToolsVersionStatus, g.ToolsVersionStatus2 = "guestToolsNotInstalled", "guestToolsNotInstalled"
	case on && v.Tools == "running":
		g.ToolsStatus, g.ToolsRunningStatus = types.VirtualMachineToolsStatusToolsOk, string(types.VirtualMachineToolsRunningStatusGuestToolsRunning)
		g.GuestState, g.GuestOperationsReady = string(types.VirtualMachineGuestStateRunning), types.NewBool(true)
		g.GuestId, g.GuestFullName, g.GuestFamily = v.GuestID, guestName(v.GuestID), "linuxGuest"
		if strings.HasPrefix(v.GuestID, "windows") {
			g.GuestFamily = "windowsGuest"
		}
		g.HostName = *v.HostName
		g.Net, g.IpAddress = guestNetwork(v)
	}
	vm.Guest = g
	vm.Summary.Guest = &types.VirtualMachineGuestSummary{GuestId: g.GuestId, GuestFullName: g.GuestFullName, ToolsStatus: g.ToolsStatus,
		ToolsVersionStatus: g.ToolsVersionStatus, ToolsVersionStatus2: g.ToolsVersionStatus2, ToolsRunningStatus: g.ToolsRunningStatus,
		HostName: g.HostName, IpAddress: g.IpAddress}
}

// guestNetwork returns the guest's cards and its primary address: the first IPv4 address, else the first.
func guestNetwork(v VM) (cards []types.GuestNicInfo, primary string) {
	for i, nic := range *v.NICs {
		info := types.GuestNicInfo{Network: nic.Network, MacAddress: nic.MAC, Connected: *nic.Connected,
			DeviceConfigId: firstNIC + int32(i), IpConfig: &types.NetIpConfigInfo{}}
		for _, a := range nic.Addresses {
			ip, prefix, err := net.ParseCIDR(a)
			if err != nil {
				continue
			}
			length, _ := prefix.Mask.Size()
			info.IpAddress = append(info.IpAddress, ip.String())
			info.IpConfig.IpAddress = append(info.IpConfig.IpAddress, types.NetIpConfigInfoIpAddress{
				IpAddress: ip.String(), PrefixLength: int32(length), State: string(types.NetIpConfigInfoIpAddressStatusPreferred)})
			if *nic.Connected && (primary == "" || (ip.To4() != nil && strings.Contains(primary, ":"))) {
				primary = ip.String()
			}
		}
		cards = append(cards, info)
	}
	return cards, primary
}
