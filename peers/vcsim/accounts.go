package main

import (
	"net/url"
	"slices"
	"sync"

	"github.com/vmware/govmomi/vim25/types"
)

// accounts are the users. Without any, every login works and has all privileges.
type accounts struct {
	sync.Mutex
	users  map[string]*account
	secret string
}

type account struct {
	User
	Failed int  `json:"failed"`
	Locked bool `json:"locked"`
}

const internalUser = "vcsim-internal"

func newAccounts(users []User) *accounts {
	a := &accounts{users: map[string]*account{}, secret: stableUUID("secret", newToken())}
	for _, u := range users {
		a.set(u)
	}
	return a
}

// internal is the login govmomi's own parts use to call each other.
func (a *accounts) internal() *url.Userinfo { return url.UserPassword(internalUser, a.secret) }

// restricted says whether there are users, so that privileges are checked.
func (a *accounts) restricted() bool {
	a.Lock()
	defer a.Unlock()
	return len(a.users) > 0
}

// set adds a user or replaces one; a replaced user is unlocked.
func (a *accounts) set(u User) {
	a.Lock()
	defer a.Unlock()
	a.users[sameAccount(u.Name)] = &account{User: u}
}

// login is govmomi's ValidLogin: SOAP and REST both end here.
func (a *accounts) login(l *types.Login) bool {
	a.Lock()
	defer a.Unlock()
	if l.UserName == internalUser {
		return l.Password == a.secret
	}
	if len(a.users) == 0 {
		return l.UserName != "" && l.Password != ""
	}
	u := a.users[sameAccount(l.UserName)]
	if u == nil {
		return false
	}
	if u.Locked {
		return false
	}
	if u.Password != l.Password {
		u.Failed++
		u.Locked = u.LockAfter > 0 && u.Failed >= u.LockAfter
		return false
	}
	u.Failed = 0
	return true
}

// name is the account as the inventory spells it.
func (a *accounts) name(user string) string {
	a.Lock()
	defer a.Unlock()
	if u := a.users[sameAccount(user)]; u != nil {
		return u.Name
	}
	return user
}

func (a *accounts) knows(user string) bool {
	a.Lock()
	defer a.Unlock()
	return a.users[sameAccount(user)] != nil
}

// groups are the folded names of a user's groups.
func (a *accounts) groups(user string) map[string]bool {
	a.Lock()
	defer a.Unlock()
	in := map[string]bool{}
	if u := a.users[sameAccount(user)]; u != nil {
		for _, g := range u.Groups {
			in[sameAccount(g)] = true
		}
	}
	return in
}

func (a *accounts) list() []account {
	a.Lock()
	defer a.Unlock()
	out := []account{}
	for _, u := range a.users {
		shown := *u
		shown.Password = ""
		out = append(out, shown)
	}
	slices.SortFunc(out, func(x, y account) int { return compare(x.Name, y.Name) })
	return out
}
