// Command lua-check runs a health check of Argo CD on an object, with the Lua interpreter of Argo CD and the libraries
// that Argo CD opens for such checks. It reads the object as JSON from standard input and prints `status message`.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	lua "github.com/yuin/gopher-lua"
)

func main() {
	if len(os.Args) != 2 {
		fail("usage: lua-check SCRIPT < OBJECT.json")
	}
	var object any
	if err := json.NewDecoder(os.Stdin).Decode(&object); err != nil {
		fail(err)
	}
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{{lua.LoadLibName, lua.OpenPackage}, {lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}} {
		state.Push(state.NewFunction(library.open))
		state.Push(lua.LString(library.name))
		state.Call(1, 0)
	}
	state.SetGlobal("obj", value(state, object))
	if err := state.DoFile(os.Args[1]); err != nil {
		fail(err)
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		fail("the script returns no table")
	}
	fmt.Println(table.RawGetString("status").String(), table.RawGetString("message").String())
}

// value converts JSON as Argo CD does.
func value(state *lua.LState, from any) lua.LValue {
	switch from := from.(type) {
	case bool:
		return lua.LBool(from)
	case float64:
		return lua.LNumber(from)
	case string:
		return lua.LString(from)
	case []any:
		table := state.CreateTable(len(from), 0)
		for _, item := range from {
			table.Append(value(state, item))
		}
		return table
	case map[string]any:
		table := state.CreateTable(0, len(from))
		for key, item := range from {
			table.RawSetH(lua.LString(key), value(state, item))
		}
		return table
	}
	return lua.LNil
}

func fail(why any) {
	fmt.Fprintln(os.Stderr, "lua-check:", why)
	os.Exit(1)
}
