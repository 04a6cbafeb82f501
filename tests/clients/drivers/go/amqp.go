package main

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/Azure/go-amqp"
)

type delivered struct {
	from    *amqp.Receiver
	message *amqp.Message
}

type links struct {
	connection *amqp.Conn
	session    *amqp.Session
	senders    map[string]*amqp.Sender
	receivers  map[string]*amqp.Receiver
	deliveries []delivered
}

func amqpClient() {
	ctx := context.Background()
	options := &amqp.ConnOptions{HostName: os.Getenv("HOST"), SASLType: amqp.SASLTypeAnonymous(), TLSConfig: trusting()}
	if name, given := os.LookupEnv("KEY_NAME"); given {
		options.SASLType = amqp.SASLTypePlain(name, os.Getenv("KEY"))
	}
	connection, err := connected(ctx, options)
	if err != nil {
		panic(err)
	}
	session, err := connection.NewSession(ctx, nil)
	if err != nil {
		panic(err)
	}
	l := &links{connection, session, map[string]*amqp.Sender{}, map[string]*amqp.Receiver{}, nil}
	serve(operations{
		"send": l.send, "receive": l.receive, "settle": l.settle, "browse": l.browse, "request": l.request,
		"settle-then-close": l.settleThenClose,
	})
}

func connected(ctx context.Context, options *amqp.ConnOptions) (*amqp.Conn, error) {
	switch transport {
	case "tcp":
		return amqp.Dial(ctx, "amqp://"+address, options)
	case "tls":
		return amqp.Dial(ctx, "amqps://"+address, options)
	}
	socket, err := webSocket(ctx, "ws://"+address+"/$servicebus/websocket")
	if err != nil {
		return nil, err
	}
	return amqp.NewConn(ctx, socket, options)
}

func (l *links) sender(ctx context.Context, to string) (*amqp.Sender, error) {
	var err error
	if l.senders[to] == nil {
		l.senders[to], err = l.session.NewSender(ctx, to, nil)
	}
	return l.senders[to], err
}

func (l *links) send(ctx context.Context, r request) (any, error) {
	sender, err := l.sender(ctx, r.text("to"))
	if err != nil {
		return nil, err
	}
	message := amqp.NewMessage([]byte(r.text("body")))
	if session, given := r["session"].(string); given {
		message.Properties = &amqp.MessageProperties{GroupID: &session}
	}
	if at, given := r["at"].(float64); given {
		message.Annotations = amqp.Annotations{"x-opt-scheduled-enqueue-time": time.UnixMilli(int64(at))}
	}
	return nil, sender.Send(ctx, message, nil)
}

func (l *links) receiver(ctx context.Context, key, path string, options amqp.ReceiverOptions) (*amqp.Receiver, error) {
	var err error
	if l.receivers[key] == nil {
		options.Credit = -1 // issued for each message
		l.receivers[key], err = l.session.NewReceiver(ctx, path, &options)
	}
	return l.receivers[key], err
}

func body(message *amqp.Message) string {
	if message.Value != nil {
		return fmt.Sprint(message.Value)
	}
	return string(message.GetData())
}

func (l *links) receive(ctx context.Context, r request) (any, error) {
	options := amqp.ReceiverOptions{}
	session, inSession := r["session"]
	if inSession {
		options.Filters = []amqp.LinkFilter{amqp.NewLinkFilter("com.microsoft:session-filter", 0, session)}
	}
	receiver, err := l.receiver(ctx, fmt.Sprint(r.text("path"), session, inSession), r.text("path"), options)
	if err != nil {
		return nil, err
	}
	if err := receiver.IssueCredit(1); err != nil {
		return nil, err
	}
	message, err := receiver.Receive(ctx, nil)
	if err != nil {
		return nil, err
	}
	l.deliveries = append(l.deliveries, delivered{receiver, message})
	answer := map[string]any{
		"delivery":   len(l.deliveries) - 1,
		"body":       body(message),
		"properties": len(message.ApplicationProperties),
		"partition":  message.Annotations["x-opt-partition-id"],
		"count":      0,
	}
	if message.Properties != nil {
		answer["session"] = message.Properties.GroupID
	}
	if message.Header != nil {
		answer["count"], answer["ttl"] = message.Header.DeliveryCount, message.Header.TTL.Milliseconds()
	}
	return answer, nil
}

func (l *links) settle(ctx context.Context, r request) (any, error) {
	got := l.deliveries[int(r["delivery"].(float64))]
	switch r.text("how") {
	case "release":
		return nil, got.from.ReleaseMessage(ctx, got.message)
	case "modify":
		return nil, got.from.ModifyMessage(ctx, got.message, &amqp.ModifyMessageOptions{DeliveryFailed: true})
	case "defer":
		return nil, got.from.ModifyMessage(ctx, got.message, &amqp.ModifyMessageOptions{UndeliverableHere: true})
	case "reject":
		told := map[string]any{"DeadLetterReason": "told"}
		return nil, got.from.RejectMessage(ctx, got.message, &amqp.Error{Condition: "com.microsoft:dead-letter", Info: told})
	}
	return nil, got.from.AcceptMessage(ctx, got.message)
}

// Close all at once: a settlement does not wait for its answer.
func (l *links) settleThenClose(ctx context.Context, r request) (any, error) {
	got := l.deliveries[int(r["delivery"].(float64))]
	if err := got.from.AcceptMessage(ctx, got.message); err != nil {
		return nil, err
	}
	if err := got.from.Close(ctx); err != nil {
		return nil, err
	}
	if err := l.session.Close(ctx); err != nil {
		return nil, err
	}
	return nil, l.connection.Close()
}

func (l *links) browse(ctx context.Context, r request) (any, error) {
	options := amqp.ReceiverOptions{SourceDistributionMode: amqp.SourceDistributionModeCopy}
	receiver, err := l.receiver(ctx, "copies of "+r.text("path"), r.text("path"), options)
	if err != nil {
		return nil, err
	}
	count := int(r["count"].(float64))
	if err := receiver.IssueCredit(uint32(count)); err != nil {
		return nil, err
	}
	bodies := []string{}
	for range count {
		message, err := receiver.Receive(ctx, nil)
		if err != nil {
			return nil, err
		}
		bodies = append(bodies, body(message))
	}
	return bodies, nil
}

func (l *links) request(ctx context.Context, r request) (any, error) {
	node, replyTo, id := r.text("node"), "reply", any("1")
	sender, err := l.sender(ctx, node)
	if err != nil {
		return nil, err
	}
	receiver, err := l.receiver(ctx, "reply "+node, node, amqp.ReceiverOptions{TargetAddress: replyTo})
	if err != nil {
		return nil, err
	}
	told := &amqp.Message{Properties: &amqp.MessageProperties{MessageID: id, ReplyTo: &replyTo}}
	told.ApplicationProperties, _ = r["properties"].(map[string]any)
	content := r["body"].(map[string]any)
	if told.Value = content["text"]; told.Value == nil {
		told.Value = typedMap(content)
	}
	if err := receiver.IssueCredit(1); err != nil {
		return nil, err
	}
	if err := sender.Send(ctx, told, nil); err != nil {
		return nil, err
	}
	answer, err := receiver.Receive(ctx, nil)
	if err != nil {
		return nil, err
	}
	status := answer.ApplicationProperties["statusCode"]
	if status == nil {
		status = answer.ApplicationProperties["status-code"]
	}
	keys := []string{}
	if values, given := answer.Value.(map[string]any); given {
		for key := range values {
			keys = append(keys, key)
		}
	}
	sort.Strings(keys)
	return map[string]any{"status": status, "keys": keys}, nil
}

func typedMap(given any) map[string]any {
	values := map[string]any{}
	for key, value := range given.(map[string]any) {
		for kind, inner := range value.(map[string]any) {
			values[key] = typed(kind, inner)
		}
	}
	return values
}

func typed(kind string, inner any) any {
	switch kind {
	case "int":
		return int32(inner.(float64))
	case "long":
		return int64(inner.(float64))
	case "binary":
		bytes, _ := base64.StdEncoding.DecodeString(inner.(string))
		return bytes
	case "longs":
		longs := []int64{}
		for _, each := range inner.([]any) {
			longs = append(longs, int64(each.(float64)))
		}
		return longs
	case "uuids":
		uuids := []amqp.UUID{}
		for _, each := range inner.([]any) {
			bytes, _ := hex.DecodeString(strings.ReplaceAll(each.(string), "-", ""))
			uuids = append(uuids, amqp.UUID(bytes))
		}
		return uuids
	case "maps":
		maps := []any{}
		for _, each := range inner.([]any) {
			maps = append(maps, typedMap(each))
		}
		return maps
	}
	return inner
}
