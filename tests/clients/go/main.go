// A consumer, and calls of an admin client, in Go (franz-go).
//
//	groupmember member SETTINGS   takes settings and tells what happens as tests/support/member.py does
//	groupmember admin ADDRESS TOPIC GROUP   makes one call of each kind and tells the answers as one JSON object
//	groupmember cluster ADDRESS TOPIC   does so with calls that change a cluster
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "member":
		err = member(os.Args[2])
	case len(os.Args) == 5 && os.Args[1] == "admin":
		err = admin(os.Args[2], os.Args[3], os.Args[4])
	case len(os.Args) == 4 && os.Args[1] == "cluster":
		err = cluster(os.Args[2], os.Args[3])
	default:
		err = fmt.Errorf("usage: groupmember member SETTINGS | admin ADDRESS TOPIC GROUP | cluster ADDRESS TOPIC")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// tell writes one JSON object as a line of its own.
func tell(facts map[string]any) {
	line, err := json.Marshal(facts)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}
