package main

import (
	"crypto/md5"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/uuid"
)

var uuidShape = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

func isUUID(s string) bool { return uuidShape.MatchString(s) }

func digest(parts ...string) string {
	return fmt.Sprintf("%x", md5.Sum([]byte(strings.Join(parts, "\x00"))))
}

// stableUUID derives a uuid that is the same in every run.
func stableUUID(parts ...string) string {
	h := digest(parts...)
	return fmt.Sprintf("%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:])
}

func stableMAC(uuid string, n int) string {
	h := digest("mac", uuid, fmt.Sprint(n))
	return fmt.Sprintf("00:50:56:%s:%s:%s", h[0:2], h[2:4], h[4:6])
}

// diskUUID derives a disk uuid with VMware's prefix.
func diskUUID(id string) string {
	h := digest("disk", id)
	return fmt.Sprintf("6000C29%s-%s-%s-%s-%s", h[7:8], h[8:12], h[12:16], h[16:20], h[20:])
}

// sameAccount normalizes the spellings of an account: DOMAIN\user, user@domain, in any case.
func sameAccount(n string) string {
	n = strings.ToLower(n)
	if d, u, ok := strings.Cut(n, `\`); ok {
		n = u + "@" + d
	}
	return n
}

func newToken() string { return uuid.NewString() }

func compare(a, b string) int { return strings.Compare(a, b) }
