package main

import (
	"reflect"
	"time"
)

var timeType = reflect.TypeFor[time.Time]()

// clone makes a deep copy of a value of the vSphere types. govmomi's own deep copy goes through XML and is about fifty
// times slower.
func clone[T any](v T) T {
	out := cloneValue(reflect.ValueOf(&v).Elem())
	return out.Interface().(T)
}

// cloneAny copies the value of an interface; plain values are returned as they are.
func cloneAny(v any) any {
	if v == nil {
		return nil
	}
	rv := reflect.ValueOf(v)
	if flat(rv.Type()) {
		return v
	}
	return cloneValue(rv).Interface()
}

// flat says that a plain assignment of this type shares nothing mutable.
func flat(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map, reflect.Func, reflect.Chan:
		return false
	case reflect.Array:
		return flat(t.Elem())
	case reflect.Struct:
		if t == timeType {
			return true
		}
		for i := range t.NumField() {
			if !flat(t.Field(i).Type) {
				return false
			}
		}
	}
	return true
}

func cloneValue(v reflect.Value) reflect.Value {
	t := v.Type()
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return reflect.Zero(t)
		}
		out := reflect.New(t.Elem())
		out.Elem().Set(cloneValue(v.Elem()))
		return out
	case reflect.Interface:
		if v.IsNil() {
			return reflect.Zero(t)
		}
		out := reflect.New(t).Elem()
		out.Set(cloneValue(v.Elem()))
		return out
	case reflect.Slice:
		if v.IsNil() {
			return reflect.Zero(t)
		}
		out := reflect.MakeSlice(t, v.Len(), v.Len())
		if flat(t.Elem()) {
			reflect.Copy(out, v)
			return out
		}
		for i := range v.Len() {
			out.Index(i).Set(cloneValue(v.Index(i)))
		}
		return out
	case reflect.Map:
		if v.IsNil() {
			return reflect.Zero(t)
		}
		out := reflect.MakeMapWithSize(t, v.Len())
		for each := v.MapRange(); each.Next(); {
			out.SetMapIndex(each.Key(), cloneValue(each.Value()))
		}
		return out
	case reflect.Struct:
		out := reflect.New(t).Elem()
		out.Set(v)
		if t == timeType {
			return out
		}
		for i := range t.NumField() {
			f := t.Field(i)
			if f.IsExported() && !flat(f.Type) {
				out.Field(i).Set(cloneValue(v.Field(i)))
			}
		}
		return out
	default:
		return v
	}
}
