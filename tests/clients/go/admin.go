package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const recordsEach = 5

// session is one run of admin calls; answers that the caller compares are in found.
type session struct {
	plain        *kgo.Client
	client       *kadm.Client
	topic, group string
	found        map[string]any
}

// admin makes a topic and a group with committed offsets, looks at them, changes them and takes both away.
// It ends at the first call that fails.
func admin(address, topic, group string) error {
	plain, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer plain.Close()
	run := &session{plain, kadm.NewClient(plain), topic, group, map[string]any{}}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for _, step := range []func(context.Context) error{
		run.makeTopic, run.changeTopic, run.commitOffsets, run.lookAtGroup, run.removeGroup, run.removeTopic,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	tell(run.found)
	return nil
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (run *session) makeTopic(ctx context.Context) error {
	value := "60000"
	if _, err := run.client.CreateTopic(ctx, 1, 1, map[string]*string{"retention.ms": &value}, run.topic); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	_, repeated := run.client.CreateTopic(ctx, 1, 1, nil, run.topic)
	run.found["created again"] = message(repeated)
	grown, err := run.client.UpdatePartitions(ctx, 2, run.topic)
	if err == nil {
		err = grown.Error()
	}
	if err != nil {
		return fmt.Errorf("partitions: %w", err)
	}
	topics, err := run.client.ListTopics(ctx, run.topic)
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	run.found["partitions"] = len(topics[run.topic].Partitions)
	return topics.Error()
}

func (run *session) changeTopic(ctx context.Context) error {
	value := "70000"
	change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}
	altered, err := run.client.AlterTopicConfigs(ctx, change, run.topic)
	if err != nil {
		return fmt.Errorf("alter: %w", err)
	}
	if one, err := altered.On(run.topic, nil); err != nil || one.Err != nil {
		return fmt.Errorf("alter: %v, %v", err, one.Err)
	}
	described, err := run.client.DescribeTopicConfigs(ctx, run.topic)
	if err != nil {
		return fmt.Errorf("describe configs: %w", err)
	}
	one, err := described.On(run.topic, nil)
	for _, config := range one.Configs {
		if config.Key == "retention.ms" {
			run.found["retention.ms"] = config.MaybeValue()
		}
	}
	return err
}

func (run *session) commitOffsets(ctx context.Context) error {
	for partition := int32(0); partition < 2; partition++ {
		for number := 0; number < recordsEach; number++ {
			record := &kgo.Record{Topic: run.topic, Partition: partition, Value: []byte("value")}
			if err := run.plain.ProduceSync(ctx, record).FirstErr(); err != nil {
				return fmt.Errorf("produce: %w", err)
			}
		}
	}
	ends, err := run.client.ListEndOffsets(ctx, run.topic)
	if err != nil {
		return fmt.Errorf("end offsets: %w", err)
	}
	end, _ := ends.Lookup(run.topic, 0)
	run.found["end"] = end.Offset
	offsets := kadm.Offsets{}
	offsets.AddOffset(run.topic, 0, 3, -1)
	offsets.AddOffset(run.topic, 1, recordsEach, -1)
	committed, err := run.client.CommitOffsets(ctx, run.group, offsets)
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return committed.Error()
}

func (run *session) lookAtGroup(ctx context.Context) error {
	listed, err := run.client.ListGroups(ctx)
	if err != nil {
		return fmt.Errorf("list groups: %w", err)
	}
	run.found["listed"] = listed[run.group].State
	described, err := run.client.DescribeGroups(ctx, run.group)
	if err != nil {
		return fmt.Errorf("describe groups: %w", err)
	}
	run.found["described"] = described[run.group].State
	lags, err := run.client.Lag(ctx, run.group)
	if err != nil {
		return fmt.Errorf("lag: %w", err)
	}
	run.found["lag"] = lags[run.group].Lag.Total()
	fetched, err := run.client.FetchOffsets(ctx, run.group)
	if err != nil {
		return fmt.Errorf("fetch offsets: %w", err)
	}
	one, _ := fetched.Lookup(run.topic, 0)
	run.found["committed"] = one.At
	return one.Err
}

func (run *session) removeGroup(ctx context.Context) error {
	only := kadm.TopicsSet{}
	only.Add(run.topic, 1)
	if _, err := run.client.DeleteOffsets(ctx, run.group, only); err != nil {
		return fmt.Errorf("delete offsets: %w", err)
	}
	fetched, err := run.client.FetchOffsets(ctx, run.group)
	if err != nil {
		return fmt.Errorf("fetch offsets: %w", err)
	}
	_, there := fetched.Lookup(run.topic, 1)
	run.found["offset is there after its deletion"] = there
	if _, err := run.client.DeleteGroup(ctx, run.group); err != nil {
		return fmt.Errorf("delete group: %w", err)
	}
	_, again := run.client.DeleteGroup(ctx, run.group)
	run.found["deleted again"] = message(again)
	return nil
}

func (run *session) removeTopic(ctx context.Context) error {
	_, err := run.client.DeleteTopic(ctx, run.topic)
	return err
}
