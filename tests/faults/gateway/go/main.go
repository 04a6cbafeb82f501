// The client for Go of a campaign: the protocol is that of client.py.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

const shapes = 4

var (
	output  sync.Mutex
	stopped = make(chan struct{})
)

func report(line map[string]any) {
	output.Lock()
	defer output.Unlock()
	text, _ := json.Marshal(line)
	fmt.Println(string(text))
}

func name(number int) string { return fmt.Sprintf("go-%08d", number) }

func text(value string) *string { return &value }

func message(number int, session string) *azservicebus.Message {
	id := name(number)
	made := &azservicebus.Message{MessageID: &id, Body: []byte(strings.Repeat(id+" ", 1+40*(number%shapes)))}
	if session != "" {
		made.SessionID = &session
	}
	// One property only: a map has no order.
	switch number % shapes {
	case 1:
		made.ApplicationProperties = map[string]any{"gr\u00fc\u00df": int64(1) << 40}
		made.Subject = text("subject")
		made.ContentType = text("application/json")
	case 2:
		made.CorrelationID, made.ReplyTo, made.To = text("correlation"), text("reply"), text("to")
	case 3:
		made.ApplicationProperties = map[string]any{"nothing": nil}
	}
	return made
}

func same(received *azservicebus.ReceivedMessage) bool {
	var number int
	if _, err := fmt.Sscanf(received.MessageID, "go-%d", &number); err != nil {
		return false
	}
	wanted := message(number, "")
	if received.SessionID != nil {
		wanted.SessionID = received.SessionID
	}
	return bytes.Equal(received.Body, wanted.Body) &&
		(len(wanted.ApplicationProperties) == 0 && len(received.ApplicationProperties) == 0 ||
			reflect.DeepEqual(received.ApplicationProperties, wanted.ApplicationProperties)) &&
		reflect.DeepEqual(received.Subject, wanted.Subject) && reflect.DeepEqual(received.ContentType, wanted.ContentType) &&
		reflect.DeepEqual(received.CorrelationID, wanted.CorrelationID) && reflect.DeepEqual(received.ReplyTo, wanted.ReplyTo) &&
		reflect.DeepEqual(received.To, wanted.To)
}

func isStopped() bool {
	select {
	case <-stopped:
		return true
	default:
		return false
	}
}

func pause(seconds float64) {
	select {
	case <-stopped:
	case <-time.After(time.Duration(seconds * float64(time.Second))):
	}
}

func send(client *azservicebus.Client, queue string, session string, first int, count int, gap float64) {
	ctx := context.Background()
	sender, err := client.NewSender(queue, nil)
	if err != nil {
		panic(err)
	}
	defer sender.Close(ctx)
	for number := first; number < first+count || count == 0 && !isStopped(); {
		size := 1
		if number%7 == 0 && count == 0 {
			size = 3
		}
		for {
			if size == 1 {
				err = sender.SendMessage(ctx, message(number, session), nil)
			} else {
				var batch *azservicebus.MessageBatch
				if batch, err = sender.NewMessageBatch(ctx, nil); err == nil {
					for member := number; member < number+size && err == nil; member++ {
						err = batch.AddMessage(message(member, session), nil)
					}
				}
				if err == nil {
					err = sender.SendMessageBatch(ctx, batch, nil)
				}
			}
			if err == nil {
				break
			}
			report(map[string]any{"failed": name(number), "error": err.Error()})
			pause(0.1)
			if isStopped() {
				return
			}
		}
		for member := number; member < number+size; member++ {
			report(map[string]any{"sent": name(member), "queue": queue, "session": session})
		}
		number += size
		pause(gap)
	}
}

func receive(client *azservicebus.Client, queue string) {
	ctx := context.Background()
	for !isStopped() {
		receiver, err := client.NewReceiverForQueue(queue, nil)
		if err != nil {
			panic(err)
		}
		for !isStopped() {
			waiting, cancel := context.WithTimeout(ctx, time.Second)
			found, err := receiver.ReceiveMessages(waiting, 20, nil)
			cancel()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				report(map[string]any{"failed": "receive", "error": err.Error()})
				pause(0.1)
			}
			for _, each := range found {
				report(map[string]any{"received": each.MessageID, "same": same(each), "sequence": *each.SequenceNumber})
				if receiver.CompleteMessage(ctx, each, nil) == nil {
					report(map[string]any{"completed": *each.SequenceNumber})
				}
			}
		}
		receiver.Close(ctx)
	}
}

func main() {
	var wanted struct {
		Send []struct {
			Queue, Session string
			First, Count   int
			Gap            float64
		}
		Receive []string
	}
	if err := json.Unmarshal([]byte(os.Args[1]), &wanted); err != nil {
		panic(err)
	}
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		close(stopped)
	}()
	client, err := azservicebus.NewClientFromConnectionString(os.Getenv("CONNECTION_STRING"), nil)
	if err != nil {
		panic(err)
	}
	var work sync.WaitGroup
	for _, each := range wanted.Send {
		work.Go(func() { send(client, each.Queue, each.Session, each.First, each.Count, each.Gap) })
	}
	for _, queue := range wanted.Receive {
		work.Go(func() { receive(client, queue) })
	}
	work.Wait()
	client.Close(context.Background())
}
