// Command interop does the scenarios that clients in all languages do, and prints a line for each.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	tieline "tieline.dev/client/go"
)

type targets struct{ Address, Keyed, Key, Cut, Newer, Drains string }

type list struct {
	Tool struct {
		Name, Description, Output string
		Parameters                json.RawMessage
	}
	Scenarios []scenario
}

type scenario struct {
	Name, Input, Then, Text, First, Key, Status, Code, Reason string
	Arguments                                                 json.RawMessage
	Lanes, Texts                                              map[string]string
	Refused                                                   []struct{ Model, Input, Code, Param string }
	Services                                                  []string
	Milliseconds, Seconds, Bytes, Limit                       int
}

type result struct {
	Scenario string `json:"scenario"`
	OK       *bool  `json:"ok"`
	Why      string `json:"why,omitempty"`
}

// run is one scenario with what it needs.
type run struct {
	scenario
	list    list
	targets targets
}

func main() {
	var list list
	var targets targets
	read(os.Args[1], &list)
	read(os.Args[2], &targets)
	var printing sync.Mutex
	var running sync.WaitGroup
	for _, scenario := range list.Scenarios {
		if len(os.Args) > 3 && os.Args[3] != scenario.Name {
			continue
		}
		running.Go(func() {
			line := bounded(run{scenario, list, targets})
			printing.Lock()
			defer printing.Unlock()
			if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
				log.Fatal(err)
			}
		})
	}
	running.Wait()
}

func read(path string, into any) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// bounded does a scenario; one that hangs in spite of its context is told as such.
func bounded(r run) result {
	do, ok := scenarios[r.Name]
	if !ok {
		return result{r.Name, nil, "this runner does not know it"}
	}
	// A busy machine takes its time; this only bounds a hang.
	const limit = 3 * time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), limit-2*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- do(ctx, r) }()
	select {
	case err := <-done:
		good := err == nil
		if good {
			return result{r.Name, &good, ""}
		}
		return result{r.Name, &good, err.Error()}
	case <-time.After(limit):
		return result{r.Name, new(bool), "hangs"}
	}
}

// connected does something on a connection of its own.
func connected(ctx context.Context, address string, options tieline.Options, do func(*tieline.Connection) error) error {
	return dialled(address, options, func(client *tieline.Client) error {
		connection, err := client.Connect(ctx)
		if err != nil {
			return err
		}
		defer connection.Close()
		return do(connection)
	})
}

func dialled(address string, options tieline.Options, do func(*tieline.Client) error) error {
	client, err := tieline.Dial(address, options)
	if err != nil {
		return err
	}
	defer client.Close()
	return do(client)
}

// same is an error unless both are equal.
func same[T comparable](what string, got, expected T) error {
	if got == expected {
		return nil
	}
	return fmt.Errorf("%s is %.200s, not %.200s", what, fmt.Sprint(got), fmt.Sprint(expected))
}
