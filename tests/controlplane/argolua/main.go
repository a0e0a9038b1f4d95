// Argolua runs Lua over objects as Argo CD does: the same interpreter, the same few libraries, the same second of time.
//
// It reads {"script": TEXT, "obj": OBJECT}, one after another, and answers each with a line: {"value": ANSWER} or
// {"error": TEXT}.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	lua "github.com/yuin/gopher-lua"
	luajson "layeh.com/gopher-json"
)

const patience = time.Second

type request struct {
	Script string         `json:"script"`
	Obj    map[string]any `json:"obj"`
}

type answer struct {
	Value json.RawMessage `json:"value,omitempty"`
	Error string          `json:"error,omitempty"`
}

func main() {
	out := json.NewEncoder(os.Stdout)
	decoder := json.NewDecoder(os.Stdin)
	for decoder.More() {
		var asked request
		if err := decoder.Decode(&asked); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		value, err := run(asked)
		told := answer{Value: value}
		if err != nil {
			told = answer{Error: err.Error()}
		}
		if err := out.Encode(told); err != nil {
			os.Exit(1)
		}
	}
}

// run gives what the script returns. Argo CD opens no library of strings or numbers to scripts of its settings.
func run(asked request) (json.RawMessage, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	open(state, lua.LoadLibName, lua.OpenPackage)
	open(state, lua.BaseLibName, lua.OpenBase)
	open(state, lua.TabLibName, lua.OpenTable)
	openClock(state)
	limited, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	state.SetContext(limited)
	state.SetGlobal("obj", valueOf(state, asked.Obj))
	if err := state.DoString(asked.Script); err != nil {
		return nil, err
	}
	returned := state.Get(-1)
	if returned.Type() != lua.LTTable {
		return nil, fmt.Errorf("the script returns a %s in place of a table", returned.Type())
	}
	return luajson.Encode(returned)
}

func open(state *lua.LState, name string, library lua.LGFunction) {
	if err := state.CallByParam(lua.P{Fn: state.NewFunction(library), Protect: true}, lua.LString(name)); err != nil {
		panic(err)
	}
}

// openClock gives what scripts may have of the library os, as Argo CD does: by require alone, time and date.
func openClock(state *lua.LState) {
	open(state, lua.OsLibName, lua.OpenOs)
	whole, safe := state.GetGlobal(lua.OsLibName).(*lua.LTable), state.NewTable()
	for _, name := range []string{"date", "time"} {
		state.SetField(safe, name, whole.RawGetString(name))
	}
	state.SetGlobal(lua.OsLibName, lua.LNil)
	loaded := state.GetField(state.Get(lua.RegistryIndex), "_LOADED")
	state.SetField(loaded, lua.OsLibName, safe)
}

// valueOf gives JSON to Lua. A null in a list ends it for `#`, in an object it is not there: as in Argo CD.
func valueOf(state *lua.LState, value any) lua.LValue {
	switch known := value.(type) {
	case bool:
		return lua.LBool(known)
	case float64:
		return lua.LNumber(known)
	case string:
		return lua.LString(known)
	case []any:
		table := state.CreateTable(len(known), 0)
		for _, item := range known {
			table.Append(valueOf(state, item))
		}
		return table
	case map[string]any:
		table := state.CreateTable(0, len(known))
		for name, item := range known {
			table.RawSetH(lua.LString(name), valueOf(state, item))
		}
		return table
	default:
		return lua.LNil
	}
}
