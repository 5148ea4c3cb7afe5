package main

import (
	"reflect"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// FetchBody and FetchResponse are named after their elements: the encoder takes the names from the types.
type FetchBody struct {
	Res    *FetchResponse `xml:"urn:vim25 FetchResponse,omitempty"`
	Fault_ *soap.Fault    `xml:"http://schemas.xmlsoap.org/soap/envelope/ Fault,omitempty"`
}

type FetchResponse struct {
	Returnval types.AnyType `xml:"returnval,omitempty,typeattr"`
}

func (b *FetchBody) Fault() *soap.Fault { return b.Fault_ }

// Fetch reads one property of one object: an undocumented call that pyvmomi makes for each property.
// The type of its request is private to govmomi, hence the reflection.
func (c *collector) Fetch(ctx *simulator.Context, req any) soap.HasFault {
	in := reflect.ValueOf(req).Elem()
	this, _ := in.FieldByName("This").Interface().(ref)
	name := in.FieldByName("Prop").String()
	if ctx.Session == nil || this == vim25.ServiceInstance {
		stock := reflect.ValueOf(&c.PropertyCollector).MethodByName("Fetch")
		return stock.Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(req)})[0].Interface().(soap.HasFault)
	}
	body := &FetchBody{}
	r := simOf(ctx).reader(ctx)
	if r.get(this) == nil {
		for _, e := range ctx.Map.All("") { // the type can be a base class
			if e.Reference().Value == this.Value {
				this = e.Reference()
			}
		}
	}
	switch {
	case r.get(this) == nil:
		body.Fault_ = simulator.Fault(faultText["ManagedObjectNotFound"], &types.ManagedObjectNotFound{Obj: this})
		return body
	case !r.access.sees(this):
		body.Fault_ = simulator.Fault(faultText["NoPermission"], &types.NoPermission{Object: &this, PrivilegeId: "System.View"})
		return body
	}
	body.Res = &FetchResponse{}
	if content := r.read(this, []types.PropertySpec{{Type: this.Type, PathSet: []string{name}}}); content != nil {
		switch {
		case len(content.PropSet) > 0:
			body.Res.Returnval = content.PropSet[0].Val
		case len(content.MissingSet) > 0:
			body.Res, body.Fault_ = nil, simulator.Fault(content.MissingSet[0].Fault.LocalizedMessage, content.MissingSet[0].Fault.Fault)
		}
	}
	return body
}
