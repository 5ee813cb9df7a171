package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type settings struct {
	Address   string  `json:"address"`
	Topic     string  `json:"topic"`
	Group     string  `json:"group"`
	Assignor  string  `json:"assignor"`
	SessionMs int     `json:"session_ms"`
	Instance  *string `json:"instance"`
	Protocol  string  `json:"protocol"`
}

// The assignors of the consumer protocol are the broker's: franz-go names uniform by its sticky balancer.
var balancers = map[string]kgo.GroupBalancer{
	"range":              kgo.RangeBalancer(),
	"roundrobin":         kgo.RoundRobinBalancer(),
	"sticky":             kgo.StickyBalancer(),
	"cooperative-sticky": kgo.CooperativeStickyBalancer(),
	"uniform":            kgo.StickyBalancer(),
}

func event(name string, facts map[string]any) {
	facts["event"], facts["at"] = name, float64(time.Now().UnixNano())/1e9
	tell(facts)
}

// options of a consumer whose rebalances wait while records are handled.
func options(wanted settings) ([]kgo.Opt, error) {
	balancer, known := balancers[wanted.Assignor]
	if !known {
		return nil, fmt.Errorf("no assignor %q", wanted.Assignor)
	}
	session := time.Duration(wanted.SessionMs) * time.Millisecond
	chosen := []kgo.Opt{
		kgo.SeedBrokers(wanted.Address),
		kgo.ConsumerGroup(wanted.Group),
		kgo.ConsumeTopics(wanted.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(balancer),
		kgo.SessionTimeout(session),
		kgo.HeartbeatInterval(session / 10),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.FetchMaxWait(100 * time.Millisecond),
	}
	if wanted.Instance != nil {
		chosen = append(chosen, kgo.InstanceID(*wanted.Instance))
	}
	if wanted.Protocol == "consumer" {
		chosen = append(chosen, kgo.ServerSideBalancer())
	}
	return chosen, nil
}

// member consumes until SIGTERM, then leaves the group; it commits a batch before it asks for the next.
func member(text string) error {
	var wanted settings
	if err := json.Unmarshal([]byte(text), &wanted); err != nil {
		return err
	}
	chosen, err := options(wanted)
	if err != nil {
		return err
	}
	assigned := map[int32]bool{}
	told := func() {
		partitions := []int32{}
		for partition := range assigned {
			partitions = append(partitions, partition)
		}
		slices.Sort(partitions)
		event("assigned", map[string]any{"partitions": partitions})
	}
	gone := func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
		for _, partition := range parts[wanted.Topic] {
			delete(assigned, partition)
		}
		if len(parts[wanted.Topic]) > 0 {
			told()
		}
	}
	come := func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
		for _, partition := range parts[wanted.Topic] {
			assigned[partition] = true
		}
		if len(parts[wanted.Topic]) > 0 {
			told()
		}
	}
	chosen = append(chosen, kgo.OnPartitionsAssigned(come), kgo.OnPartitionsRevoked(gone), kgo.OnPartitionsLost(gone))
	client, err := kgo.NewClient(chosen...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	stopping, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for stopping.Err() == nil {
		polling, cancel := context.WithTimeout(stopping, 100*time.Millisecond)
		records := client.PollRecords(polling, 100).Records()
		cancel()
		handle(client, records)
		client.AllowRebalance()
	}
	return nil
}

func handle(client *kgo.Client, records []*kgo.Record) {
	if len(records) == 0 {
		return
	}
	offsets := map[int32][]int64{}
	for _, record := range records {
		offsets[record.Partition] = append(offsets[record.Partition], record.Offset)
	}
	for partition, each := range offsets {
		event("records", map[string]any{"partition": partition, "offsets": each})
	}
	committing, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := client.CommitRecords(committing, records...); err != nil {
		event("commit failed", map[string]any{"why": err.Error()})
		return
	}
	for partition, each := range offsets {
		event("committed", map[string]any{"partition": partition, "offset": each[len(each)-1] + 1})
	}
}
