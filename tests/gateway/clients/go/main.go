// The official client for Go, in a fixed script: one JSON line a step, {"step", "result"}, which names no id and no time.
//
// CONNECTION_STRING is that of a namespace or a gateway. QUEUE, SESSIONS (a queue with sessions), TOPIC and SUBSCRIPTION,
// which takes messages with the subject "wanted", exist. A step that fails has {"step", "error"}.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	bus "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

const (
	stepSeconds = 20
	large       = 200_000
)

var (
	queue, sessions            = os.Getenv("QUEUE"), os.Getenv("SESSIONS")
	topic, subscription        = os.Getenv("TOPIC"), os.Getenv("SUBSCRIPTION")
	client, sender, receiver   = open()
	ctx                        context.Context
	deleting                   = &bus.ReceiverOptions{ReceiveMode: bus.ReceiveModeReceiveAndDelete}
	deadLetters                = &bus.ReceiverOptions{SubQueue: bus.SubQueueDeadLetter}
	subject, session, property = "wanted", "s", "kept"
)

func open() (*bus.Client, *bus.Sender, *bus.Receiver) {
	client := must(bus.NewClientFromConnectionString(os.Getenv("CONNECTION_STRING"), nil))
	return client, must(client.NewSender(queue, nil)), must(client.NewReceiverForQueue(queue, nil))
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

type receives interface {
	ReceiveMessages(context.Context, int, *bus.ReceiveMessagesOptions) ([]*bus.ReceivedMessage, error)
}

func take(from receives, count int) []*bus.ReceivedMessage {
	var found []*bus.ReceivedMessage
	for len(found) < count {
		found = append(found, must(from.ReceiveMessages(ctx, count-len(found), nil))...)
	}
	return found
}

func one(from receives) *bus.ReceivedMessage { return take(from, 1)[0] }

func bodies(messages []*bus.ReceivedMessage) (found []string) {
	for _, each := range messages {
		found = append(found, string(each.Body))
	}
	return found
}

func send(body string) {
	check(sender.SendMessage(ctx, &bus.Message{Body: []byte(body)}, nil))
}

func complete(message *bus.ReceivedMessage) {
	check(receiver.CompleteMessage(ctx, message, nil))
}

var steps = []struct {
	name string
	run  func() any
}{
	{"send and complete", func() any {
		id, kind := "id", "text/plain"
		check(sender.SendMessage(ctx, &bus.Message{
			Body: []byte("single"), MessageID: &id, ContentType: &kind, Subject: &subject,
			ApplicationProperties: map[string]any{property: int64(7), "text": "t", "truth": true},
		}, nil))
		found := one(receiver)
		complete(found)
		return []any{string(found.Body), found.MessageID, found.ContentType, found.Subject, found.ApplicationProperties,
			found.DeliveryCount, found.LockedUntil.After(time.Now()), found.State}
	}},
	{"batch", func() any {
		batch := must(sender.NewMessageBatch(ctx, nil))
		for _, body := range []string{"a", "b", "c"} {
			check(batch.AddMessage(&bus.Message{Body: []byte(body)}, nil))
		}
		tooLarge := batch.AddMessage(&bus.Message{Body: make([]byte, 300_000)}, nil)
		check(sender.SendMessageBatch(ctx, batch, nil))
		found := take(receiver, 3)
		for _, each := range found {
			complete(each)
		}
		return []any{bodies(found), errors.Is(tooLarge, bus.ErrMessageTooLarge)}
	}},
	{"large", func() any {
		body := bytes.Repeat([]byte{1, 2}, large/2)
		check(sender.SendMessage(ctx, &bus.Message{Body: body}, nil))
		found := one(receiver)
		complete(found)
		return bytes.Equal(found.Body, body)
	}},
	{"schedule and cancel", func() any {
		messages := []*bus.Message{{Body: []byte("later")}, {Body: []byte("never")}}
		numbers := must(sender.ScheduleMessages(ctx, messages, time.Now().Add(time.Hour), nil))
		peeked := must(receiver.PeekMessages(ctx, 9, nil))
		check(sender.CancelScheduledMessages(ctx, numbers, nil))
		return []any{len(numbers), numbers[0] > 0, bodies(peeked), peeked[0].State}
	}},
	{"abandon", func() any {
		send("again")
		check(receiver.AbandonMessage(ctx, one(receiver), &bus.AbandonMessageOptions{
			PropertiesToModify: map[string]any{property: "yes"},
		}))
		found := one(receiver)
		complete(found)
		return []any{found.DeliveryCount, found.ApplicationProperties}
	}},
	{"defer", func() any {
		send("deferred")
		found := one(receiver)
		check(receiver.DeferMessage(ctx, found, nil))
		again := must(receiver.ReceiveDeferredMessages(ctx, []int64{*found.SequenceNumber}, nil))
		complete(again[0])
		return []any{bodies(again), again[0].State}
	}},
	{"dead-letter", func() any {
		send("dead")
		reason, text := "reason", "description"
		options := &bus.DeadLetterOptions{Reason: &reason, ErrorDescription: &text}
		check(receiver.DeadLetterMessage(ctx, one(receiver), options))
		dead := must(client.NewReceiverForQueue(queue, deadLetters))
		found := one(dead)
		check(dead.CompleteMessage(ctx, found, nil))
		check(dead.Close(ctx))
		return []any{string(found.Body), found.DeadLetterReason, found.DeadLetterErrorDescription}
	}},
	{"peek and receive and delete", func() any {
		for _, body := range []string{"1", "2"} {
			send(body)
		}
		deleter := must(client.NewReceiverForQueue(queue, deleting))
		peeked := must(deleter.PeekMessages(ctx, 2, nil))
		found := take(deleter, 2)
		left := must(deleter.PeekMessages(ctx, 2, nil))
		check(deleter.Close(ctx))
		return []any{bodies(peeked), bodies(found), len(left)}
	}},
	{"renew a lock", func() any {
		send("renewed")
		found := one(receiver)
		before := *found.LockedUntil
		check(receiver.RenewMessageLock(ctx, found, nil))
		complete(found)
		second := receiver.CompleteMessage(ctx, found, nil)
		var refused *bus.Error
		return []any{!found.LockedUntil.Before(before), errors.As(second, &refused) && refused.Code == bus.CodeLockLost}
	}},
	{"sessions", func() any {
		out := must(client.NewSender(sessions, nil))
		for _, body := range []string{"1", "2"} {
			check(out.SendMessage(ctx, &bus.Message{Body: []byte(body), SessionID: &session}, nil))
		}
		held := must(client.AcceptSessionForQueue(ctx, sessions, session, nil))
		check(held.SetSessionState(ctx, []byte("state"), nil))
		found := take(held, 2)
		check(held.CompleteMessage(ctx, found[0], nil))
		check(held.RenewSessionLock(ctx, nil))
		check(held.Close(ctx))
		next := must(client.AcceptNextSessionForQueue(ctx, sessions, nil))
		state := must(next.GetSessionState(ctx, nil))
		rest := one(next)
		check(next.CompleteMessage(ctx, rest, nil))
		check(next.Close(ctx))
		return []any{bodies(found), next.SessionID(), string(state), string(rest.Body), rest.DeliveryCount}
	}},
	{"topic and subscription", func() any {
		out := must(client.NewSender(topic, nil))
		other := "unwanted"
		check(out.SendMessage(ctx, &bus.Message{Body: []byte("no"), Subject: &other}, nil))
		check(out.SendMessage(ctx, &bus.Message{Body: []byte("yes"), Subject: &subject}, nil))
		in := must(client.NewReceiverForSubscription(topic, subscription, deleting))
		return bodies(take(in, 1))
	}},
	{"an entity that is not there", func() any {
		err := must(client.NewSender("nowhere", nil)).SendMessage(ctx, &bus.Message{}, nil)
		var refused *bus.Error
		return errors.As(err, &refused) && refused.Code == bus.CodeNotFound
	}},
}

func main() {
	lines := json.NewEncoder(os.Stdout)
	for _, each := range steps {
		line := map[string]any{"step": each.name}
		func() {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.Background(), stepSeconds*time.Second)
			defer cancel()
			defer func() {
				if err := recover(); err != nil {
					line["error"] = fmt.Sprint(err)
				}
			}()
			line["result"] = each.run()
		}()
		check(lines.Encode(line))
	}
}
