package main

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// change is one run of admin calls that change a cluster; answers that the caller compares are in found.
type change struct {
	client *kadm.Client
	topic  string
	found  map[string]any
}

// cluster moves partition 0 of a topic, which lies on brokers 1 and 2, and sets what can be set.
// It ends at the first call that fails.
func cluster(address, topic string) error {
	plain, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(address, ",")...))
	if err != nil {
		return err
	}
	defer plain.Close()
	run := &change{kadm.NewClient(plain), topic, map[string]any{}}
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	for _, step := range []func(context.Context) error{
		run.setBroker, run.setTopic, run.reassign, run.elect, run.lookAtDirectories,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	tell(run.found)
	return nil
}

func (run *change) partition() kadm.TopicsSet {
	only := kadm.TopicsSet{}
	only.Add(run.topic, 0)
	return only
}

// altered is what went wrong with any of the resources.
func altered(answers kadm.AlterConfigsResponses, err error) error {
	for _, answer := range answers {
		if err == nil && answer.Err != nil {
			err = fmt.Errorf("%w: %s", answer.Err, answer.ErrMessage)
		}
	}
	return err
}

func (run *change) setBroker(ctx context.Context) error {
	for _, value := range []string{"2", "9"} {
		err := altered(run.client.AlterBrokerConfigs(
			ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "num.replica.fetchers", Value: &value}}, 2))
		run.found["fetchers "+value] = message(err)
	}
	described, err := run.client.DescribeBrokerConfigs(ctx, 2)
	if err != nil {
		return fmt.Errorf("describe broker: %w", err)
	}
	for _, config := range described[0].Configs {
		if config.Key == "num.replica.fetchers" {
			run.found["fetchers"] = config.MaybeValue()
		}
	}
	return altered(run.client.AlterBrokerConfigs(
		ctx, []kadm.AlterConfig{{Op: kadm.DeleteConfig, Name: "num.replica.fetchers"}}, 2))
}

func (run *change) setTopic(ctx context.Context) error {
	for _, value := range []string{"0:1,0:2", "0-1"} {
		err := altered(run.client.AlterTopicConfigs(
			ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "leader.replication.throttled.replicas", Value: &value}},
			run.topic))
		run.found["throttled "+value] = message(err)
	}
	return nil
}

func (run *change) reassign(ctx context.Context) error {
	for _, replicas := range [][]int32{{3, 2}, {2, 3}} {
		request := kadm.AlterPartitionAssignmentsReq{}
		request.Assign(run.topic, 0, replicas)
		answers, err := run.client.AlterPartitionAssignments(ctx, request)
		if err == nil {
			err = answers.Error()
		}
		if err != nil {
			return fmt.Errorf("reassign: %w", err)
		}
		for {
			listed, err := run.client.ListPartitionReassignments(ctx, run.partition())
			if err != nil {
				return fmt.Errorf("list reassignments: %w", err)
			}
			if _, going := listed[run.topic][0]; !going {
				break
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	run.found["replicas"], run.found["leader before"] = run.state(ctx, 3)
	return nil
}

func (run *change) elect(ctx context.Context) error {
	for _, name := range []string{"elected", "elected again"} {
		results, err := run.client.ElectLeaders(ctx, kadm.ElectPreferredReplica, run.partition())
		if err != nil {
			return fmt.Errorf("elect: %w", err)
		}
		run.found[name] = message(results[run.topic][0].Err)
	}
	_, run.found["leader"] = run.state(ctx, 2)
	return nil
}

// state is replicas and leader of the partition, when it has that leader and prefers broker 2, or time is up.
func (run *change) state(ctx context.Context, leader int32) ([]int32, int32) {
	for {
		topics, err := run.client.ListTopics(ctx, run.topic)
		partition := topics[run.topic].Partitions[0]
		if err != nil || ctx.Err() != nil || partition.Leader == leader && partition.Replicas[0] == 2 {
			return partition.Replicas, partition.Leader
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (run *change) lookAtDirectories(ctx context.Context) error {
	described, err := run.client.DescribeAllLogDirs(ctx, run.partition())
	if err != nil {
		return fmt.Errorf("log directories: %w", err)
	}
	holders := []int{}
	for broker, directories := range described {
		if _, there := directories.LookupPartition(run.topic, 0); there {
			holders = append(holders, int(broker))
		}
	}
	sort.Ints(holders)
	run.found["holders"] = holders
	return nil
}
