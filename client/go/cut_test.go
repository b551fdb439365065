package tieline_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	tieline "tieline.dev/client/go"
)

var record = flag.String("record", "", "the address of a server whose append turn is recorded anew")

const recordPath = "testdata/append_turn.json"

// chunk is what a server sent after it had heard the client so many times.
type chunk struct {
	After int
	Bytes []byte
}

// weather is the tool of the recorded turn.
func weather(runs *atomic.Int32) tieline.Tool {
	return tieline.Tool{
		Name: "get_weather", ParametersJSON: `{"type":"object","properties":{"city":{"type":"string"}}}`,
		Call: func(context.Context, string) (string, error) {
			runs.Add(1)
			return "4 degrees and rain", nil
		},
	}
}

func askWeather(ctx context.Context, client *tieline.Client, runs *atomic.Int32) (string, error) {
	connection, err := client.Connect(ctx)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	create := tieline.NewCreate(tieline.UserText("What is the weather in Oslo?"))
	response, err := connection.Ask(ctx, create, weather(runs))
	return tieline.Text(response), err
}

// follow calls heard for the call and for each message of a client.
func follow(from io.Reader, heard func()) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(from, preface); err != nil {
		return
	}
	framer := http2.NewFramer(io.Discard, from)
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.HeadersFrame: // The call, which the server answers with its own headers at once.
			heard()
		case *http2.DataFrame:
			if len(frame.Data()) > 0 {
				heard()
			}
		}
	}
}

// listen serves connections one by one until the test ends.
func listen(t *testing.T, serve func(net.Conn)) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serve(conn)
		}
	}()
	return listener.Addr().String()
}

func TestRecordAnAppendTurn(t *testing.T) {
	if *record == "" {
		t.Skip("only with -record ADDRESS")
	}
	var chunks []chunk
	var mu sync.Mutex
	var recording sync.WaitGroup
	address := listen(t, func(conn net.Conn) {
		server, err := net.Dial("tcp", *record)
		if err != nil {
			t.Error(err)
			return
		}
		said := 0
		told, tell := io.Pipe()
		go follow(told, func() { mu.Lock(); said++; mu.Unlock() })
		recording.Go(func() { io.Copy(io.MultiWriter(tell, server), conn); server.Close() })
		recording.Go(func() {
			buffer := make([]byte, 1<<16)
			for {
				n, err := server.Read(buffer)
				if err != nil {
					return
				}
				mu.Lock()
				if last := len(chunks) - 1; last >= 0 && chunks[last].After == said {
					chunks[last].Bytes = append(chunks[last].Bytes, buffer[:n]...)
				} else {
					chunks = append(chunks, chunk{said, append([]byte{}, buffer[:n]...)})
				}
				mu.Unlock()
				conn.Write(buffer[:n])
			}
		})
	})
	client := dial(t, address, tieline.Options{})
	if _, err := askWeather(within(t), client, &atomic.Int32{}); err != nil {
		t.Fatal(err)
	}
	client.Close()
	recording.Wait()
	text, _ := json.MarshalIndent(chunks, "", " ")
	if err := os.WriteFile(recordPath, append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// play is the recorded server, which is gone after so many bytes.
func play(conn net.Conn, chunks []chunk, bytes int) {
	defer conn.Close()
	heard := make(chan struct{}, 16)
	go func() {
		defer close(heard)
		follow(conn, func() { heard <- struct{}{} })
	}()
	said := 0
	for _, chunk := range chunks {
		for ; said < chunk.After; said++ {
			if _, ok := <-heard; !ok {
				return
			}
		}
		part := chunk.Bytes[:min(bytes, len(chunk.Bytes))]
		if _, err := conn.Write(part); err != nil || len(part) < len(chunk.Bytes) {
			return
		}
		bytes -= len(part)
	}
	for range heard { // All was said: until the client goes.
	}
}

func TestATurnThatIsCutAtEveryByte(t *testing.T) {
	noLeaks(t)
	text, err := os.ReadFile(recordPath)
	if err != nil {
		t.Fatal(err)
	}
	var chunks []chunk
	if err := json.Unmarshal(text, &chunks); err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, chunk := range chunks {
		total += len(chunk.Bytes)
	}
	step := 1
	if testing.Short() {
		step = 17
	}
	cuts := make(chan int)
	var cutting sync.WaitGroup
	var whole atomic.Int32
	for range 4 {
		cutting.Go(func() {
			for cut := range cuts {
				if cutAt(t, chunks, cut) {
					whole.Add(1)
				}
			}
		})
	}
	for cut := 0; cut <= total; cut += step {
		cuts <- cut
	}
	cuts <- total
	close(cuts)
	cutting.Wait()
	if whole.Load() == 0 {
		t.Error("no turn was whole")
	}
}

// cutAt says whether the turn was whole; if not it must have ended with a typed error.
func cutAt(t *testing.T, chunks []chunk, cut int) bool {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Error(err)
		return false
	}
	defer listener.Close()
	var playing sync.WaitGroup
	playing.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			play(conn, chunks, cut)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client, err := tieline.Dial(listener.Addr().String(), tieline.Options{})
	if err != nil {
		t.Error(err)
		return false
	}
	var runs atomic.Int32
	said, err := askWeather(ctx, client, &runs)
	client.Close()
	listener.Close()
	playing.Wait()
	var failure *tieline.Error
	var lost *tieline.LostError
	switch {
	case runs.Load() > 1:
		t.Errorf("cut at %d the tool ran %d times", cut, runs.Load())
	case err == nil && (said != "It is 4 degrees and rain." || runs.Load() != 1):
		t.Errorf("cut at %d it said %q", cut, said)
	case err != nil && !errors.As(err, &failure) && !errors.As(err, &lost), ctx.Err() != nil:
		t.Errorf("cut at %d the error is %v", cut, err)
	}
	return err == nil
}
