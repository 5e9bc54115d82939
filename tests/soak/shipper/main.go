// Log shippers as programs use them: each line that one ships is a line on standard output, as the
// file's name, a TAB and the text. They begin where they were when SIGTERM ended them, which the
// line "ended" says.
//
//	shipper otel STATE GLOB...   the OpenTelemetry Collector's filelog receiver, with the settings
//	                             of docs/reference/following.md
//	shipper tail STATE FILE...   github.com/nxadm/tail, which polls, and reopens by the inode
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/nxadm/tail"
	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/stanza/entry"
	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/stanza/operator"
	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/stanza/operator/helper"
	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/stanza/operator/input/file"
	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/stanza/operator/transformer/filter"
	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/stanza/pipeline"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension/xextension/storage"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "shipper:", err)
		os.Exit(1)
	}
}

var (
	mutex sync.Mutex
	out   = bufio.NewWriter(os.Stdout)
)

func ship(name string, text any) {
	mutex.Lock()
	defer mutex.Unlock()
	fmt.Fprintf(out, "%s\t%v\n", name, text)
	check(out.Flush())
}

// A file with what a shipper remembers.
type state struct {
	path   string
	Values map[string][]byte
}

func load(path string) *state {
	found := &state{path: path, Values: map[string][]byte{}}
	if data, err := os.ReadFile(path); err == nil {
		check(json.Unmarshal(data, found))
	}
	return found
}

func (s *state) save() error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.path+".tmp", data, 0o600); err != nil {
		return err
	}
	return os.Rename(s.path+".tmp", s.path)
}

func (s *state) Get(_ context.Context, key string) ([]byte, error) {
	mutex.Lock()
	defer mutex.Unlock()
	return s.Values[key], nil
}

func (s *state) Set(_ context.Context, key string, value []byte) error {
	mutex.Lock()
	defer mutex.Unlock()
	s.Values[key] = append([]byte{}, value...)
	return s.save()
}

func (s *state) Delete(_ context.Context, key string) error {
	mutex.Lock()
	defer mutex.Unlock()
	delete(s.Values, key)
	return s.save()
}

func (s *state) Batch(ctx context.Context, operations ...*storage.Operation) error {
	for _, each := range operations {
		var err error
		switch each.Type {
		case storage.Get:
			each.Value, err = s.Get(ctx, each.Key)
		case storage.Set:
			err = s.Set(ctx, each.Key, each.Value)
		case storage.Delete:
			err = s.Delete(ctx, each.Key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// The end of the pipeline.
type output struct {
	helper.OutputOperator
}

func (o *output) ProcessBatch(ctx context.Context, entries []*entry.Entry) error {
	for _, each := range entries {
		if err := o.Process(ctx, each); err != nil {
			return err
		}
	}
	return nil
}

func (*output) Process(_ context.Context, found *entry.Entry) error {
	ship(fmt.Sprint(found.Attributes["log.file.name"]), found.Body)
	return nil
}

func otel(remembered *state, globs []string, ended <-chan os.Signal) {
	settings := componenttest.NewNopTelemetrySettings()
	input := file.NewConfig()
	input.Include = globs
	input.StartAt = "beginning"
	input.PollsToArchive = 1000
	input.OutputIDs = []string{"filter"}
	first, err := input.Build(settings)
	check(err)
	drop := filter.NewConfig()
	drop.Expression = `body == "" or body startsWith "#kafkafs "`
	drop.OutputIDs = []string{"output"}
	second, err := drop.Build(settings)
	check(err)
	base, err := helper.NewOutputConfig("output", "output").Build(settings)
	check(err)
	whole, err := pipeline.NewDirectedPipeline([]operator.Operator{first, second, &output{base}})
	check(err)
	check(whole.Start(remembered))
	<-ended
	check(whole.Stop())
}

func follow(remembered *state, paths []string, ended <-chan os.Signal) {
	var tails []*tail.Tail
	var readers sync.WaitGroup
	for _, path := range paths {
		var position int64
		if known, found := remembered.Values[path]; found {
			check(json.Unmarshal(known, &position))
		}
		where := &tail.SeekInfo{Offset: position, Whence: io.SeekStart}
		made, err := tail.TailFile(path, tail.Config{
			Location: where, Follow: true, ReOpen: true, Poll: true, Logger: tail.DiscardingLogger,
		})
		check(err)
		tails = append(tails, made)
		readers.Add(1)
		go func() {
			defer readers.Done()
			for line := range made.Lines {
				check(line.Err)
				position += int64(len(line.Text)) + 1
				if line.Text != "" {
					ship(filepath.Base(path), line.Text)
				}
			}
			data, err := json.Marshal(position)
			check(err)
			check(remembered.Set(context.Background(), path, data))
		}()
	}
	<-ended
	for _, each := range tails {
		check(each.Stop())
	}
	readers.Wait()
}

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	remembered := load(os.Args[2])
	switch os.Args[1] {
	case "otel":
		otel(remembered, os.Args[3:], ended)
	case "tail":
		follow(remembered, os.Args[3:], ended)
	}
	check(remembered.save())
	fmt.Println("ended")
}
