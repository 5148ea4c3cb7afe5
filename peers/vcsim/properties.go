package main

import (
	"errors"
	"path"
	"reflect"
	"strings"
	"unicode"

	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

var errNoProperty = errors.New("no such property")

// managed is the managed object inside an object of the registry: govmomi and we wrap the types of package mo, always as
// the first field.
func managed(o mo.Reference) reflect.Value {
	if g, ok := o.(interface{ Get() mo.Reference }); ok {
		o = g.Get()
	}
	v := reflect.ValueOf(o).Elem()
	for path.Base(v.Type().PkgPath()) != "mo" {
		if v.Kind() != reflect.Struct || v.NumField() == 0 {
			return reflect.Value{}
		}
		v = v.Field(0)
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
	}
	return v
}

// isKind says whether an object is of the type a property spec names, or of a type derived from it.
func isKind(v reflect.Value, r ref, kind string) bool {
	if kind == r.Type || kind == v.Type().Name() {
		return true
	}
	f, ok := v.Type().FieldByName(kind)
	return ok && f.Anonymous
}

func fieldNamed(v reflect.Value, name string) (reflect.Value, bool) {
	if v.Kind() != reflect.Struct || name == "" {
		return reflect.Value{}, false
	}
	f := v.FieldByName(string(unicode.ToUpper(rune(name[0]))) + name[1:])
	return f, f.IsValid()
}

// behind follows pointers and interfaces; false if one is nil.
func behind(v reflect.Value) (reflect.Value, bool) {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.IsNil() {
			return v, false
		}
		v = v.Elem()
	}
	return v, true
}

// property reads a path like "config.hardware.device" or "config.extraConfig[\"k\"].value" in the form for a client: nil if
// unset, arrays in their array type, and a deep copy.
func property(obj reflect.Value, name string) (any, error) {
	var p mo.Field
	if !p.FromString(name) {
		return nil, errNoProperty
	}
	v := obj
	for _, part := range strings.Split(p.Path, ".") {
		inside, ok := behind(v)
		if !ok {
			return nil, checkUnset(v.Type(), part)
		}
		if v, ok = fieldNamed(inside, part); !ok {
			return nil, errNoProperty
		}
	}
	if p.Key != nil {
		return keyed(v, p)
	}
	return shown(v), nil
}

// checkUnset allows a path below a nil pointer if its type has the field; nothing is known about a nil interface.
func checkUnset(t reflect.Type, part string) error {
	if t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct {
		if _, ok := fieldNamed(reflect.Zero(t.Elem()), part); !ok {
			return errNoProperty
		}
	}
	return nil
}

// keyed is the element of an array with the given key, or one property of it.
func keyed(list reflect.Value, p mo.Field) (any, error) {
	if list.Kind() != reflect.Slice {
		return nil, errNoProperty
	}
	for i := range list.Len() {
		item, ok := behind(list.Index(i))
		if !ok {
			continue
		}
		key, ok := fieldNamed(item, "key")
		if !ok {
			return nil, errNoProperty
		}
		if !reflect.DeepEqual(key.Interface(), p.Key) {
			continue
		}
		if p.Item != "" {
			return property(item, p.Item)
		}
		return cloneAny(list.Index(i).Interface()), nil
	}
	return nil, nil
}

// shown is the wire form of a value.
func shown(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	case reflect.Interface:
		if v.IsNil() {
			return nil
		}
	case reflect.String:
		if v.Len() == 0 {
			return nil
		}
	case reflect.Slice:
		return array(cloneValue(v))
	}
	return cloneAny(v.Interface())
}

// array wraps a slice in the array type of its elements.
func array(v reflect.Value) any {
	kind := ""
	switch v.Interface().(type) {
	case []string:
		kind = "String"
	case []uint8, types.ByteSlice:
		kind = "Byte"
	case []int16:
		kind = "Short"
	case []int32:
		kind = "Int"
	case []int64:
		kind = "Long"
	default:
		kind = strings.TrimPrefix(v.Type().Elem().Name(), "Base")
	}
	t, ok := typeFunc("ArrayOf" + kind)
	if !ok {
		return v.Interface()
	}
	out := reflect.New(t)
	f := out.Elem().FieldByName(kind)
	f.Set(v.Convert(f.Type()))
	return out.Interface()
}

// allProperties lists the names of every top level property of an object.
func allProperties(v reflect.Value) (names []string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		switch {
		case f.Anonymous && f.Type.Kind() == reflect.Struct:
			names = append(names, allProperties(v.Field(i))...)
		case f.Name != "Self" && f.IsExported():
			names = append(names, string(unicode.ToLower(rune(f.Name[0])))+f.Name[1:])
		}
	}
	return names
}

// references are the objects that a property refers to.
func references(value any) []ref {
	switch v := value.(type) {
	case ref:
		return []ref{v}
	case *ref:
		return []ref{*v}
	case *types.ArrayOfManagedObjectReference:
		return v.ManagedObjectReference
	}
	return nil
}
